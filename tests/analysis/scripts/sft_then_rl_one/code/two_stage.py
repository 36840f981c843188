import enum
import json
import random
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


class Stage(enum.Enum):
    CLONE = "clone"
    REINFORCE = "reinforce"


class Run:
    plan = [Stage.CLONE, Stage.REINFORCE]

    def __init__(self, base, out):
        self.tok = AutoTokenizer.from_pretrained(base)
        self.lm = AutoModelForCausalLM.from_pretrained(base)
        self.out = Path(out)
        self.rows = [json.loads(s) for s in Path("data/train.jsonl").read_text().split("\n") if s]

    def go(self):
        for stage in self.plan:
            getattr(self, stage.value)()
            self.lm.save_pretrained(self.out / stage.value)
            self.tok.save_pretrained(self.out / stage.value)

    def clone(self):
        opt = torch.optim.AdamW(self.lm.parameters(), lr=1e-5)
        for row in self.rows:
            enc = self.tok(row["question"] + row["answer"], return_tensors="pt")
            self.lm(**enc, labels=enc["input_ids"]).loss.backward()
            opt.step()
            opt.zero_grad()

    def reinforce(self):
        opt = torch.optim.AdamW(self.lm.parameters(), lr=1e-6)
        for row in random.sample(self.rows, 300):
            q = self.tok(row["question"], return_tensors="pt")["input_ids"]
            y = self.lm.generate(q, do_sample=True, max_new_tokens=80)
            said = self.tok.decode(y[0, q.size(1):])
            score = float(said.strip() == row["answer"].strip()) - 0.5
            lp = self.lm(y).logits[0, q.size(1) - 1:-1].log_softmax(-1)
            chosen = lp[torch.arange(lp.size(0)), y[0, q.size(1):]]
            (-(score * chosen.sum())).backward()
            opt.step()
            opt.zero_grad()


if __name__ == "__main__":
    Run("models/base", "output").go()
