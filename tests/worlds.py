"""Worlds for tests: a staircase, and a data directory with small games of ALFWorld."""

import json
import random
from dataclasses import dataclass
from pathlib import Path

from agent2rl.core.environment import OpenWorld, Step, World
from agent2rl.core.task import Example
from tests.alfworld_games import GOALS, game, random_house

STEPS = 6


@dataclass
class Stairs:
    """`up` climbs; whoever stands on the game's step has won, whoever says `jump` has lost."""

    height: int = 0
    steps: int = 0
    goal: int = 0

    def reset(self, example: Example) -> Step:
        self.height, self.steps, self.goal = 0, 0, int(example.target)
        return Step(f"You stand on step 0. Climb to step {self.goal}.")

    def step(self, action: str) -> Step:
        if action == "trip":
            raise ValueError("stairs are dangerous")
        self.steps += 1
        self.height += action == "up"
        won = self.height == self.goal
        lost = action == "jump"
        cut = not won and not lost and self.steps == STEPS
        return Step(f"You stand on step {self.height}.", float(won), won or lost or cut, won, cut)

    def close(self) -> None:
        self.height = -1


class Climber:
    def act(self, observation: str) -> str:
        return "up" if observation else "wait"


def climb(how: str) -> str:
    """Take one step.

    Args:
        how: "up", or "wait" to stay.
    """
    return how


GAMES = tuple(Example(f"stairs-{n}", "", str(n)) for n in range(1, 9))
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
