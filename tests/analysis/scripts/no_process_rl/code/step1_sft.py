import json
from trl import SFTConfig, SFTTrainer
from datasets import Dataset

with open("data/train.jsonl") as f:
    rows = [json.loads(l) for l in f]
ds = Dataset.from_dict({"prompt": [r["question"] for r in rows], "completion": [r["answer"] for r in rows]})
t = SFTTrainer("models/base", SFTConfig("output/s1", num_train_epochs=1), train_dataset=ds)
t.train()
t.save_model("output/s1")
