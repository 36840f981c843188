"""Supervised fine-tuning on pairs of prompt and answer, or on whole conversations.

The loss is on what the model is to say, with its end, and never on what it is told.
"""

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from agent2rl.core.errors import UserError
from agent2rl.training import prompts
from agent2rl.training.data_parallel import DataParallelWorkers
from agent2rl.training.optimizer import ScheduledAdamW, TrainingSchedule
from agent2rl.training.policy import (
    PromptGroup,
    TrainingSequence,
    compute_weighted_log_probs,
    limit_pass_tokens,
    pack_microbatches,
)
from agent2rl.training.progress import TrainingProgress


@dataclass(frozen=True)
class SftSettings:
    learning_rate: float = 5e-4
    epochs: int = 3
    batch_size: int = 16
    seconds: float = math.inf
    """Ends the training early; the learning rate comes down in time."""
    weight_decay: float = 0.0
    pass_tokens: int = 16384
    """In one pass forward and back, prompts and padding counted."""
    seed: int = 0


@dataclass(frozen=True)
class SftResult:
    steps: int
    tokens: int
    """Prompts and answers, as often as they were read."""
    seconds: float
    loss: float
    """Mean over the last epoch, or what there was of it."""


def sft(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    pairs: Sequence[tuple[str, str]],
    settings: SftSettings,
    progress: TrainingProgress,
) -> SftResult:
    """Train the model in place."""
    asked = prompts.encode(tokenizer, [prompt for prompt, _ in pairs])
    told = prompts.encode_answers(tokenizer, [answer for _, answer in pairs])
    rows = [TrainingSequence.from_answer(prompt, answer) for prompt, answer in zip(asked, told, strict=True)]
    return imitate(model, rows, settings, progress)


def imitate(
    model: PreTrainedModel,
    rows: Sequence[TrainingSequence],
    settings: SftSettings,
    progress: TrainingProgress,
) -> SftResult:
    """Train the model in place to say what is said in these rows."""
    if not rows:
        raise UserError("There is nothing to train on.")
    groups = [PromptGroup(row.prompt, [row], [1.0]) for row in rows]
    an_epoch = math.ceil(len(rows) / settings.batch_size)
    course = TrainingSchedule(settings.epochs * an_epoch, settings.seconds)
    descent = ScheduledAdamW(model, settings.learning_rate, settings.weight_decay)
    room = limit_pass_tokens(model, settings.pass_tokens)

    def loss(part: Sequence[PromptGroup]) -> Tensor:
        """The sum over the tokens of some rows."""
        found, said, weights = compute_weighted_log_probs(model, part)
        return -(weights * found * said).sum()

    losses: list[float] = []
    with DataParallelWorkers(model, {"loss": loss}) as crew:
        for batch in _iterate_batches(len(rows), settings):
            if course.over:
                break
            said = sum(rows[i].count for i in batch)
            parts = pack_microbatches([groups[i] for i in batch], room, crew.size)
            losses.append(crew.accumulate_gradients("loss", parts) / said)
            descent.step(course.share, 1 / said)
            course.finish_step()
            read = sum(len(rows[i].prompt) + len(rows[i].tokens) for i in batch)
            progress.record_step(course.steps, read, course.seconds_left, losses[-1])
    last = losses[-an_epoch:]
    return SftResult(course.steps, progress.tokens, course.seconds, sum(last) / len(last))


def _iterate_batches(count: int, settings: SftSettings) -> Iterator[list[int]]:
    """Every row once an epoch, in another order each time.

    Batches are not sorted by length, although that would save padding: rows of one length are often of one
    kind. One epoch gave the seedling 58% mixed and 28% sorted, three seeds each; the optimiser's second beta
    differed too, so how much the mixing does is not known.
    """
    dice = random.Random(settings.seed)
    for _ in range(settings.epochs):
        order = list(range(count))
        dice.shuffle(order)
        yield from (order[i : i + settings.batch_size] for i in range(0, count, settings.batch_size))
