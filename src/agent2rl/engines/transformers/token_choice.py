"""Choosing the next token, so that the choice depends on the text alone and not on the batch it is in.

Sampling adds Gumbel noise to the logits and takes the largest sum, which draws from the softmax. The noise is
a function of a key (who is asked, and at which step) and the token: no generator has a state that neighbours
could move, and a row gets the same noise on every device.

The logits of a row differ in their last bits with the shape of its batch. Where the best two sums are closer
than such rounding, the row is in doubt, and the caller decides by running it alone. bfloat16 rounds too
coarsely for that and is not promised to be the same across batches.
"""

import hashlib
from dataclasses import dataclass

import torch
from torch import Tensor

from agent2rl.core.errors import GradingError

ROUNDING = 5e-5
"""Of the largest logit: over ten times the differences seen in float32."""
MIX = ((30, 0xBF58476D1CE4E5B9 - (1 << 64)), (27, 0x94D049BB133111EB - (1 << 64)), (31, 1))
STRIDE = 0x9E3779B97F4A7C15 - (1 << 64)
"""The shifts, factors and stride of SplitMix64, as signed numbers."""
FRACTION = 23
"""Bits of a uniform number: odd multiples of 2**-24, so that float32 holds each exactly and never 0 or 1."""


@dataclass(frozen=True)
class TokenChoice:
    tokens: list[int]
    doubtful: list[bool]


def choose_tokens(logits: Tensor, temperature: float, keys: list[int]) -> TokenChoice:
    """One token for each row of logits."""
    if temperature <= 0:
        scores, scale = logits, 1.0
    else:
        noise = compute_gumbel_noise(torch.tensor(keys, device=logits.device), logits.shape[1])
        scores, scale = logits.float() / temperature + noise, 1 / temperature
    if logits.dtype == torch.float32:
        best = scores.topk(2)
        margin = ROUNDING * scale * logits.abs().amax(dim=1)
        doubtful = (best.values[:, 0] - best.values[:, 1] <= margin).tolist()
        top, tokens = best.values[:, 0], best.indices[:, 0]
    else:
        top, tokens = scores.max(dim=1)
        doubtful = [False] * len(tokens)
    if not bool(top.isfinite().all()):
        raise build_non_finite_error()
    return TokenChoice(tokens.tolist(), doubtful)


def build_non_finite_error() -> GradingError:
    return GradingError(
        "The model's output is not a number (NaN or infinity).",
        "Its weights hold such numbers, or values so large that they overflow: train with a lower rate.",
    )


def derive_noise_key(seed: str, step: int) -> int:
    """The key of a step's noise: any 64 bits, as a signed number."""
    digest = hashlib.blake2b(f"{seed}:{step}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


def compute_gumbel_noise(keys: Tensor, size: int) -> Tensor:
    """Standard Gumbel noise, (keys, size)."""
    bits = keys[:, None] + torch.arange(1, size + 1, device=keys.device) * STRIDE
    for shift, factor in MIX:
        bits = (bits ^ (bits >> shift & (1 << 64 - shift) - 1)) * factor
    uniform = ((bits & (1 << FRACTION) - 1).float() + 0.5) / (1 << FRACTION)
    return -(-uniform.log()).log()
