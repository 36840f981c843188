"""ALFWorld's miniature made short: a few games of a few steps, for whole runs."""

from dataclasses import replace
from pathlib import Path

from agent2rl.core.engine import Sampling
from agent2rl.core.grading_records import Split
from agent2rl.core.task import Example, Splits, Task
from agent2rl.evaluators.episodes import Episodes
from agent2rl.tasks.alfworld import attach_game, build_example, write_game
from agent2rl.tasks.alfworld.homes import generate_homes
from agent2rl.tasks.alfworld.layout import EASY
from agent2rl.tasks.alfworld.mini import EASY_STEPS
from agent2rl.tasks.alfworld.mini import TASK as MINI

TRAIN_COUNT = 30
GAME_COUNT = 6
MAX_STEPS = 2


def load_splits(_: Path | None) -> Splits:
    return Splits(
        train=tuple(
            build_example(home.data, home.id, EASY_STEPS)
            for home in generate_homes("train", TRAIN_COUNT, EASY)
        ),
        feedback=_make_scoring_examples("feedback"),
        heldout=_make_scoring_examples("heldout"),
        folders={"games": _write_games},
    )


def _make_scoring_examples(part: Split) -> tuple[Example, ...]:
    return tuple(
        attach_game(build_example(home.data, home.id, MAX_STEPS), home.data)
        for home in generate_homes(part, GAME_COUNT, EASY)
    )


def _write_games(place: Path) -> None:
    for home in generate_homes("train", TRAIN_COUNT, EASY):
        write_game(place, home.id, home.data)


assert isinstance(MINI.evaluator, Episodes)
TASK: Task = replace(
    MINI,
    id="short-alfworld",
    load=load_splits,
    evaluator=replace(MINI.evaluator, sampling=Sampling(max_tokens=8, stop=("\n",))),
    default_expert="full",
)
