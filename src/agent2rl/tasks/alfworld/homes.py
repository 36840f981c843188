"""Generates the homes of the miniature: the same games each time, in the official file format.

    for home in homes("train", 100):
        game = Game.read(home.data, home.id)

Not covered: what is asked of a model, and how it is scored.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field

from pydantic import JsonValue

from agent2rl.tasks.alfworld.kinds import ROOMS
from agent2rl.tasks.alfworld.layout import EASY, TASK_TYPES, Difficulty, Goal, Part, furnish
from agent2rl.tasks.alfworld.problem import domain, problem
from agent2rl.tasks.alfworld.walkthrough import walkthrough
from agent2rl.tasks.alfworld.wording import grammar, sentence


@dataclass(frozen=True)
class Home:
    id: str
    """`<task>/<trial>`, after the official ones."""
    data: Mapping[str, JsonValue] = field(repr=False)
    """What goes into its file."""


def homes(split: Part, count: int, difficulty: Difficulty = EASY) -> tuple[Home, ...]:
    """The first `count` homes of a split, no two alike; the types of tasks take turns."""
    dice = random.Random(f"alfworld-mini:{split}")
    found: dict[str, Home] = {}
    while len(found) < count:
        layout = furnish(dice, TASK_TYPES[len(found) % len(TASK_TYPES)], split, difficulty)
        stated = problem(layout)
        data: dict[str, JsonValue] = {
            "pddl_domain": domain(),
            "grammar": grammar(sentence(dice, layout.goal)),
            "pddl_problem": stated,
            "solvable": True,
            "walkthrough": [*walkthrough(layout)],
        }
        found.setdefault(stated, Home(f"{_task(layout.goal)}/trial_{len(found):04d}", data))
    return tuple(found.values())


def _task(goal: Goal) -> str:
    """Its name after the official ones, which end with the number of the room."""
    room = 1 + [*ROOMS].index(goal.room)
    return f"{goal.type}-{goal.thing.title()}-None-{goal.place.title()}-{room}"
