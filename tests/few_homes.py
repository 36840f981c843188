"""ALFWorld's miniature with a few games, for those who play them."""

from dataclasses import replace
from pathlib import Path

from agent2rl.core.task import Splits, Task
from agent2rl.tasks.alfworld import build_example, write_game
from agent2rl.tasks.alfworld.homes import generate_homes
from agent2rl.tasks.alfworld.mini import TASK as MINI

GAMES = 3
STEPS = 20


def load(_: Path | None) -> Splits:
    train = tuple(build_example(home.data, home.id, STEPS) for home in generate_homes("train", GAMES))
    return Splits(train, feedback=(), heldout=(), folders={"games": _write})


def _write(place: Path) -> None:
    for home in generate_homes("train", GAMES):
        write_game(place, home.id, home.data)


TASK: Task = replace(MINI, id="few-homes", load=load)
