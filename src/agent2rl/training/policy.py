"""The model as a policy: token sequences, microbatches of similar length, and log-probabilities of tokens.

In an answer to a question, the model generated every token after the prompt. An episode is one row with
tokens of the model and of the environment; all its turns are learnt in one pass, if each turn continues the
tokens of the last one.

A prompt with several answers is read once: the answers continue from its KV cache, as in sampling, and
gradients flow back through it. Prompts are padded on the left and answers on the right, so that they meet.

SFT and GRPO differ in the weight of a row: 1, or its advantage. Rows with the same prompt form a group, and
the prompt of a group is read once.
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

# Training sequences: tokens of the model and of the environment after a prompt

TokenIds = Sequence[int]


@dataclass(frozen=True)
class TrainingSequence:
    prompt: TokenIds
    tokens: TokenIds
    """The tokens after the prompt: the model's replies with their end tokens, and the input in between."""
    said: Sequence[bool]
    """Which of them the model generated."""

    @classmethod
    def from_answer(cls, prompt: TokenIds, tokens: TokenIds) -> Self:
        return cls(prompt, tokens, [True] * len(tokens))

    @property
    def count(self) -> int:
        """Number of tokens that the model generated."""
        return sum(self.said)


def build_sequences(turns: Iterable[tuple[TokenIds, TokenIds]]) -> tuple[TrainingSequence, ...]:
    """Build the sequences of a conversation. A turn is all tokens read so far, and the tokens of the reply.

    A new row begins if a turn does not continue the tokens of the last one: because a stop string cut the
    reply, a template rewrote it, its text was tokenized differently, or there is no template and messages are
    separated by blank lines. So every token is learnt after exactly the tokens that it was generated after.
    """
    rows: list[tuple[TokenIds, list[int], list[bool]]] = []
    so_far: list[int] = []
    for read, reply in turns:
        if rows and list(read[: len(so_far)]) == so_far:
            _, tokens, said = rows[-1]
            inputs = list(read[len(so_far) :])
        else:
            tokens, said, inputs = [], [], []
            rows.append((list(read), tokens, said))
        tokens += [*inputs, *reply]
        said += [False] * len(inputs) + [True] * len(reply)
        so_far = [*read, *reply]
    return tuple(TrainingSequence(*row) for row in rows)


@dataclass(frozen=True)
class PrefilledPrompts:
    """The KV cache of prompts, and the logits of the next token."""

    logits: Tensor
    """Shape (rows, 1, vocabulary)."""
    cache: Cache
    mask: Tensor
    """Which positions of the cache are tokens: prompts are padded on the left."""


def prefill_prompts(model: PreTrainedModel, prompts: Sequence[TokenIds], times: int = 1) -> PrefilledPrompts:
    """Prefill the prompts; each becomes `times` consecutive rows."""
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
    """Return the log-probabilities of the answers' tokens, one row per answer, and which of them count.

    There must be the same number of answers for each prompt, in the order of the prompts. Only the tokens
    that the model `said` count, by default all. The others are input and get 0.
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
    """Return the logits for these columns of the answers: (rows, columns, vocabulary).

    The other columns, most of an episode, are only input and need no logits.
    """
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
    """Return the rows in one padded tensor, and its mask."""
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


# Microbatches: rows of similar length go through the model together

SMALL_MODEL_PASS_TOKENS = 384
"""Tokens in a pass of a small model on a CPU: one game, or a few answers. A larger pass would not be faster
and would add padding."""


@dataclass(frozen=True)
class PromptGroup:
    """Rows with the same prompt, and the weight of each."""

    prompt: TokenIds
    rows: Sequence[TrainingSequence]
    weights: Sequence[float]

    @property
    def width(self) -> int:
        """Length of the longest row."""
        return max(len(row.tokens) for row in self.rows)


def group_by_prompt(rows: Iterable[tuple[TrainingSequence, float]]) -> list[PromptGroup]:
    """Group weighted rows by their prompt."""
    by_prompt: dict[tuple[int, ...], list[tuple[TrainingSequence, float]]] = {}
    for row, weight in rows:
        by_prompt.setdefault(tuple(row.prompt), []).append((row, weight))
    return [
        PromptGroup(prompt, [row for row, _ in members], [weight for _, weight in members])
        for prompt, members in by_prompt.items()
    ]


def limit_pass_tokens(model: PreTrainedModel, wanted: int) -> int:
    """Return the tokens per pass: as requested, or less if that is faster."""
    return min(wanted, SMALL_MODEL_PASS_TOKENS) if is_small_model(model) else wanted


def pack_microbatches(groups: Sequence[PromptGroup], most: int, workers: int) -> list[list[PromptGroup]]:
    """Pack groups into microbatches of at most `most` tokens, including padding.

    All groups of a microbatch have the same number of rows. Every worker gets one if there are enough.
    """
    most = min(most, math.ceil(sum(_count_padded_tokens([group]) for group in groups) / workers))
    parts = [part for group in groups for part in _split_group(group, most)]
    batches: list[list[PromptGroup]] = []
    for part in sorted(parts, key=lambda part: (len(part.rows), len(part.prompt) + part.width)):
        fits = (
            batches
            and len(batches[-1][0].rows) == len(part.rows)
            and _count_padded_tokens([*batches[-1], part]) <= most
        )
        if not fits:
            batches.append([])
        batches[-1].append(part)
    return batches


def _count_padded_tokens(groups: Sequence[PromptGroup]) -> int:
    prompts = len(groups) * max(len(group.prompt) for group in groups)
    return prompts + sum(len(group.rows) for group in groups) * max(group.width for group in groups)


def _split_group(group: PromptGroup, most: int) -> Iterator[PromptGroup]:
    """Split a group that is too large for one pass; its prompt is then read more than once."""
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
    """Return the log-probabilities of one pass, which tokens the model generated, and the row weights."""
    rows = [row for group in groups for row in group.rows]
    log_probs, said = compute_log_probs(
        model,
        [group.prompt for group in groups],
        [row.tokens for row in rows],
        temperature,
        [row.said for row in rows],
    )
    return log_probs, said, log_probs.new_tensor([[weight] for group in groups for weight in group.weights])
