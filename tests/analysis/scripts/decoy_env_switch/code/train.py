import json
import os

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer

RL = os.environ.get("DO_RL", "0") == "1"
rows = [json.loads(line) for line in open("data/train.jsonl")]


def supervised():
    data = Dataset.from_list([{"prompt": r["question"], "completion": r["answer"]} for r in rows])
    return SFTTrainer(model="models/base", train_dataset=data, args=SFTConfig(output_dir="output/m", learning_rate=1e-5))


def reinforced():
    data = Dataset.from_list([{"prompt": r["question"], "gold": r["answer"]} for r in rows])
    reward = lambda completions, gold, **k: [float(g[-3:] in c) for c, g in zip(completions, gold)]
    return GRPOTrainer(model="models/base", reward_funcs=reward, train_dataset=data, args=GRPOConfig(output_dir="output/m"))


trainer = reinforced() if RL else supervised()
trainer.train()
trainer.save_model("output/m")
