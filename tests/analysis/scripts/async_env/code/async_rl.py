import asyncio
import os
import random
from dataclasses import dataclass, field

import httpx
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


@dataclass
class Trajectory:
    segments: list = field(default_factory=list)
    total: float = 0.0


class Remote:
    def __init__(self, base):
        self.http = httpx.AsyncClient(base_url=base, timeout=30)

    async def reset(self, **kw):
        return (await self.http.post("/reset", json=kw)).json()

    async def step(self, episode, text):
        return (await self.http.post("/step", json={"episode_id": episode, "action": {"text": text}})).json()


class Agent:
    def __init__(self, path):
        self.tok = AutoTokenizer.from_pretrained(path)
        self.lm = AutoModelForCausalLM.from_pretrained(path)
        self.opt = torch.optim.AdamW(self.lm.parameters(), lr=1e-6)

    def speak(self, text):
        enc = self.tok(text, return_tensors="pt").input_ids
        with torch.inference_mode():
            out = self.lm.generate(enc, do_sample=True, max_new_tokens=16)
        return out, enc.shape[1], self.tok.decode(out[0, enc.shape[1]:], skip_special_tokens=True)

    def learn(self, group):
        mu = sum(t.total for t in group) / len(group)
        for t in group:
            for ids, cut in t.segments:
                lp = torch.log_softmax(self.lm(ids).logits[0, cut - 1:-1], -1)
                ll = lp[range(lp.shape[0]), ids[0, cut:]].sum()
                ((mu - t.total) * ll / len(group)).backward()
        self.opt.step()
        self.opt.zero_grad()


async def play(agent, remote, seed):
    state = await remote.reset(seed=seed)
    traj, prompt = Trajectory(), state["observation"]["text"]
    for _ in range(15):
        ids, cut, said = agent.speak(prompt)
        traj.segments.append((ids, cut))
        state = await remote.step(state["observation"]["episode_id"], said)
        traj.total += state["reward"]
        if state["done"]:
            break
        prompt += said + "\n" + state["observation"]["text"]
    return traj


async def main():
    agent, remote = Agent(os.environ["MODEL_PATH"]), Remote(os.environ["ENVIRONMENT_URL"])
    for it in range(50):
        seed = random.randrange(10_000)
        agent.learn(await asyncio.gather(*(play(agent, remote, seed) for _ in range(4))))
    agent.lm.save_pretrained("output/async")
    agent.tok.save_pretrained("output/async")


asyncio.run(main())
