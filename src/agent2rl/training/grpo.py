"""GRPO: the model answers each question several times, and learns from how its answers compare.

An answer's advantage is its reward against its group's, in the group's standard deviations; a group whose
answers are all worth the same teaches nothing and is left out. The loss is the clipped ratio to the policy
before the step, averaged over tokens; a penalty for leaving the reference model can be added.

That policy's log-probabilities come from the pass that is trained, not from the sampler, which may round
otherwise. With one update a step the ratio is 1, and only its gradient counts.
"""

import math
import random
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from statistics import fmean, pstdev

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from agent2rl.core.errors import UserError
from agent2rl.training.descent import Course, Descent
from agent2rl.training.policy import Tokens, log_probs
from agent2rl.training.progress import Progress
from agent2rl.training.prompts import encode
from agent2rl.training.sampling import Sampler, SampleSettings


@dataclass(frozen=True)
class GrpoSettings:
    learning_rate: float = 1e-4
    steps: int = 100
    """Rounds of sampling and learning from it."""
    seconds: float = math.inf
    """Ends the training early; the learning rate comes down in time."""
    prompts: int = 16
    """Questions in a step."""
    group: int = 8
    """Answers to each."""
    updates: int = 1
    """Optimiser steps on the answers of a step: the groups are divided among them."""
    pass_tokens: int = 4096
    """Of answers in one pass forward and back, padding counted; a group is never divided."""
    max_tokens: int = 256
    temperature: float = 1.0
    clip: float = 0.2
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
class _Group:
    """A question, its answers, and how each compares with the others."""

    prompt: Tokens
    answers: Sequence[Tokens]
    advantages: Sequence[float]
    before: Tensor | None = None
    """The answers' log-probabilities before the step, where it has several updates."""

    @property
    def tokens(self) -> int:
        return sum(map(len, self.answers))

    @property
    def width(self) -> int:
        """Of its longest answer."""
        return max(map(len, self.answers))


def grpo(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[str],
    reward: Callable[[int, str], float],
    settings: GrpoSettings,
    progress: Progress,
) -> GrpoResult:
    """Train the model in place. `reward(index, text)` is what a text is worth as the answer to a prompt."""
    if not prompts or settings.group < 2:
        raise UserError("GRPO needs prompts, and at least two answers to each.")
    encoded = encode(tokenizer, prompts)
    reference = deepcopy(model).requires_grad_(False) if settings.kl else None
    order = _order(len(prompts), settings.seed)
    course = Course(settings.steps, settings.seconds)
    descent = Descent(model, settings.learning_rate)
    sampler = Sampler(model, tokenizer)
    rewards: list[float] = []
    while not course.over:
        asked = [next(order) for _ in range(min(settings.prompts, len(prompts)))]
        sampling = _sampling(settings, course.steps)
        samples = sampler.sample([prompts[i] for i in asked], sampling, settings.group)
        worth = [[reward(i, found.text) for found in group] for i, group in zip(asked, samples, strict=True)]
        groups = [
            _Group(encoded[i], [found.tokens for found in group], _advantages(values))
            for i, group, values in zip(asked, samples, worth, strict=True)
            if max(values) > min(values)
        ]
        if settings.updates > 1:
            groups = [_remembering(model, group, settings) for group in groups]
        losses = []
        for part in _parts(groups, settings.updates):
            losses.append(sum(descent.gather(loss) for loss in _losses(model, reference, part, settings)))
            descent.step(course.share)
        course.advance()
        rewards.append(fmean(value for values in worth for value in values))
        tokens = sum(len(found.tokens) for group in samples for found in group)
        loss = fmean(losses) if losses else None
        progress.note(course.steps, tokens, course.seconds_left, loss, rewards[-1])
    return GrpoResult(course.steps, progress.tokens, course.seconds, tuple(rewards))


def _order(count: int, seed: int) -> Iterator[int]:
    """Every prompt once, in random order, again and again."""
    dice = random.Random(seed)
    while True:
        yield from dice.sample(range(count), count)


def _sampling(settings: GrpoSettings, step: int) -> SampleSettings:
    seed = settings.seed * 1_000_003 + step
    return SampleSettings(settings.max_tokens, settings.temperature, seed)


def _advantages(rewards: Sequence[float]) -> list[float]:
    mean, spread = fmean(rewards), pstdev(rewards)
    return [(reward - mean) / (spread + 1e-6) for reward in rewards]


def _remembering(model: PreTrainedModel, group: _Group, settings: GrpoSettings) -> _Group:
    with torch.no_grad():
        before, _ = log_probs(model, [group.prompt], group.answers, settings.temperature)
    return replace(group, before=before)


def _parts(groups: Sequence[_Group], count: int) -> list[Sequence[_Group]]:
    """The groups in as many parts, as equal as can be; none is empty."""
    size = math.ceil(len(groups) / count)
    return [groups[start : start + size] for start in range(0, len(groups), size)] if size else []


def _losses(
    model: PreTrainedModel,
    reference: PreTrainedModel | None,
    groups: Sequence[_Group],
    settings: GrpoSettings,
) -> Iterator[Tensor]:
    """The loss over all tokens of these groups, in parts: a few groups of like length at a time."""
    tokens = sum(group.tokens for group in groups)
    for part in _passes(groups, settings.pass_tokens):
        yield _loss(model, reference, part, settings) / tokens


def _passes(groups: Sequence[_Group], most: int) -> Iterator[list[_Group]]:
    """Groups whose answers, padded to the longest among them, have at most so many tokens."""
    part: list[_Group] = []
    for group in sorted(groups, key=lambda group: group.width):
        if part and (len(part) + 1) * len(group.answers) * group.width > most:
            yield part
            part = []
        part.append(group)
    if part:
        yield part


def _loss(
    model: PreTrainedModel,
    reference: PreTrainedModel | None,
    groups: Sequence[_Group],
    settings: GrpoSettings,
) -> Tensor:
    """The sum over tokens."""
    prompts = [group.prompt for group in groups]
    answers = [tokens for group in groups for tokens in group.answers]
    now, real = log_probs(model, prompts, answers, settings.temperature)
    advantages = now.new_tensor([[value] for group in groups for value in group.advantages])
    ratio = (now - _before(groups, now)).exp()
    clipped = ratio.clamp(1 - settings.clip, 1 + settings.clip)
    losses = -torch.minimum(ratio * advantages, clipped * advantages)
    if reference is not None:
        with torch.no_grad():
            then, _ = log_probs(reference, prompts, answers, settings.temperature)
        away = then - now
        losses = losses + settings.kl * (away.exp() - away - 1)
    return (losses * real).sum()


def _before(groups: Sequence[_Group], now: Tensor) -> Tensor:
    """What `now` was before the step, row by row; padding has no meaning in either."""
    if any(group.before is None for group in groups):
        return now.detach()
    before = now.detach().clone()
    row = 0
    for group in groups:
        assert group.before is not None
        rows, width = group.before.shape
        before[row : row + rows, :width] = group.before
        row += rows
    return before
