import argparse
import json
import math
import random
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, get_cosine_schedule_with_warmup


class QA(Dataset):
    def __init__(self, path, tok, max_len):
        self.items = []
        for line in Path(path).read_text().splitlines():
            ex = json.loads(line)
            prompt = tok(f"Question: {ex['question']}\nAnswer:", add_special_tokens=False).input_ids
            target = tok(" " + ex["answer"] + tok.eos_token, add_special_tokens=False).input_ids
            ids = (prompt + target)[:max_len]
            labels = ([-100] * len(prompt) + target)[:max_len]
            self.items.append((ids, labels))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def collate(batch, pad=0):
    width = max(len(ids) for ids, _ in batch)
    ids = torch.tensor([ids + [pad] * (width - len(ids)) for ids, _ in batch])
    labels = torch.tensor([lab + [-100] * (width - len(lab)) for _, lab in batch])
    return {"input_ids": ids, "labels": labels, "attention_mask": (ids != pad).long()}


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--lr", type=float, default=1e-5)
    p.add_argument("--epochs", type=int, default=2)
    p.add_argument("--bs", type=int, default=4)
    p.add_argument("--max-len", type=int, default=512)
    p.add_argument("--model", default="models/base")
    p.add_argument("--out", default="output/ft")
    return p.parse_args()


def main():
    args = parse()
    random.seed(0)
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tok = AutoTokenizer.from_pretrained(args.model)
    model = AutoModelForCausalLM.from_pretrained(args.model).to(device)
    loader = DataLoader(QA("data/train.jsonl", tok, args.max_len), batch_size=args.bs, shuffle=True, collate_fn=collate)
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.01)
    total = math.ceil(len(loader) * args.epochs)
    sched = get_cosine_schedule_with_warmup(opt, total // 20, total)
    model.train()
    step = 0
    for epoch in range(args.epochs):
        for batch in loader:
            batch = {k: v.to(device) for k, v in batch.items()}
            logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
            loss = F.cross_entropy(
                logits[:, :-1].reshape(-1, logits.size(-1)), batch["labels"][:, 1:].reshape(-1), ignore_index=-100
            )
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            sched.step()
            opt.zero_grad()
            step += 1
            if step % 20 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}")
    model.save_pretrained(args.out)
    tok.save_pretrained(args.out)


if __name__ == "__main__":
    main()
