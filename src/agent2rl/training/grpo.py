"""GRPO: the model tries each question or game several times, and learns from how its attempts compare.

An attempt's advantage is its reward against its group's, in the group's standard deviations; a group whose
attempts are all worth the same teaches nothing and is left out. Every attempt is used for one update and
comes from the policy that is updated (up to rounding), so the ratio of the two is 1, nothing is clipped, and
the loss is the advantage times the log-probability, averaged over the tokens that the model said, or over the
attempts. A penalty for leaving the first model can be added.

Questions are here; games, whose attempts are whole episodes, are in `rollouts`.
"""

import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import Protocol

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from agent2rl.core.errors import UserError
from agent2rl.training.data_parallel import DataParallelWorkers
from agent2rl.training.optimizer import ScheduledAdamW, TrainingSchedule
from agent2rl.training.policy import (
    PromptGroup,
    TrainingSequence,
    compute_weighted_log_probs,
    group_by_prompt,
    limit_pass_tokens,
    pack_microbatches,
)
from agent2rl.training.progress import TrainingProgress
from agent2rl.training.prompts import encode
from agent2rl.training.sampling import PolicySampler, SampleSettings


@dataclass(frozen=True)
class GrpoSettings:
    learning_rate: float = 1e-4
    steps: int = 100
    """Rounds of sampling and learning from it."""
    seconds: float = math.inf
    """Ends the training early; the learning rate comes down in time."""
    prompts: int = 16
    """Questions or games in a step."""
    group: int = 8
    """Attempts at each."""
    pass_tokens: int = 4096
    """In one pass forward and back, prompts and padding counted."""
    max_tokens: int = 256
    """Of an answer; in a game the world's rules say how long a turn may be."""
    temperature: float = 1.0
    level: bool = False
    """Whether all attempts weigh the same, however long they are; else all tokens do."""
    kl: float = 0.0
    """The weight of the penalty for leaving the model that training began with."""
    seed: int = 0


@dataclass(frozen=True)
class GrpoResult:
    steps: int
    tokens: int
    """Sampled."""
    seconds: float
    rewards: tuple[float, ...]
    """The mean of each step."""


@dataclass(frozen=True)
class GrpoRollout:
    """An answer, or an episode."""

    rows: tuple[TrainingSequence, ...]
    text: str = ""
    """What is to be rewarded, where that is a text."""
    reward: float = 0.0
    """Where what was tried in has said it."""

    @property
    def tokens(self) -> int:
        return sum(row.count for row in self.rows)


@dataclass(frozen=True)
class RolloutJob:
    """What one member of the crew is to try."""

    asked: Sequence[int]
    places: Sequence[int]
    """Of these among all that are asked in a step: attempts are the same however the work is shared."""
    seed: int


class RolloutSource(Protocol):
    """What is tried again and again: questions, or games."""

    def __len__(self) -> int: ...

    def attempt(self, trial: RolloutJob) -> list[list[GrpoRollout]]:
        """A group of attempts at each that is asked. Done by any member of the crew, in its own process."""
        ...

    def reward(self, index: int, attempt: GrpoRollout) -> float:
        """What an attempt is worth. Done by the caller."""
        ...


@dataclass(frozen=True)
class _QuestionRollouts:
    prompts: Sequence[str]
    encoded: Sequence[list[int]]
    worth: Callable[[int, str], float]
    sampler: PolicySampler
    settings: GrpoSettings

    def __len__(self) -> int:
        return len(self.prompts)

    def attempt(self, trial: RolloutJob) -> list[list[GrpoRollout]]:
        how = SampleSettings(self.settings.max_tokens, self.settings.temperature, trial.seed)
        asked = [self.prompts[i] for i in trial.asked]
        found = self.sampler.sample(asked, how, self.settings.group, trial.places)
        return [
            [
                GrpoRollout((TrainingSequence.from_answer(self.encoded[i], one.tokens),), one.text)
                for one in group
            ]
            for i, group in zip(trial.asked, found, strict=True)
        ]

    def reward(self, index: int, attempt: GrpoRollout) -> float:
        return self.worth(index, attempt.text)


def grpo(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[str],
    reward: Callable[[int, str], float],
    settings: GrpoSettings,
    progress: TrainingProgress,
    look: Callable[[TrainingSchedule], None] | None = None,
) -> GrpoResult:
    """Train the model in place. `reward(index, text)` is what a text is worth as the answer to a prompt."""
    asked = _QuestionRollouts(
        prompts, encode(tokenizer, prompts), reward, PolicySampler(model, tokenizer), settings
    )
    return improve(model, asked, settings, progress, look)


def improve(
    model: PreTrainedModel,
    practice: RolloutSource,
    settings: GrpoSettings,
    progress: TrainingProgress,
    look: Callable[[TrainingSchedule], None] | None = None,
) -> GrpoResult:
    """Train the model in place on its own attempts.

    `look` is called after each step but the last, to look at the model or save it; its time does not count.
    """
    if not len(practice) or settings.group < 2:
        raise UserError("GRPO needs something to try, and at least two attempts at each.")
    reference = deepcopy(model).requires_grad_(False) if settings.kl else None
    order = _iterate_shuffled(len(practice), settings.seed)
    course = TrainingSchedule(settings.steps, settings.seconds)
    descent = ScheduledAdamW(model, settings.learning_rate)
    room = limit_pass_tokens(model, settings.pass_tokens)

    def loss(part: Sequence[PromptGroup]) -> Tensor:
        return _compute_loss(model, reference, part, settings)

    rewards: list[float] = []
    with DataParallelWorkers(model, {"attempt": practice.attempt, "loss": loss}) as crew:
        while not course.over:
            asked = [next(order) for _ in range(min(settings.prompts, len(practice)))]
            tried = _collect_rollouts(crew, asked, _derive_step_seed(settings, course.steps))
            worth = [
                [practice.reward(i, one) for one in group] for i, group in zip(asked, tried, strict=True)
            ]
            found = _weigh_by_advantage(tried, worth, settings.level)
            learnt = sum(row.count for row, _ in found)
            parts = pack_microbatches(group_by_prompt(found), room, crew.size)
            lost = crew.accumulate_gradients("loss", parts) / max(1, learnt)
            if found:
                descent.step(course.share, 1 / learnt)
            course.finish_step()
            rewards.append(fmean(value for values in worth for value in values))
            tokens = sum(one.tokens for group in tried for one in group)
            progress.record_step(
                course.steps, tokens, course.seconds_left, lost if found else None, rewards[-1]
            )
            if look and not course.over:
                began = time.monotonic()
                look(course)
                for clock in (course, progress):
                    clock.exclude_seconds(time.monotonic() - began)
    return GrpoResult(course.steps, progress.tokens, course.seconds, tuple(rewards))


def _collect_rollouts(crew: DataParallelWorkers, asked: Sequence[int], seed: int) -> list[list[GrpoRollout]]:
    """The attempts at each that is asked, every member trying some."""
    shares = [range(start, len(asked), crew.size) for start in range(crew.size)]
    trials = [RolloutJob([asked[place] for place in share], share, seed) for share in shares]
    found: list[list[list[GrpoRollout]]] = crew.map_jobs("attempt", trials)
    return [found[place % crew.size][place // crew.size] for place in range(len(asked))]


def _weigh_by_advantage(
    tried: Sequence[Sequence[GrpoRollout]], worth: Sequence[Sequence[float]], level: bool
) -> list[tuple[TrainingSequence, float]]:
    """What can be learnt from: the rows of groups that differ in worth, each with its advantage."""
    found = [
        (one, advantage)
        for group, values in zip(tried, worth, strict=True)
        if max(values) > min(values)
        for one, advantage in zip(group, _compute_advantages(values), strict=True)
        if one.tokens
    ]
    usual = fmean(one.tokens for one, _ in found) if found else 0.0
    return [
        (row, advantage * (usual / one.tokens if level else 1.0))
        for one, advantage in found
        for row in one.rows
    ]


def _iterate_shuffled(count: int, seed: int) -> Iterator[int]:
    """Each once, in random order, again and again."""
    dice = random.Random(seed)
    while True:
        yield from dice.sample(range(count), count)


def _derive_step_seed(settings: GrpoSettings, step: int) -> int:
    return settings.seed * 1_000_003 + step


def _compute_advantages(rewards: Sequence[float]) -> list[float]:
    mean, spread = fmean(rewards), pstdev(rewards)
    return [(reward - mean) / (spread + 1e-6) for reward in rewards]


def _compute_loss(
    model: PreTrainedModel,
    reference: PreTrainedModel | None,
    part: Sequence[PromptGroup],
    settings: GrpoSettings,
) -> Tensor:
    """The sum over tokens."""
    now, said, advantages = compute_weighted_log_probs(model, part, settings.temperature)
    losses = -advantages * now
    if reference is not None:
        with torch.no_grad():
            then, _, _ = compute_weighted_log_probs(reference, part, settings.temperature)
        away = then - now
        losses = losses + settings.kl * (away.exp() - away - 1)
    return (losses * said).sum()
