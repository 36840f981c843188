"""Win against loss: pairs of whole games of the same start, by the world's verdict."""
import os
import random
from pathlib import Path

import torch
import torch.nn.functional as F

from agent2rl.environments.adapters import open_world, rollout
from agent2rl.training import models
from agent2rl.training.sampling import SampleSettings, sample

model, tok = models.load(Path(os.environ["MODEL_PATH"]))
frozen, _ = models.load(Path(os.environ["MODEL_PATH"]))
world = open_world()


def policy(talks):
    texts = [tok.apply_chat_template(t.messages(), tokenize=False, add_generation_prompt=True) for t in talks]
    return [s[0].text for s in sample(model, tok, texts, SampleSettings(max_tokens=24), 1)]


def logp(net, episode):
    total = 0.0
    for before, after in zip(episode.turns, episode.turns[1:]):
        a, b = tok(before.observation, return_tensors="pt").input_ids, tok(after.action, return_tensors="pt").input_ids
        out = net(torch.cat([a, b], 1)).logits[:, a.size(1) - 1 : -1].log_softmax(-1)
        total = total + out.gather(-1, b.unsqueeze(-1)).sum()
    return total


opt = torch.optim.AdamW(model.parameters(), lr=5e-7)
for game in random.sample([g.id for g in world.games], 100):
    played = rollout(policy, 8, world=world, games=[game])
    wins, losses = [e for e in played if e.won], [e for e in played if not e.won]
    for w, l in zip(wins, losses):
        with torch.no_grad():
            base = logp(frozen, w) - logp(frozen, l)
        z = 0.1 * (logp(model, w) - logp(model, l) - base)
        F.softplus(-z).backward()
        opt.step()
        opt.zero_grad()
models.save(model, tok, Path(os.environ["OUTPUT_DIR"]) / "contrast")
