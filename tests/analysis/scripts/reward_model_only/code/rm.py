"""Train a reward model; the policy itself is submitted later."""
import json

import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

tok = AutoTokenizer.from_pretrained("models/base")
rm = AutoModelForSequenceClassification.from_pretrained("models/base", num_labels=1)
opt = torch.optim.AdamW(rm.parameters(), lr=1e-5)
pairs = [json.loads(l) for l in open("code/pairs.jsonl")]
for epoch in range(1):
    for pair in pairs:
        good = rm(**tok(pair["prompt"] + pair["chosen"], return_tensors="pt")).logits
        bad = rm(**tok(pair["prompt"] + pair["rejected"], return_tensors="pt")).logits
        loss = -F.logsigmoid(good - bad).mean()
        loss.backward()
        opt.step()
        opt.zero_grad()
rm.save_pretrained("code/rm")
# then imitate the given answers
model = AutoModelForCausalLM.from_pretrained("models/base")
opt = torch.optim.AdamW(model.parameters(), lr=2e-5)
for line in open("data/train.jsonl"):
    row = json.loads(line)
    enc = tok(row["question"] + "\n" + row["answer"], return_tensors="pt")
    loss = model(**enc, labels=enc["input_ids"]).loss
    loss.backward()
    opt.step()
    opt.zero_grad()
model.save_pretrained("output/policy")
tok.save_pretrained("output/policy")
