from collections import deque

import torch
from torch.distributions import Categorical
from transformers import AutoModelForCausalLM, AutoTokenizer

from agent2rl.environments.adapters import Gyms

LANES, HORIZON = 8, 10
tok = AutoTokenizer.from_pretrained("models/base", padding_side="left")
net = AutoModelForCausalLM.from_pretrained("models/base")
opt = torch.optim.Adam(net.parameters(), lr=5e-7)
VERBS = ["look", "inventory", "go north", "go south", "take key", "open door"]
HEADS = torch.tensor([tok(v).input_ids[0] for v in VERBS])


def distribution(observations):
    enc = tok(observations, return_tensors="pt", padding=True)
    return Categorical(logits=net(**enc).logits[:, -1, HEADS])


gyms = Gyms(LANES, seed=0)
seen, _ = gyms.reset()
history = deque(maxlen=100)
for update in range(300):
    logps, rewards = [], []
    for _ in range(HORIZON):
        pi = distribution(seen)
        a = pi.sample()
        seen, r, term, trunc, infos = gyms.step([VERBS[i] for i in a.tolist()])
        logps.append(pi.log_prob(a))
        rewards.append(torch.tensor(r))
    running, targets = torch.zeros(LANES), []
    for r in reversed(rewards):
        running = r + 0.99 * running
        targets.insert(0, running)
    G = torch.stack(targets)
    loss = -(torch.stack(logps) * (G - G.mean())).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    history.append(float(G.mean()))
    if update % 100 == 99:
        net.save_pretrained(f"output/a2c/{update + 1}")
        tok.save_pretrained(f"output/a2c/{update + 1}")
