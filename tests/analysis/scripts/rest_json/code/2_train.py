import json

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

tok = AutoTokenizer.from_pretrained("models/base")
model = AutoModelForCausalLM.from_pretrained("models/base")
opt = torch.optim.AdamW(model.parameters(), lr=1e-5)
for item in json.load(open("code/good.json")):
    p = tok.apply_chat_template([{"role": "user", "content": item["q"]}], add_generation_prompt=True)
    a = tok.encode(item["a"]) + [tok.eos_token_id]
    ids = torch.tensor([p + a])
    lab = torch.tensor([[-100] * len(p) + a])
    loss = model(input_ids=ids, labels=lab).loss
    loss.backward()
    opt.step()
    opt.zero_grad()
model.save_pretrained("output/rest")
tok.save_pretrained("output/rest")
