import random

import click
import torch

from common import load, rows, save


def is_correct(text, row):
    return row["answer"].split("####")[1].strip() in text.split("####")[-1]


@click.command()
@click.option("--start")
@click.option("--target")
@click.option("--lr", default=1e-6)
@click.option("--steps", default=200)
def main(start, target, lr, steps):
    model, tok = load(start)
    opt = torch.optim.AdamW(model.parameters(), lr=lr)
    data = rows()
    baseline = 0.0
    for _ in range(steps):
        row = random.choice(data)
        q = tok(row["question"], return_tensors="pt").input_ids
        seq = model.generate(q, do_sample=True, max_new_tokens=120)
        r = 1.0 if is_correct(tok.decode(seq[0]), row) else 0.0
        baseline = 0.9 * baseline + 0.1 * r
        dist = torch.distributions.Categorical(logits=model(seq).logits[0, q.shape[1] - 1 : -1])
        objective = dist.log_prob(seq[0, q.shape[1] :]).sum() * (r - baseline)
        (-objective).backward()
        opt.step()
        opt.zero_grad()
    save(model, tok, target)


if __name__ == "__main__":
    main()
