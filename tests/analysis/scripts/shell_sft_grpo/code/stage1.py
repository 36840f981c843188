import argparse
import json

from datasets import Dataset
from trl import SFTConfig, SFTTrainer

ap = argparse.ArgumentParser()
ap.add_argument("--lr", type=float, default=2e-5)
ap.add_argument("--out", required=True)
ns = ap.parse_args()

rows = [json.loads(l) for l in open("/workspace/data/train.jsonl")]
ds = Dataset.from_list([{"prompt": r["question"] + "\n", "completion": r["answer"]} for r in rows])
trainer = SFTTrainer(
    model="/workspace/models/base",
    train_dataset=ds,
    args=SFTConfig(output_dir=ns.out, learning_rate=ns.lr, num_train_epochs=1, per_device_train_batch_size=16),
)
trainer.train()
trainer.save_model(ns.out)
