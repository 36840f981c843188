import json
import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM, AutoTokenizer

TEACHER = "output/big-sft"
STUDENT = "models/base"
T = 2.0

tok = AutoTokenizer.from_pretrained(STUDENT)
teacher = AutoModelForCausalLM.from_pretrained(TEACHER).eval().requires_grad_(False)
student = AutoModelForCausalLM.from_pretrained(STUDENT)
opt = torch.optim.AdamW(student.parameters(), lr=3e-5)
texts = [json.loads(l)["question"] for l in open("data/train.jsonl")]

for epoch in range(2):
    for i in range(0, len(texts), 4):
        batch = tok(texts[i:i + 4], return_tensors="pt", padding=True, truncation=True)
        with torch.no_grad():
            soft = F.softmax(teacher(**batch).logits / T, dim=-1)
        hard = F.log_softmax(student(**batch).logits / T, dim=-1)
        loss = F.kl_div(hard, soft, reduction="batchmean") * T * T
        loss.backward()
        opt.step()
        opt.zero_grad()
    print("epoch", epoch, float(loss))
student.save_pretrained("output/kd")
tok.save_pretrained("output/kd")
