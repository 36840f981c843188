"""DeepSearchQA's miniature made short: a few questions of a few steps, for whole runs."""

from dataclasses import replace
from pathlib import Path

from agent2rl.core.engine import Sampling
from agent2rl.core.task import DataFolder, Example, Splits, Task
from agent2rl.environments.search.backends import write_corpus
from agent2rl.evaluators.episodes import Episodes
from agent2rl.tasks.deepsearchqa.mini import TASK as MINI
from agent2rl.tasks.deepsearchqa.mini import MiniLibrary, build_library

TRAIN_COUNT, QUESTION_COUNT, MAX_STEPS = 10, 5, 2


def load_splits(_: Path | None) -> Splits:
    train = build_library("train", TRAIN_COUNT)
    feedback, heldout = build_library("feedback", QUESTION_COUNT), build_library("heldout", QUESTION_COUNT)
    return Splits(
        train=train.examples,
        feedback=tuple(map(_shorten_example, feedback.examples)),
        heldout=tuple(map(_shorten_example, heldout.examples)),
        folders={"corpus": _make_pages_folder(train)},
        evaluator_folders={part.split: _make_pages_folder(part) for part in (feedback, heldout)},
    )


def _make_pages_folder(part: MiniLibrary) -> DataFolder:
    return lambda place: write_corpus(place, part.search)


def _shorten_example(example: Example) -> Example:
    return replace(example, meta={**example.meta, "steps": MAX_STEPS})


assert isinstance(MINI.evaluator, Episodes)
TASK: Task = replace(
    MINI,
    id="short-deepsearchqa",
    load=load_splits,
    evaluator=replace(MINI.evaluator, sampling=Sampling(max_tokens=24)),
    default_expert="full",
)
