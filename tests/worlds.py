"""Worlds for tests: a staircase, and a data directory with small games of ALFWorld."""

import json
import random
from pathlib import Path

from agent2rl.core.environment import OpenWorld, World
from tests.alfworld_games import GOALS, game, random_house
from tests.stairs import EXAMPLES, Climber, Stairs


def climb(how: str) -> str:
    """Take one step.

    Args:
        how: "up", or "wait" to stay.
    """
    return how


GAMES = tuple(EXAMPLES)
STAIRS = World(GAMES, Stairs, expert=Climber, tools=(climb,))


def open_stairs(data: Path) -> World:
    return STAIRS


WORLD: OpenWorld = open_stairs


def write_alfworld(data: Path, count: int = 6) -> Path:
    """A run's data directory: `world.json`, `train.jsonl` and `games/`."""
    data.mkdir(parents=True, exist_ok=True)
    rows = []
    for number in range(count):
        chance = random.Random(number)
        goal = chance.choice(list(GOALS))
        name = f"{goal}/trial_{number}"
        file = data / "games" / name / "game.tw-pddl"
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps(game(goal, random_house(chance))), encoding="utf-8")
        rows.append({"id": name, "question": "do as told", "answer": ""})
    (data / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    card = {"world": "agent2rl.environments.alfworld:WORLD"}
    (data / "world.json").write_text(json.dumps(card), encoding="utf-8")
    return data
