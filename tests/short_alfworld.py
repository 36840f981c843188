"""ALFWorld's miniature made short: a few games of a few steps, for whole runs."""

from dataclasses import replace
from pathlib import Path

from agent2rl.core.grading_records import Split
from agent2rl.core.task import Example, Splits, Task
from agent2rl.tasks.alfworld import attach_game, build_example, write_game
from agent2rl.tasks.alfworld.homes import generate_homes
from agent2rl.tasks.alfworld.layout import EASY
from agent2rl.tasks.alfworld.mini import EASY_STEPS
from agent2rl.tasks.alfworld.mini import TASK as MINI

TRAIN = 30
GAMES = 6
STEPS = 4


def load(_: Path | None) -> Splits:
    return Splits(
        train=tuple(
            build_example(home.data, home.id, EASY_STEPS) for home in generate_homes("train", TRAIN, EASY)
        ),
        feedback=_scoring("feedback"),
        heldout=_scoring("heldout"),
        folders={"games": _write},
    )


def _scoring(part: Split) -> tuple[Example, ...]:
    return tuple(
        attach_game(build_example(home.data, home.id, STEPS), home.data)
        for home in generate_homes(part, GAMES, EASY)
    )


def _write(place: Path) -> None:
    for home in generate_homes("train", TRAIN, EASY):
        write_game(place, home.id, home.data)


TASK: Task = replace(MINI, id="short-alfworld", load=load)
