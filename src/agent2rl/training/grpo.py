"""GRPO: the model attempts each question or game several times and learns from how the attempts compare.

The advantage of an attempt is its reward minus the mean of its group, in standard deviations of the group. A
group with equal rewards teaches nothing and is left out. Every attempt is used for one update and comes from
the policy that is updated (up to rounding). So the importance ratio is 1 and nothing is clipped. The loss is
the negative advantage times the log-probability, averaged over the tokens that the model generated, or over
the attempts. A KL penalty towards the initial model can be added.

This module has the training loop and questions; games, with episodes as attempts, are in `rollouts`.
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
    """Rounds of sampling and one update each."""
    seconds: float = math.inf
    """Time limit. The learning rate decays by the time that is left."""
    prompts: int = 16
    """Questions or games per step."""
    group: int = 8
    """Attempts at each."""
    pass_tokens: int = 4096
    """Tokens in one forward and backward pass, including prompts and padding."""
    max_tokens: int = 256
    """Limit for an answer. In games, the arena's sampling limits a turn."""
    temperature: float = 1.0
    level: bool = False
    """Whether all attempts have the same weight, whatever their length. If not, all tokens have."""
    kl: float = 0.0
    """Weight of the KL penalty towards the initial model."""
    seed: int = 0


@dataclass(frozen=True)
class GrpoResult:
    steps: int
    tokens: int
    """Number of sampled tokens."""
    seconds: float
    rewards: tuple[float, ...]
    """Mean reward of each step."""


@dataclass(frozen=True)
class GrpoRollout:
    """One attempt: an answer or an episode."""

    rows: tuple[TrainingSequence, ...]
    text: str = ""
    """The answer, for questions."""
    reward: float = 0.0
    """The reward of the environment, for episodes."""

    @property
    def tokens(self) -> int:
        return sum(row.count for row in self.rows)


@dataclass(frozen=True)
class RolloutJob:
    """The questions or games that one worker attempts."""

    asked: Sequence[int]
    places: Sequence[int]
    """Their positions among all of the step: attempts are the same however the work is shared."""
    seed: int


class RolloutSource(Protocol):
    """The questions or games to attempt."""

    def __len__(self) -> int: ...

    def attempt(self, trial: RolloutJob) -> list[list[GrpoRollout]]:
        """Return a group of attempts at each item of the job. Any worker process may call this."""
        ...

    def reward(self, index: int, attempt: GrpoRollout) -> float:
        """Return the reward of an attempt. Only the main process calls this."""
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
        sampling = SampleSettings(self.settings.max_tokens, self.settings.temperature, trial.seed)
        prompts = [self.prompts[i] for i in trial.asked]
        samples = self.sampler.sample(prompts, sampling, self.settings.group, trial.places)
        return [
            [
                GrpoRollout((TrainingSequence.from_answer(self.encoded[i], sample.tokens),), sample.text)
                for sample in group
            ]
            for i, group in zip(trial.asked, samples, strict=True)
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
    """Train the model in place. `reward(index, text)` returns the reward of an answer to a prompt."""
    questions = _QuestionRollouts(
        prompts, encode(tokenizer, prompts), reward, PolicySampler(model, tokenizer), settings
    )
    return improve(model, questions, settings, progress, look)


def improve(
    model: PreTrainedModel,
    practice: RolloutSource,
    settings: GrpoSettings,
    progress: TrainingProgress,
    look: Callable[[TrainingSchedule], None] | None = None,
) -> GrpoResult:
    """Train the model in place on its own attempts.

    `look` is called after each step but the last, to inspect or save the model; its time does not count.
    """
    if not len(practice) or settings.group < 2:
        raise UserError("GRPO needs at least one question or game, and at least two attempts at each.")
    reference = deepcopy(model).requires_grad_(False) if settings.kl else None
    order = _iterate_shuffled(len(practice), settings.seed)
    schedule = TrainingSchedule(settings.steps, settings.seconds)
    optimizer = ScheduledAdamW(model, settings.learning_rate)
    pass_tokens = limit_pass_tokens(model, settings.pass_tokens)

    def loss(part: Sequence[PromptGroup]) -> Tensor:
        return _compute_loss(model, reference, part, settings)

    rewards: list[float] = []
    with DataParallelWorkers(model, {"attempt": practice.attempt, "loss": loss}) as workers:
        while not schedule.over:
            indices = [next(order) for _ in range(min(settings.prompts, len(practice)))]
            rollouts = _collect_rollouts(workers, indices, _derive_step_seed(settings, schedule.steps))
            step_rewards = [
                [practice.reward(i, rollout) for rollout in group]
                for i, group in zip(indices, rollouts, strict=True)
            ]
            weighted = _weigh_by_advantage(rollouts, step_rewards, settings.level)
            token_count = sum(row.count for row, _ in weighted)
            parts = pack_microbatches(group_by_prompt(weighted), pass_tokens, workers.size)
            mean_loss = workers.accumulate_gradients("loss", parts) / max(1, token_count)
            if weighted:
                optimizer.step(schedule.share, 1 / token_count)
            schedule.finish_step()
            rewards.append(fmean(value for values in step_rewards for value in values))
            tokens = sum(rollout.tokens for group in rollouts for rollout in group)
            progress.record_step(
                schedule.steps, tokens, schedule.seconds_left, mean_loss if weighted else None, rewards[-1]
            )
            if look and not schedule.over:
                began = time.monotonic()
                look(schedule)
                for clock in (schedule, progress):
                    clock.exclude_seconds(time.monotonic() - began)
    return GrpoResult(schedule.steps, progress.tokens, schedule.seconds, tuple(rewards))


def _collect_rollouts(
    workers: DataParallelWorkers, indices: Sequence[int], seed: int
) -> list[list[GrpoRollout]]:
    """Attempt each question or game, shared among the workers."""
    shares = [range(start, len(indices), workers.size) for start in range(workers.size)]
    jobs = [RolloutJob([indices[place] for place in share], share, seed) for share in shares]
    results: list[list[list[GrpoRollout]]] = workers.map_jobs("attempt", jobs)
    return [results[place % workers.size][place // workers.size] for place in range(len(indices))]


def _weigh_by_advantage(
    rollouts: Sequence[Sequence[GrpoRollout]], rewards: Sequence[Sequence[float]], level: bool
) -> list[tuple[TrainingSequence, float]]:
    """Return the training sequences of groups with different rewards, each with its advantage."""
    weighted = [
        (rollout, advantage)
        for group, values in zip(rollouts, rewards, strict=True)
        if max(values) > min(values)
        for rollout, advantage in zip(group, _compute_advantages(values), strict=True)
        if rollout.tokens
    ]
    mean_tokens = fmean(rollout.tokens for rollout, _ in weighted) if weighted else 0.0
    return [
        (row, advantage * (mean_tokens / rollout.tokens if level else 1.0))
        for rollout, advantage in weighted
        for row in rollout.rows
    ]


def _iterate_shuffled(count: int, seed: int) -> Iterator[int]:
    """Yield all indices in random order, again and again in a new order."""
    generator = random.Random(seed)
    while True:
        yield from generator.sample(range(count), count)


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
    """Return the loss of some groups, summed over tokens."""
    log_probs, said, advantages = compute_weighted_log_probs(model, part, settings.temperature)
    losses = -advantages * log_probs
    if reference is not None:
        with torch.no_grad():
            reference_log_probs, _, _ = compute_weighted_log_probs(reference, part, settings.temperature)
        log_ratio = reference_log_probs - log_probs
        losses = losses + settings.kl * (log_ratio.exp() - log_ratio - 1)
    return (losses * said).sum()
