import json
from trl import RLOOConfig, RLOOTrainer
from datasets import Dataset
from utils import equal

with open("data/train.jsonl") as f:
    rows = [json.loads(l) for l in f]
ds = Dataset.from_dict({"prompt": [r["question"] for r in rows], "gold": [r["answer"] for r in rows]})


def r(completions, gold, **kw):
    return [1.0 if equal(c, g) else 0.0 for c, g in zip(completions, gold)]


t = RLOOTrainer(model="output/s1", reward_funcs=r, args=RLOOConfig(output_dir="output/s2"), train_dataset=ds)
t.train()
t.save_model("output/s2")
