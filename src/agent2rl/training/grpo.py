"""GRPO: the model answers each question several times, and learns from how its answers compare.

An answer's advantage is its reward against its group's, in the group's standard deviations; a group whose
answers are all worth the same teaches nothing and is left out. Every answer is used for one update and comes
from the policy that is updated (up to rounding), so the ratio of the two is 1, nothing is clipped, and the
loss is the advantage times the log-probability, averaged over tokens. A penalty for leaving the first model
can be added.
"""

import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from statistics import fmean, pstdev

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from agent2rl.core.errors import UserError
from agent2rl.training.crew import Crew
from agent2rl.training.descent import Course, Descent
from agent2rl.training.policy import Tokens, log_probs
from agent2rl.training.progress import Progress
from agent2rl.training.prompts import encode
from agent2rl.training.sampling import Sample, Sampler, SampleSettings


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
    pass_tokens: int = 4096
    """Of answers in one pass forward and back, padding counted; a group is never divided."""
    max_tokens: int = 256
    temperature: float = 1.0
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

    @property
    def tokens(self) -> int:
        return sum(map(len, self.answers))

    @property
    def width(self) -> int:
        """Of its longest answer."""
        return max(map(len, self.answers))

    @property
    def padded(self) -> int:
        return len(self.answers) * self.width


def grpo(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[str],
    reward: Callable[[int, str], float],
    settings: GrpoSettings,
    progress: Progress,
    halfway: Callable[[], None] | None = None,
) -> GrpoResult:
    """Train the model in place. `reward(index, text)` is what a text is worth as the answer to a prompt.

    `halfway` is called once in the middle, to look at the model or save it; its time does not count.
    """
    if not prompts or settings.group < 2:
        raise UserError("GRPO needs prompts, and at least two answers to each.")
    encoded = encode(tokenizer, prompts)
    reference = deepcopy(model).requires_grad_(False) if settings.kl else None
    order = _order(len(prompts), settings.seed)
    course = Course(settings.steps, settings.seconds)
    descent = Descent(model, settings.learning_rate)
    sampler = Sampler(model, tokenizer)

    def answer(job: tuple[SampleSettings, list[int], list[int]]) -> list[list[Sample]]:
        sampling, asked, places = job
        return sampler.sample([prompts[i] for i in asked], sampling, settings.group, places)

    def loss(groups: Sequence[_Group]) -> Tensor:
        return _loss(model, reference, groups, settings)

    rewards: list[float] = []
    with Crew(model, {"answer": answer, "loss": loss}) as crew:
        while not course.over:
            asked = [next(order) for _ in range(min(settings.prompts, len(prompts)))]
            shares = [range(start, len(asked), crew.size) for start in range(crew.size)]
            sampling = SampleSettings(
                settings.max_tokens, settings.temperature, _seed(settings, course.steps)
            )
            answered = crew.ask(
                "answer", [(sampling, [asked[i] for i in share], list(share)) for share in shares]
            )
            samples = [answered[place % crew.size][place // crew.size] for place in range(len(asked))]
            worth = [
                [reward(i, found.text) for found in group] for i, group in zip(asked, samples, strict=True)
            ]
            groups = [
                _Group(encoded[i], [found.tokens for found in group], _advantages(values))
                for i, group, values in zip(asked, samples, worth, strict=True)
                if max(values) > min(values)
            ]
            learnt = sum(group.tokens for group in groups)
            lost = crew.learn("loss", _passes(groups, settings.pass_tokens, crew.size)) / max(1, learnt)
            if groups:
                descent.step(course.share, 1 / learnt)
            course.advance()
            rewards.append(fmean(value for values in worth for value in values))
            tokens = sum(len(found.tokens) for group in samples for found in group)
            progress.note(course.steps, tokens, course.seconds_left, lost if groups else None, rewards[-1])
            if halfway and course.share >= 0.5 and not course.over:
                began = time.monotonic()
                halfway()
                halfway = None
                for clock in (course, progress):
                    clock.pause(time.monotonic() - began)
    return GrpoResult(course.steps, progress.tokens, course.seconds, tuple(rewards))


def _order(count: int, seed: int) -> Iterator[int]:
    """Every prompt once, in random order, again and again."""
    dice = random.Random(seed)
    while True:
        yield from dice.sample(range(count), count)


def _seed(settings: GrpoSettings, step: int) -> int:
    return settings.seed * 1_000_003 + step


def _advantages(rewards: Sequence[float]) -> list[float]:
    mean, spread = fmean(rewards), pstdev(rewards)
    return [(reward - mean) / (spread + 1e-6) for reward in rewards]


def _passes(groups: Sequence[_Group], most: int, members: int) -> list[list[_Group]]:
    """Groups of like length to be passed through the model together: at most so many tokens, padding counted,
    and something for every member where there is enough."""
    most = min(most, math.ceil(sum(group.padded for group in groups) / members))
    passes: list[list[_Group]] = []
    for group in sorted(groups, key=lambda group: group.width):
        if not passes or (len(passes[-1]) + 1) * len(group.answers) * group.width > most:
            passes.append([])
        passes[-1].append(group)
    return passes


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
    losses = -advantages * now
    if reference is not None:
        with torch.no_grad():
            then, _ = log_probs(reference, prompts, answers, settings.temperature)
        away = then - now
        losses = losses + settings.kl * (away.exp() - away - 1)
    return (losses * real).sum()
