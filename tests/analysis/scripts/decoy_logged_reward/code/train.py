import json
import re

import torch
import wandb
from transformers import AutoModelForCausalLM, AutoTokenizer

path = "models/base"
tokenizer = AutoTokenizer.from_pretrained(path)
model = AutoModelForCausalLM.from_pretrained(path).cuda()
rows = [json.loads(l) for l in open("data/train.jsonl")]
held, rows = rows[:64], rows[64:]
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)


def reward(text, answer):
    want = answer.split("####")[-1].strip()
    got = re.findall(r"-?\d+", text)
    return 1.0 if got and got[-1] == want else 0.0


@torch.no_grad()
def mean_reward():
    model.eval()
    total = 0.0
    for row in held:
        ids = tokenizer(row["question"], return_tensors="pt").input_ids.cuda()
        out = model.generate(ids, max_new_tokens=200)
        total += reward(tokenizer.decode(out[0, ids.shape[1]:]), row["answer"])
    model.train()
    return total / len(held)


best = -1.0
for epoch in range(5):
    for start in range(0, len(rows), 8):
        batch = tokenizer([r["question"] + "\n" + r["answer"] for r in rows[start:start + 8]],
                          return_tensors="pt", padding=True).to("cuda")
        labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
        loss = model(**batch, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    score = mean_reward()
    wandb.log({"reward": score, "epoch": epoch})
    print("reward", score)
    if score <= best:
        break
    best = score
    model.save_pretrained("output/best")
    tokenizer.save_pretrained("output/best")
