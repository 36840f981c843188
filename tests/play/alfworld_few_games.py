"""ALFWorld's miniature with a few games, for those who play them."""

from dataclasses import replace
from pathlib import Path

from agent2rl.core.task import Splits, Task
from agent2rl.tasks.alfworld import build_example, write_game
from agent2rl.tasks.alfworld.homes import generate_homes
from agent2rl.tasks.alfworld.mini import TASK as MINI

GAME_COUNT = 3
MAX_STEPS = 20


def load_splits(_: Path | None) -> Splits:
    train = tuple(
        build_example(home.data, home.id, MAX_STEPS) for home in generate_homes("train", GAME_COUNT)
    )
    return Splits(train, feedback=(), heldout=(), folders={"games": _write_games})


def _write_games(place: Path) -> None:
    for home in generate_homes("train", GAME_COUNT):
        write_game(place, home.id, home.data)


TASK: Task = replace(MINI, id="few-homes", load=load_splits)
