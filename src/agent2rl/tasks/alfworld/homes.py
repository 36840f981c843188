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
from agent2rl.tasks.alfworld.layout import EASY, TASK_TYPES, HomeDifficulty, HomeGoal, Part, furnish_home
from agent2rl.tasks.alfworld.pddl_problem import read_domain, write_problem
from agent2rl.tasks.alfworld.walkthrough import find_walkthrough
from agent2rl.tasks.alfworld.wording import write_grammar, write_task_sentence


@dataclass(frozen=True)
class GeneratedHome:
    id: str
    """`<task>/<trial>`, after the official ones."""
    data: Mapping[str, JsonValue] = field(repr=False)
    """What goes into its file."""


def generate_homes(split: Part, count: int, difficulty: HomeDifficulty = EASY) -> tuple[GeneratedHome, ...]:
    """The first `count` homes of a split, no two alike; the types of tasks take turns."""
    dice = random.Random(f"alfworld-mini:{split}")
    found: dict[str, GeneratedHome] = {}
    while len(found) < count:
        layout = furnish_home(dice, TASK_TYPES[len(found) % len(TASK_TYPES)], split, difficulty)
        stated = write_problem(layout)
        data: dict[str, JsonValue] = {
            "pddl_domain": read_domain(),
            "grammar": write_grammar(write_task_sentence(dice, layout.goal)),
            "pddl_problem": stated,
            "solvable": True,
            "walkthrough": [*find_walkthrough(layout)],
        }
        found.setdefault(stated, GeneratedHome(f"{_name_task(layout.goal)}/trial_{len(found):04d}", data))
    return tuple(found.values())


def _name_task(goal: HomeGoal) -> str:
    """Its name after the official ones, which end with the number of the room."""
    room = 1 + [*ROOMS].index(goal.room)
    return f"{goal.type}-{goal.thing.title()}-None-{goal.place.title()}-{room}"
