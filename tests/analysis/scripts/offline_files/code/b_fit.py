import json

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainingArguments


class Pairs(torch.utils.data.Dataset):
    def __init__(self, path, tok):
        self.rows = [json.loads(line) for line in open(path)]
        self.tok = tok

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        row = self.rows[i]
        q = self.tok(row["q"]).input_ids
        a = self.tok(row["a"] + self.tok.eos_token).input_ids
        return {"input_ids": q + a, "labels": [-100] * len(q) + a, "attention_mask": [1] * (len(q) + len(a))}


tok = AutoTokenizer.from_pretrained("models/base")
model = AutoModelForCausalLM.from_pretrained("models/base")
args = TrainingArguments(output_dir="output/rs", learning_rate=1e-5, num_train_epochs=2, per_device_train_batch_size=1)
trainer = Trainer(model=model, args=args, train_dataset=Pairs("code/accepted.jsonl", tok))
trainer.train()
trainer.save_model("output/rs")
tok.save_pretrained("output/rs")
