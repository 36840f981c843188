import json
import os

import torch
from torch.nn import functional as fn
from transformers import AutoModelForCausalLM as LM, AutoTokenizer as Tok


def make_scorer(model, tok):
    def mean_logp(prompt, reply):
        a, b = (tok(x, return_tensors="pt").input_ids for x in (prompt, prompt + reply))
        lp = fn.log_softmax(model(b).logits[:, :-1], dim=-1)
        per = torch.gather(lp, 2, b[:, 1:, None])[..., 0]
        return per[:, a.shape[1] - 1 :].mean()

    return mean_logp


def make_update(model, tok, opt, beta=2.0, gap=0.5):
    score = make_scorer(model, tok)

    def update(batch):
        opt.zero_grad()
        losses = []
        for prompt, (better, worse) in batch:
            z = beta * (score(prompt, better) - score(prompt, worse)) - gap
            losses.append(-torch.log(torch.sigmoid(z)))
        total = torch.stack(losses).mean()
        total.backward()
        opt.step()
        return total.item()

    return update


if __name__ == "__main__":
    where = os.getenv("MODEL_PATH", "models/base")
    model, tok = LM.from_pretrained(where), Tok.from_pretrained(where)
    update = make_update(model, tok, torch.optim.AdamW(model.parameters(), lr=1e-6))
    with open("code/ranked.jsonl") as f:
        ranked = [(d["prompt"], (d["best"], d["worst"])) for d in map(json.loads, f)]
    for i in range(0, len(ranked), 4):
        print(i, update(ranked[i : i + 4]))
    model.save_pretrained("output/simpo")
    tok.save_pretrained("output/simpo")
