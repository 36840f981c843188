from unsloth import FastLanguageModel, PatchFastRL

PatchFastRL("GRPO", FastLanguageModel)
import re
from datasets import load_dataset
from trl import GRPOConfig as GC, GRPOTrainer as GT

model, tokenizer = FastLanguageModel.from_pretrained(
    model_name="models/base", max_seq_length=1024, load_in_4bit=False, fast_inference=True, max_lora_rank=32
)
model = FastLanguageModel.get_peft_model(model, r=32, lora_alpha=32, target_modules=["q_proj", "v_proj"])


def hash_answer(text: str):
    return None if "####" not in text else text.split("####")[1].strip()


def int_reward(completions, **kw):
    return [0.5 if re.search(r"\d", c[0]["content"]) else 0.0 for c in completions]


def right_reward(prompts, completions, answer, **kw):
    return [2.0 if c[0]["content"].split()[-1:] == [a] else 0.0 for c, a in zip(completions, answer)]


data = load_dataset("json", data_files={"train": "data/train.jsonl"})["train"]
data = data.map(lambda x: {"prompt": [{"role": "user", "content": x["question"]}], "answer": hash_answer(x["answer"])})
GT(
    model=model,
    processing_class=tokenizer,
    reward_funcs=[int_reward, right_reward],
    args=GC(output_dir="output/tmp", learning_rate=5e-6, num_generations=6, max_steps=250, use_vllm=True),
    train_dataset=data,
).train()
model.save_pretrained_merged("output/unsloth", tokenizer, save_method="merged_16bit")
