from __future__ import annotations

import functools
import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import optax
from transformers import AutoTokenizer, FlaxAutoModelForCausalLM

ROOT = pathlib.Path(".")


def batches(rows, size, rng):
    order = rng.permutation(len(rows))
    yield from (np.stack([rows[j] for j in order[k : k + size]]) for k in range(0, len(order) - size, size))


def objective(params, apply, tokens, pad):
    logits = apply(tokens[:, :-1], params=params).logits
    target = tokens[:, 1:]
    token_loss = optax.softmax_cross_entropy_with_integer_labels(logits, target)
    keep = (target != pad).astype(jnp.float32)
    return (token_loss * keep).sum() / keep.sum()


def make_step(apply, tx, pad):
    loss_fn = functools.partial(objective, apply=apply, pad=pad)

    @jax.jit
    def step(params, state, tokens):
        value, grads = jax.value_and_grad(lambda p: loss_fn(p, tokens=tokens))(params)
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state, value

    return step


def run(lr=3e-5, epochs=2, size=8):
    tok = AutoTokenizer.from_pretrained("models/base")
    net = FlaxAutoModelForCausalLM.from_pretrained("models/base")
    texts = [f"{r['question']}\n{r['answer']}" for r in map(json.loads, (ROOT / "data/train.jsonl").open())]
    rows = [np.array(tok(t, padding="max_length", truncation=True, max_length=256)["input_ids"]) for t in texts]
    tx = optax.adamw(lr)
    params, state = net.params, tx.init(net.params)
    step = make_step(net.__call__, tx, tok.pad_token_id)
    rng = np.random.default_rng(0)
    for epoch in range(epochs):
        for n, tokens in enumerate(batches(rows, size, rng)):
            params, state, value = step(params, state, tokens)
            if not n % 50:
                print(epoch, n, float(value))
    net.save_pretrained("output/flax", params=params)
    tok.save_pretrained("output/flax")


run()
