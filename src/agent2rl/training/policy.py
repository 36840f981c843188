"""The model as a policy: token sequences, microbatches, and log-probabilities of the generated tokens.

In an answer to a question, the model generated every token after the prompt. An episode is one row with
tokens of the model and of the environment; all its turns are learnt in one pass, if each turn continues the
tokens of the last one.

A pass reads packed rows: there is no padding. On CPU a prompt with several answers is read once, and
gradients flow back through it. On a GPU every row has its own copy of the prompt, because the flash kernel
has no shared ones, and the pass runs in bfloat16 (the weights and their updates stay in float32).

SFT and GRPO differ in the weight of a row: 1, or its advantage. Rows with the same prompt form a group.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel

from agent2rl.engines.transformers.attention import PackedSequences
from agent2rl.engines.transformers.forked_workers import is_small_model
from agent2rl.engines.transformers.forward_pass import call_packed_network

# Training sequences: tokens of the model and of the environment after a prompt

TokenIds = Sequence[int]


@dataclass(frozen=True)
class TrainingSequence:
    prompt: TokenIds
    tokens: TokenIds
    """The tokens after the prompt: the model's replies with their end tokens, and the input in between."""
    generated: Sequence[bool]
    """Which of them the model generated."""
    log_probs: Sequence[float] = field(default=(), compare=False)
    """The log-probabilities of those that it generated, when it did; empty if they are not known."""

    @classmethod
    def from_answer(cls, prompt: TokenIds, tokens: TokenIds, log_probs: Sequence[float] = ()) -> Self:
        return cls(prompt, tokens, [True] * len(tokens), log_probs)

    @property
    def count(self) -> int:
        """Number of tokens that the model generated."""
        return sum(self.generated)


def build_sequences(
    turns: Iterable[tuple[TokenIds, TokenIds] | tuple[TokenIds, TokenIds, Sequence[float]]],
) -> tuple[TrainingSequence, ...]:
    """Build the sequences of a conversation.

    A turn is all tokens read so far, the tokens of the reply and, if they are known, their log-probabilities.
    A new row begins if a turn does not continue the tokens of the last one: because a stop string cut the
    reply, a template rewrote it, its text was tokenized differently, or there is no template and messages are
    separated by blank lines. So every token is learnt after exactly the tokens that it was generated after.
    """
    rows: list[tuple[TokenIds, list[int], list[bool], list[float]]] = []
    so_far: list[int] = []
    for read, reply, *known in turns:
        if rows and list(read[: len(so_far)]) == so_far:
            _, tokens, generated, log_probs = rows[-1]
            inputs = list(read[len(so_far) :])
        else:
            tokens, generated, log_probs, inputs = [], [], [], []
            rows.append((list(read), tokens, generated, log_probs))
        tokens += [*inputs, *reply]
        generated += [False] * len(inputs) + [True] * len(reply)
        log_probs += known[0] if known else ()
        so_far = [*read, *reply]
    return tuple(TrainingSequence(*row) for row in rows)


# Microbatches: rows that go through the model together


@dataclass(frozen=True)
class PromptGroup:
    """Rows with the same prompt, and the weight of each."""

    prompt: TokenIds
    rows: Sequence[TrainingSequence]
    weights: Sequence[float]

    def count_tokens(self, share_prompt: bool) -> int:
        """Return the tokens that a pass over the group reads."""
        prompts = 1 if share_prompt else len(self.rows)
        return prompts * len(self.prompt) + sum(len(row.tokens) for row in self.rows)


def group_by_prompt(rows: Iterable[tuple[TrainingSequence, float]]) -> list[PromptGroup]:
    """Group weighted rows by their prompt."""
    by_prompt: dict[tuple[int, ...], list[tuple[TrainingSequence, float]]] = {}
    for row, weight in rows:
        by_prompt.setdefault(tuple(row.prompt), []).append((row, weight))
    return [
        PromptGroup(prompt, [row for row, _ in members], [weight for _, weight in members])
        for prompt, members in by_prompt.items()
    ]


SMALL_MODEL_PASS_TOKENS = 1024
"""Tokens in a pass of a small model on a CPU; a larger one is no faster, and work is shared less well."""
CPU_PASS_TOKENS = 4096
MAX_GPU_PASS_TOKENS = 65536
GPU_MEMORY_SHARE = 0.5
"""The share of the free memory that the activations of a pass may take."""


def choose_pass_tokens(model: PreTrainedModel) -> int:
    """Return the tokens per pass that suit the machine."""
    if model.device.type == "cpu":
        return SMALL_MODEL_PASS_TOKENS if is_small_model(model) else CPU_PASS_TOKENS
    config = model.config.get_text_config()
    # About what a layer keeps for its backward pass in 16 bits, and below the logits and their
    # gradient in 32.
    width = 24 * config.hidden_size + 8 * (
        getattr(config, "intermediate_size", None) or 4 * config.hidden_size
    )
    token_bytes = 2 * config.num_hidden_layers * width + 8 * config.vocab_size
    free, _ = torch.cuda.mem_get_info()
    # What torch holds and does not use is free for it too.
    free += torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    return max(2048, min(MAX_GPU_PASS_TOKENS, int(free * GPU_MEMORY_SHARE / token_bytes)))


def shares_prompts(model: PreTrainedModel) -> bool:
    """Return whether a prompt with several rows is read once."""
    return model.device.type == "cpu"


def pack_microbatches(
    groups: Sequence[PromptGroup], most: int, workers: int = 1, share_prompts: bool = True
) -> list[list[list[PromptGroup]]]:
    """Return the microbatches of each worker, of at most `most` tokens each.

    Every worker gets about the same number of tokens, if there are enough rows. The first one updates the
    weights while the others wait, so its share is the smallest.
    """
    total = sum(group.count_tokens(share_prompts) for group in groups)
    rounds = math.ceil(total / (most * workers)) if total else 0
    fair = min(most, math.ceil(total / (rounds * workers))) if rounds else most
    parts = [part for group in groups for part in _split_group(group, fair, share_prompts)]
    sizes = {id(part): part.count_tokens(share_prompts) for part in parts}
    parts.sort(key=lambda part: sizes[id(part)], reverse=True)
    shares = _spread_parts(parts, sizes, workers)
    shares.sort(key=lambda share: sum(sizes[id(part)] for part in share))
    return [
        [batch for batch in _spread_parts(share, sizes, rounds, most) if batch] if share else []
        for share in shares
    ]


def _spread_parts(
    parts: Sequence[PromptGroup], sizes: Mapping[int, int], count: int, most: int | None = None
) -> list[list[PromptGroup]]:
    """Put each part, the largest first, into the emptiest of `count` batches, or into a further one if it
    does not fit."""
    batches: list[list[PromptGroup]] = [[] for _ in range(count)]
    filled = [0] * count
    for part in parts:
        size = sizes[id(part)]
        emptiest = min(range(len(batches)), key=filled.__getitem__)
        if most is not None and batches[emptiest] and filled[emptiest] + size > most:
            emptiest = len(batches)
            batches.append([])
            filled.append(0)
        batches[emptiest].append(part)
        filled[emptiest] += size
    return batches


def _split_group(group: PromptGroup, most: int, share_prompts: bool) -> Iterator[PromptGroup]:
    """Split a group that is too large for one pass; its prompt is then read more than once."""
    if group.count_tokens(share_prompts) <= most or len(group.rows) == 1:
        yield group
        return
    middle = len(group.rows) // 2
    for place in (slice(middle), slice(middle, None)):
        half = PromptGroup(group.prompt, group.rows[place], group.weights[place])
        yield from _split_group(half, most, share_prompts)


# Log-probabilities


@dataclass(frozen=True)
class WeightedTokens:
    """The generated tokens of a pass, row by row, as flat tensors."""

    log_probs: Tensor
    weights: Tensor
    """The weight of each token's row."""
    sampled_log_probs: Tensor | None
    """The log-probabilities when the tokens were sampled; None if they are not known."""


def compute_weighted_log_probs(
    model: PreTrainedModel, groups: Sequence[PromptGroup], temperature: float = 1.0
) -> WeightedTokens:
    """Run one pass over the rows of these groups."""
    rows = [row for group in groups for row in group.rows]
    log_probs = compute_log_probs(model, groups, temperature)
    counts = torch.tensor([row.count for row in rows], device=model.device)
    weights = log_probs.new_tensor([weight for group in groups for weight in group.weights])
    known = all(len(row.log_probs) == row.count for row in rows)
    sampled = [value for row in rows for value in row.log_probs] if known else None
    return WeightedTokens(
        log_probs,
        weights.repeat_interleave(counts),
        None if sampled is None else log_probs.new_tensor(sampled),
    )


def compute_log_probs(
    model: PreTrainedModel, groups: Sequence[PromptGroup], temperature: float = 1.0
) -> Tensor:
    """Return the log-probabilities of the tokens that the model generated, row by row, in one flat tensor."""
    packed = _pack_rows(groups, shares_prompts(model))
    device = model.device
    rows = PackedSequences(packed.counts, device, packed.prompts)
    ids = torch.tensor(packed.ids, device=device)
    keep = torch.tensor(packed.keep, device=device)
    with torch.autocast("cuda", torch.bfloat16, enabled=device.type == "cuda"):
        logits = call_packed_network(model, ids, rows.positions, rows, None, keep)
    targets = torch.tensor(packed.targets, device=device)
    return -cross_entropy(logits.float() / temperature, targets, reduction="none")


@dataclass
class _PackedPass:
    ids: list[int]
    counts: list[int]
    prompts: list[int | None]
    keep: list[int]
    """Positions, in the whole pass, whose logits predict generated tokens."""
    targets: list[int]


def _pack_rows(groups: Sequence[PromptGroup], share_prompts: bool) -> _PackedPass:
    packed = _PackedPass([], [], [], [], [])
    for group in groups:
        prompt_text = None
        for row in group.rows:
            if prompt_text is None or not share_prompts:
                prompt_text = len(packed.counts)
                packed.ids += group.prompt
                packed.counts.append(len(group.prompt))
                packed.prompts.append(None)
                last_of_prompt = len(packed.ids) - 1
            first = len(packed.ids)
            # Nothing follows the last token, so nobody needs what it predicts.
            fed = row.tokens[:-1]
            packed.ids += fed
            if not share_prompts:
                packed.counts[-1] += len(fed)
            elif fed:
                packed.counts.append(len(fed))
                packed.prompts.append(prompt_text)
            for place, (token, generated) in enumerate(zip(row.tokens, row.generated, strict=True)):
                if generated:
                    packed.keep.append(first + place - 1 if place else last_of_prompt)
                    packed.targets.append(token)
    return packed
