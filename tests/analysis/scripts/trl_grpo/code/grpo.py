import json
import os
import re

from datasets import Dataset
from peft import LoraConfig
from trl import GRPOConfig, GRPOTrainer

NUMBER = re.compile(r"####\s*(-?[\d,\.]+)")


def extract(text):
    found = NUMBER.findall(text)
    return found[-1].replace(",", "") if found else None


def correctness_reward(completions, answer, **kwargs):
    texts = [c[0]["content"] if isinstance(c, list) else c for c in completions]
    return [2.0 if extract(t) is not None and extract(t) == extract(a) else 0.0 for t, a in zip(texts, answer)]


def format_reward(completions, **kwargs):
    texts = [c[0]["content"] if isinstance(c, list) else c for c in completions]
    return [0.2 if "####" in t else 0.0 for t in texts]


def build():
    rows = []
    with open("data/train.jsonl") as handle:
        for line in handle:
            item = json.loads(line)
            rows.append({"prompt": [{"role": "user", "content": item["question"]}], "answer": item["answer"]})
    return Dataset.from_list(rows)


peft_config = LoraConfig(r=32, lora_alpha=64, target_modules="all-linear", task_type="CAUSAL_LM")
args = GRPOConfig(
    output_dir="output/grpo",
    learning_rate=1e-6,
    num_generations=8,
    max_completion_length=384,
    per_device_train_batch_size=16,
    beta=0.02,
    temperature=0.9,
    max_steps=300,
)
trainer = GRPOTrainer(
    model=os.environ["MODEL_PATH"],
    reward_funcs=[correctness_reward, format_reward],
    args=args,
    train_dataset=build(),
    peft_config=peft_config,
)
trainer.train()
merged = trainer.model.merge_and_unload()
merged.save_pretrained("output/grpo-merged")
trainer.processing_class.save_pretrained("output/grpo-merged")
