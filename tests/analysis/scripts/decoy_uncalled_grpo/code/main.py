import json
import os

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def grpo_loss(model, ids, adv, old_logps, clip=0.2):
    logits = model(ids).logits[:, :-1]
    logps = torch.log_softmax(logits, -1).gather(-1, ids[:, 1:, None]).squeeze(-1)
    ratio = torch.exp(logps - old_logps)
    return -torch.min(ratio * adv, ratio.clamp(1 - clip, 1 + clip) * adv).mean()


def train_grpo(model, tok, rows, steps=100):
    opt = torch.optim.AdamW(model.parameters(), lr=1e-6)
    for row in rows[:steps]:
        ids = model.generate(**tok(row["question"], return_tensors="pt"), do_sample=True, num_return_sequences=8)
        texts = tok.batch_decode(ids)
        rewards = torch.tensor([float(row["answer"] in t) for t in texts])
        adv = (rewards - rewards.mean())[:, None]
        loss = grpo_loss(model, ids, adv, torch.zeros(1))
        loss.backward()
        opt.step()


def train_sft(model, tok, rows):
    opt = torch.optim.AdamW(model.parameters(), lr=2e-5)
    for epoch in range(2):
        for row in rows:
            batch = tok(row["question"] + "\n" + row["answer"], return_tensors="pt")
            out = model(**batch, labels=batch["input_ids"])
            out.loss.backward()
            opt.step()
            opt.zero_grad()


if __name__ == "__main__":
    path = os.environ["MODEL_PATH"]
    tok = AutoTokenizer.from_pretrained(path)
    model = AutoModelForCausalLM.from_pretrained(path)
    rows = [json.loads(l) for l in open("data/train.jsonl")]
    train_sft(model, tok, rows)
    # train_grpo(model, tok, rows)   # too slow on this machine
    model.save_pretrained("output/final")
    tok.save_pretrained("output/final")
