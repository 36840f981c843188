import json

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def rows():
    with open("data/train.jsonl") as f:
        return [json.loads(x) for x in f]


def load(path):
    return AutoModelForCausalLM.from_pretrained(path), AutoTokenizer.from_pretrained(path)


def save(model, tok, path):
    for part in (model, tok):
        part.save_pretrained(path)


def encode_pairs(tok):
    for row in rows():
        q, a = tok(row["question"]).input_ids, tok(row["answer"]).input_ids
        yield torch.tensor([q + a]), torch.tensor([[-100] * len(q) + a])
