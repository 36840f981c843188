"""A model as a policy: how likely it is to say what it said, one log-probability a token.

A prompt with several answers is read once: the answers go on from its cache, as in sampling, and gradients
flow back through it. Prompts are padded on the left and answers on the right, so that they meet.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import Cache, PreTrainedModel

from agent2rl.training.sequences import TokenIds


@dataclass(frozen=True)
class PrefilledPrompts:
    """Prompts that the model has read, and what it needs to go on."""

    logits: Tensor
    """What may come next: (rows, 1, vocabulary)."""
    cache: Cache
    mask: Tensor
    """Which positions of the cache are tokens: prompts are padded on the left."""


def prefill_prompts(model: PreTrainedModel, prompts: Sequence[TokenIds], times: int = 1) -> PrefilledPrompts:
    """Read the prompts; each becomes `times` rows, one after the other."""
    ids, mask = _pad_rows(model, prompts, left=True)
    out = model(
        input_ids=ids,
        attention_mask=mask,
        position_ids=_compute_position_ids(mask),
        use_cache=True,
        logits_to_keep=1,
    )
    cache = out.past_key_values
    if times > 1:
        cache.batch_repeat_interleave(times)
    return PrefilledPrompts(out.logits.repeat_interleave(times, 0), cache, mask.repeat_interleave(times, 0))


def compute_log_probs(
    model: PreTrainedModel,
    prompts: Sequence[TokenIds],
    answers: Sequence[TokenIds],
    temperature: float = 1.0,
    said: Sequence[Sequence[bool]] | None = None,
) -> tuple[Tensor, Tensor]:
    """Of each answer's tokens, a row for each answer, and which of them count; the same number of answers for
    each prompt, in the order of the prompts.

    Those count that the model `said`, by default all. The others it only reads: theirs are given as 0.
    """
    ids, real = _pad_rows(model, answers, left=False)
    counted = real if said is None else _pad_rows(model, said, left=False)[0]
    places = counted.bool()
    columns = places.any(0).nonzero()[:, 0]
    shared = len(answers) > len(prompts)
    logits = (_logits_after_prefill if shared else _logits_in_one_pass)(model, prompts, ids, real, columns)
    losses = cross_entropy(logits[places[:, columns]] / temperature, ids[places], reduction="none")
    return logits.new_zeros(ids.shape).masked_scatter(places, -losses), counted


def _logits_in_one_pass(
    model: PreTrainedModel, prompts: Sequence[TokenIds], ids: Tensor, real: Tensor, columns: Tensor
) -> Tensor:
    """What may stand in these columns of the answers: (rows, columns, vocabulary). The others, most of an
    episode, are read only, and need no logits."""
    before, mask = _pad_rows(model, prompts, left=True)
    mask = torch.cat([mask, real[:, :-1]], 1)
    out = model(
        input_ids=torch.cat([before, ids[:, :-1]], 1),
        attention_mask=mask,
        position_ids=_compute_position_ids(mask),
        use_cache=False,
        logits_to_keep=before.shape[1] - 1 + columns,
    )
    logits: Tensor = out.logits
    return logits


def _logits_after_prefill(
    model: PreTrainedModel, prompts: Sequence[TokenIds], ids: Tensor, real: Tensor, columns: Tensor
) -> Tensor:
    reading = prefill_prompts(model, prompts, len(ids) // len(prompts))
    first, later = columns[columns == 0], columns[columns > 0]
    if not len(later):
        return reading.logits[:, first]
    mask = torch.cat([reading.mask, real[:, :-1]], 1)
    out = model(
        input_ids=ids[:, :-1],
        attention_mask=mask,
        position_ids=_compute_position_ids(mask)[:, reading.mask.shape[1] :],
        past_key_values=reading.cache,
        logits_to_keep=later - 1,
    )
    return torch.cat([reading.logits[:, first], out.logits], 1)


def _pad_rows(model: PreTrainedModel, rows: Sequence[Sequence[int]], left: bool) -> tuple[Tensor, Tensor]:
    """The rows in one tensor, and where in it tokens are."""
    width = max(map(len, rows))
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for number, row in enumerate(rows):
        place = slice(width - len(row), None) if left else slice(len(row))
        ids[number, place] = torch.tensor(row)
        mask[number, place] = 1
    return ids.to(model.device), mask.to(model.device)


def _compute_position_ids(mask: Tensor) -> Tensor:
    return (mask.cumsum(1) - 1).clamp(min=0)
