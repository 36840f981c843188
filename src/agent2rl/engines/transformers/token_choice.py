"""Choose the next token of each row, independent of the batch and without the host.

Sampling adds Gumbel noise that is a function of the row's key, the step and the token. So the choice depends
on the text alone. If the best two sums are closer than float32 rounding, the choice is doubtful, and the
caller runs the row alone. bfloat16 rounds too coarsely for that and may differ across batches.
"""

import hashlib
from dataclasses import dataclass

import torch
from torch import Tensor

ROUNDING = 5e-5
"""Tolerance relative to the largest logit: over ten times the differences seen in float32."""
MIX = ((30, 0xBF58476D1CE4E5B9 - (1 << 64)), (27, 0x94D049BB133111EB - (1 << 64)), (31, 1))
"""The shifts and factors of SplitMix64, as signed numbers."""
TOKEN_STRIDE = 0x9E3779B9 - (1 << 32)
TOKEN_MIX = (0x7FEB352D, 0x846CA68B - (1 << 32))
"""The stride of tokens, and the factors that spread their bits: 32-bit numbers, as signed ones. A batch has a
random number for each token of the vocabulary, and with 64 bits they took a fifth of a decode step."""
STEP_STRIDE = 0x2545F4914F6CDD1D
"""An odd number, so that no two steps of a row have the same key."""
FRACTION = 23
"""Bits of a uniform number: odd multiples of 2**-24, which float32 represents exactly and never 0 or 1."""


@dataclass(frozen=True)
class TokenChoice:
    tokens: Tensor
    log_probs: Tensor
    """Of the tokens at this temperature; 0 if greedy, NaN if the model's output is not finite."""
    doubtful: Tensor | None
    """Where rounding could change the choice; None if this is not known."""


def choose_tokens(
    logits: Tensor,
    temperature: float | Tensor | None,
    keys: Tensor,
    steps: Tensor,
    offsets: Tensor | None = None,
) -> TokenChoice:
    """Choose one token for each row of logits; greedily if there is no temperature.

    `offsets` are those of `compute_token_offsets`, if the caller keeps them.
    """
    sharpened = logits.float()
    if temperature is None:
        scores = sharpened
    else:
        sharpened = sharpened / temperature
        if offsets is None:
            offsets = compute_token_offsets(logits.shape[1], logits.device)
        scores = compute_gumbel_noise(mix_bits(keys + steps * STEP_STRIDE), offsets).add_(sharpened)
    if logits.dtype == torch.float32:
        best = scores.topk(2)
        margin = ROUNDING * sharpened.abs().amax(dim=1)
        doubtful = best.values[:, 0] - best.values[:, 1] <= margin
        top, tokens = best.values[:, 0], best.indices[:, 0]
    else:
        doubtful = None
        top, tokens = scores.max(dim=1)
    log_probs = torch.zeros_like(top)
    if temperature is not None:
        log_probs = sharpened.gather(1, tokens[:, None])[:, 0] - sharpened.logsumexp(1)
    return TokenChoice(tokens, log_probs.where(top.isfinite(), torch.nan), doubtful)


def derive_noise_key(seed: str) -> int:
    """Return the key of a row's noise: 64 bits as a signed number."""
    return int.from_bytes(hashlib.blake2b(seed.encode(), digest_size=8).digest(), "big", signed=True)


def compute_token_offsets(size: int, device: torch.device) -> Tensor:
    """Return what each token of the vocabulary adds to the key of its noise, (size)."""
    return (torch.arange(1, size + 1, device=device) * TOKEN_STRIDE).int()


def compute_gumbel_noise(keys: Tensor, offsets: Tensor) -> Tensor:
    """Return standard Gumbel noise, (keys, offsets)."""
    bits = mix_token_bits(keys, offsets)
    uniform = bits.bitwise_and_((1 << FRACTION) - 1).float().add_(0.5).div_(1 << FRACTION)
    return uniform.log_().neg_().log_().neg_()


def mix_token_bits(keys: Tensor, offsets: Tensor) -> Tensor:
    """Return 32 random bits for each token of each row, (keys, offsets).

    The lower half of a key is added to the tokens' offsets. The upper half comes in after a first mixing, so
    that two rows whose lower halves are close do not share their numbers.
    """
    low, high = keys.int()[:, None], (keys >> 32).int()[:, None]
    bits = low + offsets
    # In place, because memory that is new in each of many small steps costs more than the arithmetic.
    bits.bitwise_xor_((bits >> 16).bitwise_and_(0xFFFF)).mul_(TOKEN_MIX[0]).bitwise_xor_(high)
    bits.bitwise_xor_((bits >> 15).bitwise_and_(0x1FFFF)).mul_(TOKEN_MIX[1])
    return bits.bitwise_xor_((bits >> 16).bitwise_and_(0xFFFF))


def mix_bits(bits: Tensor) -> Tensor:
    """Spread every bit of the keys over all bits, as SplitMix64 does."""
    for shift, factor in MIX:
        # The mask removes the signs that shifting a negative number brings in from the left.
        bits = (bits ^ (bits >> shift & (1 << 64 - shift) - 1)) * factor
    return bits
