"""ALFWorld's miniature made short: a few games of a few steps, for whole runs."""

from dataclasses import replace
from pathlib import Path

from agent2rl.core.records import Split
from agent2rl.core.task import Example, Splits, Task
from agent2rl.tasks.alfworld.games import carrying, example, put
from agent2rl.tasks.alfworld.homes import homes
from agent2rl.tasks.alfworld.layout import EASY
from agent2rl.tasks.alfworld.mini import EASY_STEPS
from agent2rl.tasks.alfworld.mini import TASK as MINI

TRAIN = 30
GAMES = 6
STEPS = 4


def load(_: Path | None) -> Splits:
    return Splits(
        train=tuple(example(home.data, home.id, EASY_STEPS) for home in homes("train", TRAIN, EASY)),
        feedback=_scoring("feedback"),
        heldout=_scoring("heldout"),
        folders={"games": _write},
    )


def _scoring(part: Split) -> tuple[Example, ...]:
    return tuple(carrying(example(home.data, home.id, STEPS), home.data) for home in homes(part, GAMES, EASY))


def _write(place: Path) -> None:
    for home in homes("train", TRAIN, EASY):
        put(place, home.id, home.data)


TASK: Task = replace(MINI, id="short-alfworld", load=load)
