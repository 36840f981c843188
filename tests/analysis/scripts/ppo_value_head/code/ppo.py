import dataclasses
import json
import random
import typing as t

import torch
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer


@dataclasses.dataclass(frozen=True)
class Hyper:
    lr: float = 1e-6
    clip_eps: float = 0.2
    gamma: float = 1.0
    gae_lambda: float = 0.95
    vf: float = 0.1
    iterations: int = 100
    minibatch: int = 16


class ActorCritic(nn.Module):
    def __init__(self, path):
        super().__init__()
        self.body = AutoModelForCausalLM.from_pretrained(path)
        self.head = nn.Linear(self.body.config.hidden_size, 1)

    def forward(self, ids):
        out = self.body(ids, output_hidden_states=True)
        return out.logits, self.head(out.hidden_states[-1]).squeeze(-1)


def gae(rewards, values, gamma, lam):
    acc, out = 0.0, []
    for r, v, nxt in zip(reversed(rewards), reversed(values), [0.0, *reversed(values)]):
        delta = r + gamma * nxt - v
        acc = delta + gamma * lam * acc
        out.append(acc)
    return out[::-1]


class PPO:
    def __init__(self, path: str, hp: Hyper):
        self.hp = hp
        self.tok = AutoTokenizer.from_pretrained(path)
        self.net = ActorCritic(path)
        self.optim = torch.optim.Adam(self.net.parameters(), lr=hp.lr)

    @torch.no_grad()
    def rollout(self, row) -> dict[str, t.Any]:
        q = self.tok(row["question"], return_tensors="pt").input_ids
        full = self.net.body.generate(q, do_sample=True, max_new_tokens=100)
        text = self.tok.decode(full[0, q.size(1):], skip_special_tokens=True)
        won = text.split("####")[-1].strip() == row["answer"].split("####")[-1].strip()
        logits, values = self.net(full)
        lp = logits[:, :-1].log_softmax(-1).gather(-1, full[:, 1:, None]).squeeze(-1)
        n = full.size(1) - q.size(1)
        rewards = [0.0] * (n - 1) + [float(won)]
        advs = gae(rewards, values[0, -n:].tolist(), self.hp.gamma, self.hp.gae_lambda)
        return dict(ids=full, n=n, old=lp[0, -n:], adv=torch.tensor(advs), ret=torch.tensor(advs) + values[0, -n:])

    def improve(self, batch):
        for b in batch:
            logits, values = self.net(b["ids"])
            new = logits[:, :-1].log_softmax(-1).gather(-1, b["ids"][:, 1:, None]).squeeze(-1)[0, -b["n"]:]
            rho = (new - b["old"]).exp()
            bound = rho.clamp(1 - self.hp.clip_eps, 1 + self.hp.clip_eps)
            pg = -torch.minimum(rho * b["adv"], bound * b["adv"]).mean()
            vf = (values[0, -b["n"]:] - b["ret"]).pow(2).mean()
            (pg + self.hp.vf * vf).backward()
        self.optim.step()
        self.optim.zero_grad(set_to_none=True)


def main():
    ppo = PPO("models/base", Hyper())
    rows = [json.loads(line) for line in open("data/train.jsonl")]
    for i in range(ppo.hp.iterations):
        ppo.improve([ppo.rollout(random.choice(rows)) for _ in range(ppo.hp.minibatch)])
    ppo.net.body.save_pretrained("output/ppo")
    ppo.tok.save_pretrained("output/ppo")


main()
