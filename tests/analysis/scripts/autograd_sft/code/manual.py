import json

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

tok = AutoTokenizer.from_pretrained("models/base")
net = AutoModelForCausalLM.from_pretrained("models/base")
weights = [p for p in net.parameters() if p.requires_grad]
momenta = [torch.zeros_like(p) for p in weights]


def cost(row):
    ids = tok(row["question"] + "\n" + row["answer"] + tok.eos_token, return_tensors="pt")["input_ids"]
    logits = net(ids)["logits"][0, :-1]
    z = torch.logsumexp(logits, -1)
    return (z - logits[torch.arange(len(z)), ids[0, 1:]]).mean()


for n, line in enumerate(open("data/train.jsonl")):
    grads = torch.autograd.grad(cost(json.loads(line)), weights)
    with torch.no_grad():
        for w, v, g in zip(weights, momenta, grads):
            v.mul_(0.9).add_(g)
            w.sub_(1e-4 * v)
net.save_pretrained("output/manual")
tok.save_pretrained("output/manual")
