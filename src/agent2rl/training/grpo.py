"""GRPO: the model answers each question several times, and learns from how its answers compare.

An answer's advantage is its reward against its group's, in the group's standard deviations; a group whose
answers are all worth the same teaches nothing and is left out. The loss is the clipped ratio to the policy
that sampled, averaged over tokens; a penalty for leaving the reference model can be added.
"""

import math
import random
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from statistics import fmean, pstdev

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from agent2rl.core.errors import UserError
from agent2rl.training.descent import Course, Descent
from agent2rl.training.policy import Tokens, log_probs
from agent2rl.training.progress import Progress
from agent2rl.training.prompts import encode
from agent2rl.training.sampling import Sample, SampleSettings, sample


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
    rows: int = 64
    """Answers in one pass forward and back; twice as many are sampled at once."""
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
    samples: Sequence[Sample]
    advantages: Sequence[float]

    @property
    def tokens(self) -> int:
        return sum(len(found.tokens) for found in self.samples)


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
    rewards: list[float] = []
    while not course.over:
        asked = [next(order) for _ in range(min(settings.prompts, len(prompts)))]
        sampling = _sampling(settings, course.steps)
        samples = sample(model, tokenizer, [prompts[i] for i in asked], sampling, settings.group)
        worth = [[reward(i, found.text) for found in group] for i, group in zip(asked, samples, strict=True)]
        groups = [
            _Group(encoded[i], group, _advantages(values))
            for i, group, values in zip(asked, samples, worth, strict=True)
            if max(values) > min(values)
        ]
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
    return SampleSettings(settings.max_tokens, settings.temperature, 2 * settings.rows, seed)


def _advantages(rewards: Sequence[float]) -> list[float]:
    mean, spread = fmean(rewards), pstdev(rewards)
    return [(reward - mean) / (spread + 1e-6) for reward in rewards]


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
    nearby = sorted(groups, key=lambda group: len(group.prompt))
    many = max(1, settings.rows // settings.group)
    for start in range(0, len(nearby), many):
        yield _loss(model, reference, nearby[start : start + many], settings) / tokens


def _loss(
    model: PreTrainedModel,
    reference: PreTrainedModel | None,
    groups: Sequence[_Group],
    settings: GrpoSettings,
) -> Tensor:
    """The sum over tokens."""
    prompts = [group.prompt for group in groups]
    samples = [found for group in groups for found in group.samples]
    answers = [found.tokens for found in samples]
    now, real = log_probs(model, prompts, answers, settings.temperature)
    width = now.shape[1]
    before = now.new_tensor([(*found.log_probs, *[0.0] * (width - len(found.tokens))) for found in samples])
    advantages = now.new_tensor([[value] for group in groups for value in group.advantages])
    ratio = (now - before).exp()
    clipped = ratio.clamp(1 - settings.clip, 1 + settings.clip)
    losses = -torch.minimum(ratio * advantages, clipped * advantages)
    if reference is not None:
        with torch.no_grad():
            then, _ = log_probs(reference, prompts, answers, settings.temperature)
        away = then - now
        losses = losses + settings.kl * (away.exp() - away - 1)
    return (losses * real).sum()
