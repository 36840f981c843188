"""DeepSearchQA's miniature made short: a few questions of a few steps, for whole runs."""

from dataclasses import replace
from pathlib import Path

from agent2rl.core.engine import Sampling
from agent2rl.core.task import DataFolder, Example, Splits, Task
from agent2rl.environments.search.backends import write_corpus
from agent2rl.evaluators.episodes import Episodes
from agent2rl.tasks.deepsearchqa.mini import TASK as MINI
from agent2rl.tasks.deepsearchqa.mini import MiniLibrary, build_library

TRAIN, QUESTIONS, STEPS = 10, 5, 2


def load(_: Path | None) -> Splits:
    train = build_library("train", TRAIN)
    feedback, heldout = build_library("feedback", QUESTIONS), build_library("heldout", QUESTIONS)
    return Splits(
        train=train.examples,
        feedback=tuple(map(_short, feedback.examples)),
        heldout=tuple(map(_short, heldout.examples)),
        folders={"corpus": _written(train)},
        beside={part.split: _written(part) for part in (feedback, heldout)},
    )


def _written(part: MiniLibrary) -> DataFolder:
    return lambda place: write_corpus(place, part.search)


def _short(example: Example) -> Example:
    return replace(example, meta={**example.meta, "steps": STEPS})


assert isinstance(MINI.evaluator, Episodes)
TASK: Task = replace(
    MINI,
    id="short-deepsearchqa",
    load=load,
    evaluator=replace(MINI.evaluator, sampling=Sampling(max_tokens=24)),
)
