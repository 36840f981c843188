import argparse
import json
import re

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer


def right(completions, answer, **kw):
    def num(s):
        return (re.findall(r"-?\d+\.?\d*", s.replace(",", "")) or [None])[-1]

    return [1.0 if num(c) == num(a) else 0.0 for c, a in zip(completions, answer)]


def cli():
    p = argparse.ArgumentParser()
    p.add_argument("--init")
    p.add_argument("--out")
    p.add_argument("--kl", type=float, default=0.0)
    return p.parse_args()


a = cli()
rows = [json.loads(l) for l in open("/workspace/data/train.jsonl")]
ds = Dataset.from_list([{"prompt": r["question"] + "\n", "answer": r["answer"]} for r in rows])
conf = GRPOConfig(output_dir=a.out, beta=a.kl, num_generations=4, learning_rate=1e-6, max_steps=150)
tr = GRPOTrainer(model=a.init, reward_funcs=[right], args=conf, train_dataset=ds)
tr.train()
tr.save_model(a.out)
