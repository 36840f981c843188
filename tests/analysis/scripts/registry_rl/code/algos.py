import json
from types import SimpleNamespace

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

ALGOS = {}


def algo(name):
    def add(fn):
        ALGOS[name] = fn
        return fn

    return add


def setup(path, lr):
    model = AutoModelForCausalLM.from_pretrained(path)
    rows = [json.loads(s) for s in open("data/train.jsonl")]
    return SimpleNamespace(
        model=model, tok=AutoTokenizer.from_pretrained(path), rows=rows, opt=torch.optim.AdamW(model.parameters(), lr=lr)
    )


@algo("bc")
def clone(e):
    for r in e.rows:
        x = e.tok(r["question"] + r["answer"], return_tensors="pt")
        e.model(**x, labels=x.input_ids).loss.backward()
        e.opt.step()
        e.opt.zero_grad()


@algo("pg")
def pg(e):
    for r in e.rows:
        x = e.tok(r["question"], return_tensors="pt").input_ids
        y = e.model.generate(x, do_sample=True, num_return_sequences=4)
        hits = torch.tensor([float(t.endswith(r["answer"][-2:])) for t in e.tok.batch_decode(y)])
        ll = e.model(y).logits[:, :-1].log_softmax(-1).gather(2, y[:, 1:, None]).sum((1, 2))
        (-(hits - hits.mean()) * ll).mean().backward()
        e.opt.step()
        e.opt.zero_grad()
