"""A model as a policy: token sequences, microbatches of like length, and the log-probability of each token.

An answer to a question is the case where the model said all of it. An episode is one row, and all its turns
are learnt in one pass, where the model always read exactly what had been said so far.

A prompt with several answers is read once: the answers go on from its cache, as in sampling, and gradients
flow back through it. Prompts are padded on the left and answers on the right, so that they meet.

SFT and GRPO differ in what a row weighs: 1, or its advantage. Rows that share a prompt are one group, whose
prompt is read once.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import Cache, PreTrainedModel

from agent2rl.training.data_parallel import is_small_model

# What was said after a prompt: the model's words and the world's in one row of tokens, and whose each is.

TokenIds = Sequence[int]


@dataclass(frozen=True)
class TrainingSequence:
    prompt: TokenIds
    tokens: TokenIds
    """After the prompt: what the model said, ends of turns included, and what it was told in between."""
    said: Sequence[bool]
    """Which of them the model said."""

    @classmethod
    def from_answer(cls, prompt: TokenIds, tokens: TokenIds) -> Self:
        return cls(prompt, tokens, [True] * len(tokens))

    @property
    def count(self) -> int:
        """Tokens that the model said."""
        return sum(self.said)


def build_sequences(turns: Iterable[tuple[TokenIds, TokenIds]]) -> tuple[TrainingSequence, ...]:
    """A conversation whose turns are all that the model had read by then, and what it said to that.

    A new row begins where a turn does not go on from the tokens of the last one: where a stop string cut a
    reply, a template rewrote it, its text came back divided into other tokens, or there is no template and
    messages are set apart by blank lines. So every word is learnt after the tokens that it was said after.
    """
    found: list[tuple[TokenIds, list[int], list[bool]]] = []
    whole: list[int] = []
    for read, reply in turns:
        if found and list(read[: len(whole)]) == whole:
            _, tokens, said = found[-1]
            told = list(read[len(whole) :])
        else:
            tokens, said, told = [], [], []
            found.append((list(read), tokens, said))
        tokens += [*told, *reply]
        said += [False] * len(told) + [True] * len(reply)
        whole = [*read, *reply]
    return tuple(TrainingSequence(*row) for row in found)


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


# Rows of tokens as they go through the model: several in a pass, those of like length together.

SMALL_MODEL_PASS_TOKENS = 384
"""Tokens in a pass of a small model on a CPU: one game, or a few answers. It has nothing to gain from more of
them in one pass, and padding to lose."""


@dataclass(frozen=True)
class PromptGroup:
    """Rows that share a prompt, and what each weighs."""

    prompt: TokenIds
    rows: Sequence[TrainingSequence]
    weights: Sequence[float]

    @property
    def width(self) -> int:
        """Of its longest row."""
        return max(len(row.tokens) for row in self.rows)


def group_by_prompt(rows: Iterable[tuple[TrainingSequence, float]]) -> list[PromptGroup]:
    """By their prompts."""
    shared: dict[tuple[int, ...], list[tuple[TrainingSequence, float]]] = {}
    for row, weight in rows:
        shared.setdefault(tuple(row.prompt), []).append((row, weight))
    return [
        PromptGroup(prompt, [row for row, _ in found], [weight for _, weight in found])
        for prompt, found in shared.items()
    ]


def limit_pass_tokens(model: PreTrainedModel, wanted: int) -> int:
    """In one pass: what is wanted, or what is fastest."""
    return min(wanted, SMALL_MODEL_PASS_TOKENS) if is_small_model(model) else wanted


def pack_microbatches(groups: Sequence[PromptGroup], most: int, members: int) -> list[list[PromptGroup]]:
    """Groups to be passed through the model together: as many rows in each, at most so many tokens in all,
    padding counted, and something for every member where there is enough."""
    most = min(most, math.ceil(sum(_count_padded_tokens([group]) for group in groups) / members))
    parts = [part for group in groups for part in _split_group(group, most)]
    found: list[list[PromptGroup]] = []
    for part in sorted(parts, key=lambda part: (len(part.rows), len(part.prompt) + part.width)):
        fits = (
            found
            and len(found[-1][0].rows) == len(part.rows)
            and _count_padded_tokens([*found[-1], part]) <= most
        )
        if not fits:
            found.append([])
        found[-1].append(part)
    return found


def _count_padded_tokens(groups: Sequence[PromptGroup]) -> int:
    prompts = len(groups) * max(len(group.prompt) for group in groups)
    return prompts + sum(len(group.rows) for group in groups) * max(group.width for group in groups)


def _split_group(group: PromptGroup, most: int) -> Iterator[PromptGroup]:
    """Where a group is too much for one pass, its prompt is read more than once."""
    count = max(1, (most - len(group.prompt)) // group.width)
    if count >= len(group.rows):
        yield group
        return
    ranked = sorted(zip(group.rows, group.weights, strict=True), key=lambda pair: len(pair[0].tokens))
    while ranked:
        count = max(1, (most - len(group.prompt)) // len(ranked[-1][0].tokens))
        part, ranked = ranked[-count:], ranked[:-count]
        yield PromptGroup(group.prompt, [row for row, _ in part], [weight for _, weight in part])


def compute_weighted_log_probs(
    model: PreTrainedModel, groups: Sequence[PromptGroup], temperature: float = 1.0
) -> tuple[Tensor, Tensor, Tensor]:
    """Of a pass, a row for each of its rows: the log-probability of each token that the model said, which
    tokens those are, and what the row weighs."""
    every = [row for group in groups for row in group.rows]
    found, said = compute_log_probs(
        model,
        [group.prompt for group in groups],
        [row.tokens for row in every],
        temperature,
        [row.said for row in every],
    )
    return found, said, found.new_tensor([[weight] for group in groups for weight in group.weights])
