import json
import re
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from transformers import AutoTokenizer, FlaxAutoModelForCausalLM


class Rollout(NamedTuple):
    tokens: jax.Array
    start: int
    payoff: jax.Array


tok = AutoTokenizer.from_pretrained("models/base")
lm = FlaxAutoModelForCausalLM.from_pretrained("models/base")
tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-6))


def grade(reply, gold):
    hit = re.search(r"####\s*(-?\d+)", reply)
    return jnp.where(hit is not None and hit.group(1) == gold, 1.0, -0.1)


def collect(params, row, key, width=6):
    prompt = tok([row["question"]] * width, return_tensors="np")
    seqs = lm.generate(prompt["input_ids"], params=params, do_sample=True, prng_key=key, max_new_tokens=128).sequences
    start = prompt["input_ids"].shape[1]
    replies = tok.batch_decode(seqs[:, start:], skip_special_tokens=True)
    gold = row["answer"].rsplit("####", 1)[-1].strip()
    return Rollout(seqs, start, jnp.array([grade(r, gold) for r in replies]))


@jax.value_and_grad
def surrogate(params, ro):
    logp = jax.nn.log_softmax(lm(ro.tokens[:, :-1], params=params).logits)
    chosen = jnp.take_along_axis(logp, ro.tokens[:, 1:, None], axis=-1)[..., 0]
    others = (ro.payoff.sum() - ro.payoff) / (ro.payoff.size - 1)
    centred = ro.payoff - others
    return -(centred[:, None] * chosen[:, ro.start - 1 :]).mean()


params, state, key = lm.params, tx.init(lm.params), jax.random.PRNGKey(7)
rows = [json.loads(s) for s in open("data/train.jsonl")]
for it, row in enumerate(rows[:800]):
    key, sub = jax.random.split(key)
    loss, grads = surrogate(params, collect(params, row, sub))
    delta, state = tx.update(grads, state)
    params = optax.apply_updates(params, delta)
    if it % 20 == 0:
        print(f"{it=} {loss=}")
lm.save_pretrained("output/jax-pg", params=params)
tok.save_pretrained("output/jax-pg")
