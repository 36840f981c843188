"""The words in which a home is played: its grammar (grammar.txt), and the sentence that states its task.

The grammar is that of every home and has the official one's form, but words of its own: few and short ones,
which small models can learn, in the manner of the text that the seedling has read.
"""

import random
from functools import cache
from pathlib import Path

from agent2rl.environments.alfworld.goal import TaskType
from agent2rl.tasks.alfworld.kinds import HOLLOW
from agent2rl.tasks.alfworld.layout import HomeGoal, pick_one

SENTENCES: dict[TaskType, tuple[str, ...]] = {
    "pick_and_place_simple": ("put {a} {thing} {in_} the {place}",),
    "look_at_obj_in_light": (
        "look at the {thing} under the {place}",
        "examine the {thing} with the {place}",
    ),
    "pick_clean_then_place_in_recep": (
        "put a clean {thing} {in_} the {place}",
        "clean {a} {thing} and put it {in_} the {place}",
    ),
    "pick_heat_then_place_in_recep": (
        "put a hot {thing} {in_} the {place}",
        "heat {a} {thing} and put it {in_} the {place}",
    ),
    "pick_cool_then_place_in_recep": (
        "put a cool {thing} {in_} the {place}",
        "cool {a} {thing} and put it {in_} the {place}",
    ),
    "pick_two_obj_and_place": (
        "put two {thing} {in_} the {place}",
        "find two {thing} and put them {in_} the {place}",
    ),
}


def write_grammar(task: str) -> str:
    """With the sentence that states the task."""
    return _read_grammar().replace("TASK", f"Your task is to: {task}.")


@cache
def _read_grammar() -> str:
    return Path(__file__).with_name("grammar.txt").read_text(encoding="utf-8")


def write_task_sentence(dice: random.Random, goal: HomeGoal) -> str:
    """What is to be done, in one of the ways to say it."""
    return pick_one(dice, SENTENCES[goal.type]).format(
        a="an" if goal.thing[0] in "aeiou" else "a",
        thing=goal.thing,
        in_="in" if goal.place in HOLLOW else "on",
        place=goal.place,
    )
