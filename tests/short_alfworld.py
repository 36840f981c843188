"""ALFWorld's miniature made short: a few games of a few steps, for whole runs."""

from dataclasses import replace
from pathlib import Path

from agent2rl.core.task import Example, Splits, Task
from agent2rl.tasks.alfworld.games import put
from agent2rl.tasks.alfworld.homes import homes
from agent2rl.tasks.alfworld.mini import TASK as MINI

TRAIN = 30
GAMES = 6
STEPS = 4


def load(data_dir: Path | None) -> Splits:
    whole = MINI.load(data_dir)
    return replace(
        whole,
        train=whole.train[:TRAIN],
        folders={"games": _write},
        feedback=tuple(map(_short, whole.feedback[:GAMES])),
        heldout=tuple(map(_short, whole.heldout[:GAMES])),
    )


def _write(place: Path) -> None:
    for home in homes("train", TRAIN):
        put(place, home.id, home.data)


def _short(example: Example) -> Example:
    return replace(example, meta={**example.meta, "steps": STEPS})


TASK: Task = replace(MINI, id="short-alfworld", load=load)
