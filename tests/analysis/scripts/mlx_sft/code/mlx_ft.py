import json

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
from mlx_lm import load
from mlx_lm.utils import save

model, tok = load("models/base")


def loss_fn(model, inputs, targets, lengths):
    logits = model(inputs).astype(mx.float32)
    mask = mx.arange(inputs.shape[1])[None, :] < lengths[:, None]
    ce = nn.losses.cross_entropy(logits, targets) * mask
    return ce.sum() / mask.sum()


step = nn.value_and_grad(model, loss_fn)
opt = optim.AdamW(learning_rate=1e-5)
for line in open("data/train.jsonl"):
    d = json.loads(line)
    ids = mx.array([tok.encode(d["question"] + "\n" + d["answer"])])
    value, grads = step(model, ids[:, :-1], ids[:, 1:], mx.array([ids.shape[1] - 1]))
    opt.update(model, grads)
    mx.eval(model.parameters(), opt.state)
save("output/mlx", "models/base", model, tok)
