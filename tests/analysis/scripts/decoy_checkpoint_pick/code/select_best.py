"""SFT at several rates; the reward on held-back questions decides which one is kept."""
import json
import shutil

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

tok = AutoTokenizer.from_pretrained("models/base")
rows = [json.loads(l) for l in open("data/train.jsonl")]
dev, rows = rows[:50], rows[50:]


def rewards(model):
    for r in dev:
        out = model.generate(**tok(r["question"], return_tensors="pt"), max_new_tokens=128)
        yield float(tok.decode(out[0]).split()[-1] == r["answer"].split()[-1])


def advantage(scores, baseline):
    return sum(scores) / len(dev) - baseline


results = {}
baseline = advantage(rewards(AutoModelForCausalLM.from_pretrained("models/base")), 0.0)
for lr in (1e-6, 5e-6, 2e-5):
    model = AutoModelForCausalLM.from_pretrained("models/base")
    opt = torch.optim.AdamW(model.parameters(), lr=lr)
    for r in rows:
        enc = tok(r["question"] + "\n" + r["answer"], return_tensors="pt")
        loss = model(**enc, labels=enc["input_ids"]).loss
        loss.backward()
        opt.step()
        opt.zero_grad()
    results[lr] = advantage(rewards(model), baseline)
    model.save_pretrained(f"output/lr-{lr}")
    tok.save_pretrained(f"output/lr-{lr}")
best = max(results, key=results.get)
shutil.copytree(f"output/lr-{best}", "output/picked")
