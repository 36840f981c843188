import json
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM, AutoTokenizer


@dataclass
class Cfg:
    model: str = "models/base"
    pairs: str = "code/pairs.jsonl"
    lr: float = 5e-7
    beta: float = 0.1
    epochs: int = 1
    out: str = "output/dpo-hand"


def sequence_logp(model, tok, prompt, answer):
    p = tok(prompt, return_tensors="pt").input_ids
    full = tok(prompt + answer, return_tensors="pt").input_ids.to(model.device)
    logits = model(full).logits[0, :-1]
    logps = F.log_softmax(logits, -1)[torch.arange(full.size(1) - 1), full[0, 1:]]
    return logps[p.size(1) - 1 :].sum()


def main(cfg=Cfg()):
    tok = AutoTokenizer.from_pretrained(cfg.model)
    policy = AutoModelForCausalLM.from_pretrained(cfg.model).cuda()
    reference = AutoModelForCausalLM.from_pretrained(cfg.model).cuda().eval()
    opt = torch.optim.RMSprop(policy.parameters(), lr=cfg.lr)
    pairs = [json.loads(line) for line in open(cfg.pairs)]
    for epoch in range(cfg.epochs):
        for i, ex in enumerate(pairs):
            good = sequence_logp(policy, tok, ex["prompt"], ex["chosen"])
            bad = sequence_logp(policy, tok, ex["prompt"], ex["rejected"])
            with torch.no_grad():
                good_ref = sequence_logp(reference, tok, ex["prompt"], ex["chosen"])
                bad_ref = sequence_logp(reference, tok, ex["prompt"], ex["rejected"])
            margin = (good - good_ref) - (bad - bad_ref)
            loss = -F.logsigmoid(cfg.beta * margin)
            (loss / 8).backward()
            if (i + 1) % 8 == 0:
                opt.step()
                opt.zero_grad()
                print(f"{i}: loss {loss.item():.3f} margin {margin.item():.3f}")
    policy.save_pretrained(cfg.out)
    tok.save_pretrained(cfg.out)


main()
