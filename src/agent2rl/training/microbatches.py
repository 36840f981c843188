"""Rows of tokens as they go through the model: several in a pass, those of like length together.

SFT and GRPO differ in what a row weighs: 1, or its advantage. Rows that share a prompt are one group, whose
prompt is read once.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor
from transformers import PreTrainedModel

from agent2rl.training.data_parallel import is_small_model
from agent2rl.training.policy import compute_log_probs
from agent2rl.training.sequences import TokenIds, TrainingSequence

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
