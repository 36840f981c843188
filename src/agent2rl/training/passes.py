"""Rows of tokens as they go through the model: several in a pass, those of like length together.

SFT and GRPO differ in what a row weighs: 1, or its advantage. Rows that share a prompt are one group, whose
prompt is read once.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor
from transformers import PreTrainedModel

from agent2rl.training.crew import small
from agent2rl.training.policy import log_probs
from agent2rl.training.speech import Spoken, Tokens

FEW = 384
"""Tokens in a pass of a small model on a CPU: one game, or a few answers. It has nothing to gain from more of
them in one pass, and padding to lose."""


@dataclass(frozen=True)
class Group:
    """Rows that share a prompt, and what each weighs."""

    prompt: Tokens
    rows: Sequence[Spoken]
    weights: Sequence[float]

    @property
    def width(self) -> int:
        """Of its longest row."""
        return max(len(row.tokens) for row in self.rows)


def groups(rows: Iterable[tuple[Spoken, float]]) -> list[Group]:
    """By their prompts."""
    shared: dict[tuple[int, ...], list[tuple[Spoken, float]]] = {}
    for row, weight in rows:
        shared.setdefault(tuple(row.prompt), []).append((row, weight))
    return [
        Group(prompt, [row for row, _ in found], [weight for _, weight in found])
        for prompt, found in shared.items()
    ]


def most_tokens(model: PreTrainedModel, wanted: int) -> int:
    """In one pass: what is wanted, or what is fastest."""
    return min(wanted, FEW) if small(model) else wanted


def passes(groups: Sequence[Group], most: int, members: int) -> list[list[Group]]:
    """Groups to be passed through the model together: as many rows in each, at most so many tokens in all,
    padding counted, and something for every member where there is enough."""
    most = min(most, math.ceil(sum(_padded([group]) for group in groups) / members))
    parts = [part for group in groups for part in _divided(group, most)]
    found: list[list[Group]] = []
    for part in sorted(parts, key=lambda part: (len(part.rows), len(part.prompt) + part.width)):
        fits = found and len(found[-1][0].rows) == len(part.rows) and _padded([*found[-1], part]) <= most
        if not fits:
            found.append([])
        found[-1].append(part)
    return found


def _padded(groups: Sequence[Group]) -> int:
    prompts = len(groups) * max(len(group.prompt) for group in groups)
    return prompts + sum(len(group.rows) for group in groups) * max(group.width for group in groups)


def _divided(group: Group, most: int) -> Iterator[Group]:
    """Where a group is too much for one pass, its prompt is read more than once."""
    count = max(1, (most - len(group.prompt)) // group.width)
    if count >= len(group.rows):
        yield group
        return
    ranked = sorted(zip(group.rows, group.weights, strict=True), key=lambda pair: len(pair[0].tokens))
    while ranked:
        count = max(1, (most - len(group.prompt)) // len(ranked[-1][0].tokens))
        part, ranked = ranked[-count:], ranked[:-count]
        yield Group(group.prompt, [row for row, _ in part], [weight for _, weight in part])


def weighed(
    model: PreTrainedModel, groups: Sequence[Group], temperature: float = 1.0
) -> tuple[Tensor, Tensor, Tensor]:
    """Of a pass, a row for each of its rows: the log-probability of each token that the model said, which
    tokens those are, and what the row weighs."""
    every = [row for group in groups for row in group.rows]
    found, said = log_probs(
        model,
        [group.prompt for group in groups],
        [row.tokens for row in every],
        temperature,
        [row.said for row in every],
    )
    return found, said, found.new_tensor([[weight] for group in groups for weight in group.weights])
