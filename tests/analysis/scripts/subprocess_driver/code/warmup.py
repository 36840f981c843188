import click
import torch
from torch.optim import AdamW

from common import encode_pairs, load, save


@click.command()
@click.option("--target", required=True)
@click.option("--lr", default=2e-5, type=float)
def main(target, lr):
    model, tok = load("models/base")
    opt = AdamW(model.parameters(), lr=lr)
    for ids, labels in encode_pairs(tok):
        logits = model(ids).logits
        loss = torch.nn.CrossEntropyLoss(ignore_index=-100)(logits[0, :-1], labels[0, 1:])
        loss.backward()
        opt.step()
        opt.zero_grad()
    save(model, tok, target)


if __name__ == "__main__":
    main()
