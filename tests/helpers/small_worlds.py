"""Worlds for tests: a staircase, and a data directory with small games of ALFWorld."""

import json
import random
from pathlib import Path

from agent2rl.core.environment import OpenWorld, World
from tests.helpers.alfworld_games import GOALS, make_game, make_random_house
from tests.helpers.stairs_environment import STAIRS_EXAMPLES, StairsEnvironment, StairsExpert


def climb(how: str) -> str:
    """Take one step.

    Args:
        how: "up", or "wait" to stay.
    """
    return how


STAIRS_GAMES = tuple(STAIRS_EXAMPLES)
STAIRS_WORLD = World(STAIRS_GAMES, StairsEnvironment, expert=StairsExpert, tools=(climb,))


def open_stairs(data: Path) -> World:
    return STAIRS_WORLD


WORLD: OpenWorld = open_stairs


def write_alfworld_data(data: Path, count: int = 6) -> Path:
    """A run's data directory: `world.json`, `train.jsonl` and `games/`."""
    data.mkdir(parents=True, exist_ok=True)
    rows = []
    for number in range(count):
        chance = random.Random(number)
        goal = chance.choice(list(GOALS))
        name = f"{goal}/trial_{number}"
        file = data / "games" / name / "game.tw-pddl"
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps(make_game(goal, make_random_house(chance))), encoding="utf-8")
        rows.append({"id": name, "question": "do as told", "answer": ""})
    (data / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    card = {"world": "agent2rl.environments.alfworld:WORLD"}
    (data / "world.json").write_text(json.dumps(card), encoding="utf-8")
    return data
