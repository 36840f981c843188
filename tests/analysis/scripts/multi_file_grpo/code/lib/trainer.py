import json
import random

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from .losses import clipped, group_advantages


def matches(text, row):
    return row["answer"].split("####")[-1].strip() == text.split("####")[-1].strip()


class Learner:
    def __init__(self, cfg):
        self.cfg = cfg
        self.tok = AutoTokenizer.from_pretrained(cfg.model, padding_side="left")
        self.model = AutoModelForCausalLM.from_pretrained(cfg.model)
        self.opt = torch.optim.Adam(self.model.parameters(), lr=cfg.lr)
        self.rows = [json.loads(l) for l in open(cfg.data)]

    def logps(self, ids):
        out = self.model(ids).logits[:, :-1].log_softmax(-1)
        return out.gather(-1, ids[:, 1:].unsqueeze(-1)).squeeze(-1)

    def run(self):
        for step in range(self.cfg.steps):
            rows = random.sample(self.rows, self.cfg.prompts)
            asked = [r for r in rows for _ in range(self.cfg.group)]
            enc = self.tok([r["question"] for r in asked], return_tensors="pt", padding=True)
            ids = self.model.generate(**enc, do_sample=True, max_new_tokens=self.cfg.max_new_tokens)
            width = enc.input_ids.size(1)
            said = self.tok.batch_decode(ids[:, width:], skip_special_tokens=True)
            scores = torch.tensor([float(matches(t, r)) for t, r in zip(said, asked)])
            adv = group_advantages(scores, self.cfg.group)
            mask = (ids[:, 1:] != self.tok.pad_token_id).float()
            mask[:, : width - 1] = 0
            before = self.logps(ids).detach()
            for _ in range(self.cfg.inner):
                loss = clipped(self.logps(ids), before, adv, mask, self.cfg.eps)
                self.opt.zero_grad()
                loss.backward()
                self.opt.step()
            print(json.dumps({"step": step, "reward": scores.mean().item(), "loss": loss.item()}))

    def save(self):
        self.model.save_pretrained(self.cfg.out)
        self.tok.save_pretrained(self.cfg.out)
