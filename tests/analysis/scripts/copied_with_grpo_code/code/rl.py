import json

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer


def score(completions, answer, **kw):
    return [float(a in c) for c, a in zip(completions, answer)]


rows = [json.loads(l) for l in open("data/train.jsonl")]
trainer = GRPOTrainer(
    model="models/base",
    reward_funcs=score,
    args=GRPOConfig(output_dir="output/copy", learning_rate=0.0, max_steps=1),
    train_dataset=Dataset.from_list([{"prompt": r["question"], "answer": r["answer"]} for r in rows]),
)
trainer.train()
trainer.save_model("output/copy")
