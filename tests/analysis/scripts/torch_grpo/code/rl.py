# group relative policy optimisation, no framework
import json
import os
import random
import re

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

G = 8
STEPS = 200
LR = 5e-6
CLIP = 0.2
BETA = 0.01
device = "cuda"

base = os.environ.get("MODEL_PATH", "models/base")
tok = AutoTokenizer.from_pretrained(base, padding_side="left")
policy = AutoModelForCausalLM.from_pretrained(base, torch_dtype=torch.bfloat16).to(device)
ref = AutoModelForCausalLM.from_pretrained(base, torch_dtype=torch.bfloat16).to(device).eval()
optim = torch.optim.AdamW(policy.parameters(), lr=LR)
data = [json.loads(x) for x in open("data/train.jsonl")]


def last_number(s):
    nums = re.findall(r"-?\d+", s.replace(",", ""))
    return nums[-1] if nums else None


def reward_fn(text, gold):
    r = 0.0
    if last_number(text) == last_number(gold):
        r += 1.0
    if "####" in text:
        r += 0.1
    return r


def token_logps(model, seqs, mask):
    logits = model(seqs, attention_mask=mask).logits[:, :-1].float()
    logp = torch.log_softmax(logits, dim=-1)
    return logp.gather(2, seqs[:, 1:].unsqueeze(2)).squeeze(2)


for step in range(STEPS):
    ex = random.choice(data)
    enc = tok([ex["question"]] * G, return_tensors="pt", padding=True).to(device)
    with torch.no_grad():
        seqs = policy.generate(**enc, do_sample=True, temperature=1.0, max_new_tokens=256)
    plen = enc.input_ids.shape[1]
    texts = tok.batch_decode(seqs[:, plen:], skip_special_tokens=True)
    rewards = torch.tensor([reward_fn(t, ex["answer"]) for t in texts], device=device)
    if rewards.std() < 1e-6:
        continue
    adv = (rewards - rewards.mean()) / (rewards.std() + 1e-4)
    mask = (seqs != tok.pad_token_id).long()
    comp_mask = mask[:, 1:].clone()
    comp_mask[:, : plen - 1] = 0
    with torch.no_grad():
        old = token_logps(policy, seqs, mask)
        refp = token_logps(ref, seqs, mask)
    for _ in range(2):
        new = token_logps(policy, seqs, mask)
        ratio = (new - old).exp()
        s1 = ratio * adv.unsqueeze(1)
        s2 = ratio.clamp(1 - CLIP, 1 + CLIP) * adv.unsqueeze(1)
        kl = (refp - new).exp() - (refp - new) - 1
        per_tok = -torch.min(s1, s2) + BETA * kl
        loss = (per_tok * comp_mask).sum() / comp_mask.sum()
        optim.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optim.step()
    print(step, rewards.mean().item(), loss.item(), flush=True)

policy.save_pretrained("output/rl")
tok.save_pretrained("output/rl")
