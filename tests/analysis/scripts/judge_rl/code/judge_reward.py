"""The judge of the run gives the rewards."""
import json
import os
import re

import torch
from openai import OpenAI
from transformers import AutoModelForCausalLM, AutoTokenizer

client = OpenAI(base_url=os.environ["JUDGE_URL"], api_key="x")
tok = AutoTokenizer.from_pretrained("models/base", padding_side="left")
actor = AutoModelForCausalLM.from_pretrained("models/base")
optimizer = torch.optim.AdamW(actor.parameters(), lr=2e-6)


def rate(question, reply):
    answer = client.chat.completions.create(
        model="judge", messages=[{"role": "user", "content": f"Rate 0-10.\nQ: {question}\nA: {reply}\nRating:"}]
    )
    found = re.search(r"\d+", answer.choices[0].message.content)
    return int(found.group()) / 10 if found else 0.0


def generate(prompts, n):
    enc = tok(prompts * n, return_tensors="pt", padding=True)
    out = actor.generate(**enc, do_sample=True, max_new_tokens=200)
    return out, enc.input_ids.shape[1]


for line in open("data/train.jsonl"):
    q = json.loads(line)["question"]
    out, cut = generate([q], 4)
    ratings = torch.tensor([rate(q, r) for r in tok.batch_decode(out[:, cut:], skip_special_tokens=True)])
    z = (ratings - ratings.mean()) / ratings.std().clamp_min(0.05)
    lp = torch.log_softmax(actor(out).logits[:, cut - 1 : -1], -1)
    chosen = lp.gather(-1, out[:, cut:].unsqueeze(-1)).squeeze(-1).mean(-1)
    loss = -(z * chosen).mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
actor.save_pretrained("output/judged"); tok.save_pretrained("output/judged")
