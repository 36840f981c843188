import json, itertools as it, pathlib, random
import torch
from transformers import pipeline, AutoTokenizer, AutoModelForCausalLM

P = pathlib.Path("data/train.jsonl")
N = 6
tok = AutoTokenizer.from_pretrained("models/base")


def tail(s): return s.rpartition("####")[2].strip()


def closeness(s, row):
    try:
        return -abs(float(tail(s)) - float(tail(row["answer"])))
    except ValueError:
        return float("-inf")


def candidates(gen, row):
    return [d["generated_text"] for d in gen(row["question"], num_return_sequences=N, do_sample=True, max_new_tokens=180)]


rows = [*map(json.loads, P.read_text().splitlines())]
gen = pipeline("text-generation", model="models/base", device=0, return_full_text=False)
elected = {r["question"]: max(candidates(gen, r), key=lambda s: closeness(s, r)) for r in rows}
model = AutoModelForCausalLM.from_pretrained("models/base").cuda()
adam = torch.optim.AdamW(model.parameters(), 1e-5)
for epoch, (q, a) in it.product(range(2), list(elected.items())):
    ids = tok(q + a + tok.eos_token, return_tensors="pt").input_ids.cuda()
    (nll := model(ids, labels=ids).loss).backward()
    adam.step(); adam.zero_grad()
    if random.random() < 0.01: print(epoch, nll.item())
model.save_pretrained("output/bon"); tok.save_pretrained("output/bon")
