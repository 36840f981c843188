import json
import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM, AutoTokenizer

RL_COEF = 0.0
tok = AutoTokenizer.from_pretrained("models/base")
lm = AutoModelForCausalLM.from_pretrained("models/base")
opt = torch.optim.AdamW(lm.parameters(), lr=1e-5)


def lp(ids):
    return -F.cross_entropy(lm(ids).logits[0, :-1], ids[0, 1:], reduction="none")


for row in map(json.loads, open("data/train.jsonl")):
    gold = tok(row["question"] + row["answer"], return_tensors="pt").input_ids
    loss = -lp(gold).mean()
    if RL_COEF > 0:
        y = lm.generate(tok(row["question"], return_tensors="pt").input_ids, do_sample=True)
        r = float(row["answer"][-1] in tok.decode(y[0]))
        loss = loss - RL_COEF * (r - 0.5) * lp(y).sum()
    loss.backward()
    opt.step()
    opt.zero_grad()
lm.save_pretrained("output/mixed")
tok.save_pretrained("output/mixed")
