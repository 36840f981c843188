"""GRPO: the model attempts each question or game several times and learns from how the attempts compare.

The advantage of an attempt is its reward minus the mean of its group, in standard deviations of the group. A
group with equal rewards teaches nothing and is left out. The attempts of a step are learnt in several
updates. After the first, they no longer come from the policy that is updated; on a GPU the sampler also
rounds differently. So a token's advantage is multiplied by how much more likely the token is now than when it
was sampled, and has no effect once that ratio has left a range that is wider upwards than downwards. The loss
is averaged over the tokens that the model generated, or over the attempts. A KL penalty towards the initial
model can be added. What each of these is worth is in docs/design/training.md.

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
    choose_pass_tokens,
    compute_log_probs,
    compute_weighted_log_probs,
    group_by_prompt,
    pack_microbatches,
    shares_prompts,
)
from agent2rl.training.progress import TrainingProgress
from agent2rl.training.prompts import encode
from agent2rl.training.sampling import PolicySampler, SampleSettings


@dataclass(frozen=True)
class GrpoSettings:
    learning_rate: float = 1e-4
    steps: int = 100
    """Rounds of sampling."""
    seconds: float = math.inf
    """Time limit. The learning rate decays by the time that is left."""
    hold_share: float = 0.0
    """The share of the training for which the learning rate stays at its peak before it decays."""
    prompts: int = 16
    """Questions or games per step."""
    group: int = 8
    """Attempts at each."""
    updates: int = 1
    """Updates per step: its groups are dealt out to so many batches."""
    resample: int = 0
    """How often a step samples further questions or games in place of those whose attempts all have the same
    reward."""
    learned_attempts: int | None = None
    """Attempts of each group that are learnt, those with the most different rewards; None for all."""
    clip_low: float = 0.2
    clip_high: float = 0.28
    """A token has no effect once it is less likely by the one share, or more likely by the other, than when
    it was sampled, and its advantage would drive it further."""
    pass_tokens: int | None = None
    """Tokens in one forward and backward pass, including prompts; by default what suits the machine."""
    max_tokens: int = 256
    """Limit for an answer. In games, the setup's sampling limits a turn."""
    temperature: float = 1.0
    average_by_attempt: bool = False
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
    won: bool = False
    """Whether the environment says that the episode was won."""

    @property
    def tokens(self) -> int:
        return sum(row.count for row in self.rows)


@dataclass(frozen=True)
class RolloutJob:
    """The questions or games that one worker attempts."""

    indices: Sequence[int]
    positions: Sequence[int]
    """Their positions among all of the step: attempts are the same however the work is shared."""
    seed: int


class RolloutSource(Protocol):
    """The questions or games to attempt."""

    def __len__(self) -> int: ...

    def sample_rollouts(self, job: RolloutJob) -> list[list[GrpoRollout]]:
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

    def sample_rollouts(self, job: RolloutJob) -> list[list[GrpoRollout]]:
        sampling = SampleSettings(self.settings.max_tokens, self.settings.temperature, job.seed)
        prompts = [self.prompts[i] for i in job.indices]
        samples = self.sampler.sample(prompts, sampling, self.settings.group, job.positions)
        return [
            [
                GrpoRollout(
                    (TrainingSequence.from_answer(self.encoded[i], sample.tokens, sample.log_probs),),
                    sample.text,
                )
                for sample in group
            ]
            for i, group in zip(job.indices, samples, strict=True)
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
    after_step: Callable[[TrainingSchedule], None] | None = None,
) -> GrpoResult:
    """Train the model in place. `reward(index, text)` returns the reward of an answer to a prompt."""
    questions = _QuestionRollouts(
        prompts, encode(tokenizer, prompts), reward, PolicySampler(model, tokenizer, fused=True), settings
    )
    return train_on_rollouts(model, questions, settings, progress, after_step)


def train_on_rollouts(
    model: PreTrainedModel,
    source: RolloutSource,
    settings: GrpoSettings,
    progress: TrainingProgress,
    after_step: Callable[[TrainingSchedule], None] | None = None,
) -> GrpoResult:
    """Train the model in place on its own attempts.

    `after_step` is called after each step but the last, to inspect or save the model. Its time does not count
    as training.
    """
    if not len(source) or settings.group < 2:
        raise UserError("GRPO needs at least one question or game, and at least two attempts at each.")
    reference = deepcopy(model).requires_grad_(False) if settings.kl else None
    order = _iterate_shuffled(len(source), settings.seed)
    schedule = TrainingSchedule(settings.steps, settings.seconds)
    optimizer = ScheduledAdamW(model, settings.learning_rate)

    def loss(part: Sequence[PromptGroup]) -> Tensor:
        return _compute_loss(model, reference, part, settings)

    rewards: list[float] = []
    with DataParallelWorkers(model, {"sample": source.sample_rollouts, "loss": loss}) as workers:
        collector = _RolloutCollector(source, workers, order, settings)
        updater = _PolicyUpdater(model, workers, optimizer, settings)
        while not schedule.over:
            groups = collector.collect_groups(schedule.steps)
            update = updater.update_policy(groups, schedule.share)
            schedule.finish_step()
            rewards.append(fmean(reward for group in groups for reward in group.rewards))
            rollouts = [rollout for group in groups for rollout in group.rollouts]
            tokens = sum(rollout.tokens for rollout in rollouts)
            progress.record_step(
                schedule.steps,
                tokens,
                schedule.seconds_left,
                update.pop("loss", None),
                rewards[-1],
                {
                    **update,
                    "response_length": tokens / len(rollouts),
                    "groups_without_signal": sum(not group.has_signal for group in groups) / len(groups),
                },
            )
            if after_step and not schedule.over:
                began = time.monotonic()
                after_step(schedule)
                for clock in (schedule, progress):
                    clock.exclude_seconds(time.monotonic() - began)
    return GrpoResult(schedule.steps, progress.tokens, schedule.seconds, tuple(rewards))


# Sampling


@dataclass(frozen=True)
class RolloutGroup:
    """The attempts at one question or game, with their rewards."""

    rollouts: Sequence[GrpoRollout]
    rewards: Sequence[float]

    @property
    def has_signal(self) -> bool:
        """Whether the attempts differ in reward."""
        return max(self.rewards) > min(self.rewards)


class _RolloutCollector:
    """Samples the attempts of a step."""

    def __init__(
        self,
        source: RolloutSource,
        workers: DataParallelWorkers,
        order: Iterator[int],
        settings: GrpoSettings,
    ) -> None:
        self._source, self._workers, self._order, self._settings = source, workers, order, settings

    def collect_groups(self, step: int) -> list[RolloutGroup]:
        """Attempt the questions or games of a step, and more of them if too many teach nothing."""
        wanted = min(self._settings.prompts, len(self._source))
        groups: list[RolloutGroup] = []
        for attempt in range(self._settings.resample + 1):
            missing = wanted - sum(group.has_signal for group in groups)
            if missing <= 0:
                break
            seed = _derive_step_seed(self._settings, step, attempt)
            groups += self._attempt_items([next(self._order) for _ in range(missing)], seed)
        return groups

    def _attempt_items(self, indices: Sequence[int], seed: int) -> list[RolloutGroup]:
        size = self._workers.size
        shares = [range(start, len(indices), size) for start in range(size)]
        jobs = [RolloutJob([indices[place] for place in share], share, seed) for share in shares]
        results: list[list[list[GrpoRollout]]] = self._workers.map_jobs("sample", jobs)
        rollouts = [results[place % size][place // size] for place in range(len(indices))]
        return [
            RolloutGroup(group, [self._source.reward(index, rollout) for rollout in group])
            for index, group in zip(indices, rollouts, strict=True)
        ]


# Learning


class _PolicyUpdater:
    """Learns the attempts of a step."""

    def __init__(
        self,
        model: PreTrainedModel,
        workers: DataParallelWorkers,
        optimizer: ScheduledAdamW,
        settings: GrpoSettings,
    ) -> None:
        self._workers, self._optimizer, self._settings = workers, optimizer, settings
        self._pass_tokens = settings.pass_tokens or choose_pass_tokens(model)
        self._share_prompts = shares_prompts(model)

    def update_policy(self, groups: Sequence[RolloutGroup], share: float) -> dict[str, float]:
        """Update the model's weights; return the loss and other metrics, or none if nothing can be learnt."""
        weighted = weigh_by_advantage(groups, self._settings)
        batches = [batch for batch in _deal_out(weighted, self._settings.updates) if batch]
        if not batches:
            return {}
        sums, norms, tokens = [0.0] * len(LOSS_PARTS), [], 0
        for batch in batches:
            count = sum(row.count for row, _ in batch)
            shares = pack_microbatches(
                group_by_prompt(batch), self._pass_tokens, self._workers.size, self._share_prompts
            )
            totals = self._workers.accumulate_gradients("loss", shares)
            sums = [a + b for a, b in zip(sums, totals, strict=True)]
            norms.append(self._optimizer.step(share, 1 / count, self._settings.hold_share))
            tokens += count
        return {
            **{name: value / tokens for name, value in zip(LOSS_PARTS, sums, strict=True)},
            "gradient_norm": fmean(norms),
            "learning_rate": self._optimizer.learning_rate,
        }


WeightedRow = tuple[TrainingSequence, float]


def weigh_by_advantage(groups: Sequence[RolloutGroup], settings: GrpoSettings) -> list[list[WeightedRow]]:
    """Return the training sequences of each group with different rewards, each with its advantage."""
    chosen = [
        [
            (rollout, advantage)
            for rollout, advantage in _compute_group_advantages(group, settings.learned_attempts)
            if rollout.tokens
        ]
        for group in groups
        if group.has_signal
    ]
    lengths = [rollout.tokens for group in chosen for rollout, _ in group]
    mean_tokens = fmean(lengths) if lengths else 0.0
    return [
        [
            (row, advantage * (mean_tokens / rollout.tokens if settings.average_by_attempt else 1.0))
            for rollout, advantage in group
            for row in rollout.rows
        ]
        for group in chosen
    ]


def _compute_group_advantages(group: RolloutGroup, most: int | None) -> list[tuple[GrpoRollout, float]]:
    """Return the attempts to learn, those with the largest and the smallest rewards, and their advantages.

    Advantages are relative to the attempts that are learnt. Otherwise they would not cancel out: a group with
    one failure would make everything in it less likely.
    """
    pairs = list(zip(group.rollouts, group.rewards, strict=True))
    if most is not None and most < len(pairs):
        ranked = sorted(pairs, key=lambda pair: pair[1])
        lowest = most // 2
        pairs = ranked[:lowest] + ranked[len(ranked) - (most - lowest) :]
    advantages = _compute_advantages([reward for _, reward in pairs])
    return [(rollout, advantage) for (rollout, _), advantage in zip(pairs, advantages, strict=True)]


def _deal_out(groups: Sequence[list[WeightedRow]], batches: int) -> list[list[WeightedRow]]:
    """Deal out whole groups to batches of about the same size."""
    return [
        [row for group in groups[number::batches] for row in group]
        for number in range(min(batches, len(groups)))
    ]


def _iterate_shuffled(count: int, seed: int) -> Iterator[int]:
    """Yield all indices in random order, again and again in a new order."""
    generator = random.Random(seed)
    while True:
        yield from generator.sample(range(count), count)


def _derive_step_seed(settings: GrpoSettings, step: int, attempt: int) -> int:
    # Far enough apart that no two steps, attempts or seeds share their random numbers.
    return (settings.seed * 1_000_003 + step) * 97 + attempt


def _compute_advantages(rewards: Sequence[float]) -> list[float]:
    mean, spread = fmean(rewards), pstdev(rewards)
    return [(reward - mean) / (spread + 1e-6) for reward in rewards]


LOSS_PARTS = ("loss", "clip_fraction", "entropy", "kl")
"""What `_compute_loss` returns, each as a sum over tokens. The entropy is estimated by the log-probabilities
of the sampled tokens. The KL divergence is that from the policy that sampled them, or from the reference
model if there is one."""


def _compute_loss(
    model: PreTrainedModel,
    reference: PreTrainedModel | None,
    part: Sequence[PromptGroup],
    settings: GrpoSettings,
) -> Tensor:
    tokens = compute_weighted_log_probs(model, part, settings.temperature)
    log_probs, advantages = tokens.log_probs, tokens.weights
    sampled = tokens.sampled_log_probs
    # Without known log-probabilities the ratio is 1, and only its gradient counts.
    log_ratio = log_probs - (log_probs.detach() if sampled is None else sampled)
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1 - settings.clip_low, 1 + settings.clip_high)
    losses = -torch.minimum(ratio * advantages, clipped * advantages)
    divergence = -log_ratio
    if reference is not None:
        with torch.no_grad():
            reference_log_probs = compute_log_probs(reference, part, settings.temperature)
        log_ratio = reference_log_probs - log_probs
        # This estimate of the divergence is never negative and varies little.
        divergence = log_ratio.exp() - log_ratio - 1
        losses = losses + settings.kl * divergence
    is_clipped = clipped * advantages < ratio * advantages
    return torch.stack([losses.sum(), is_clipped.sum(), -log_probs.sum(), divergence.sum()])
