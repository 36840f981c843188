import json
import os
import urllib.request

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

URL = os.environ["ENVIRONMENT_URL"]
tok = AutoTokenizer.from_pretrained(os.environ["MODEL_PATH"])
model = AutoModelForCausalLM.from_pretrained(os.environ["MODEL_PATH"])
opt = torch.optim.SGD(model.parameters(), lr=1e-4)


def ask(path, body):
    req = urllib.request.Request(URL + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(req) as response:
        return json.load(response)


def play(seed):
    first = ask("/reset", {"seed": seed})
    episode, text, trail = first["observation"]["episode_id"], first["observation"]["text"], []
    for _ in range(12):
        ids = tok(text + "\n> ", return_tensors="pt").input_ids
        out = model.generate(ids, do_sample=True, max_new_tokens=12)
        action = tok.decode(out[0, ids.shape[1]:], skip_special_tokens=True)
        answer = ask("/step", {"action": {"text": action}, "episode_id": episode})
        trail.append((ids, out))
        text = answer["observation"]["text"]
        if answer["done"]:
            return trail, answer["reward"]
    return trail, 0.0


mean = 0.0
for seed in range(400):
    trail, ret = play(seed)
    mean = 0.95 * mean + 0.05 * ret
    total = 0.0
    for ids, out in trail:
        logits = model(out).logits[:, ids.shape[1] - 1:-1]
        picked = logits.log_softmax(-1).gather(-1, out[:, ids.shape[1]:, None])
        total = total - (ret - mean) * picked.sum()
    opt.zero_grad()
    total.backward()
    opt.step()
    print(seed, ret)
model.save_pretrained(os.environ["OUTPUT_DIR"] + "/online")
tok.save_pretrained(os.environ["OUTPUT_DIR"] + "/online")
