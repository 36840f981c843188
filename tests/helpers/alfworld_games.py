"""Small games in ALFWorld's file format, in the miniature's domain and words, but untidier than its homes.

The official engine plays them too: `write` makes files that `benchmarks/alfworld_engine.py` can be given.
"""

import json
import random
import re
from itertools import product
from pathlib import Path

from agent2rl.tasks.alfworld.homes import read_domain, write_goal, write_grammar
from agent2rl.tasks.alfworld.layout import HomeGoal

GRAMMAR = write_grammar("do as told")
OLD_GRAMMAR = GRAMMAR.replace("move {o} to {r}", "put {o} in/on {r}").replace(
    "You move the {o.name} to the {r.name}.", "You put the {o.name} in/on the {r.name}."
)
GOALS: dict[str, str] = {
    goal.type: write_goal(goal)
    for goal in (
        HomeGoal("pick_and_place_simple", "", "mug", "fridge"),
        HomeGoal("pick_clean_then_place_in_recep", "", "mug", "table"),
        HomeGoal("pick_heat_then_place_in_recep", "", "apple", "table"),
        HomeGoal("pick_cool_then_place_in_recep", "", "apple", "shelf"),
        HomeGoal("look_at_obj_in_light", "", "apple", "desklamp"),
        HomeGoal("pick_two_obj_and_place", "", "mug", "cabinet"),
    )
}

THINGS = {
    "Mug": "pickupable cleanable heatable coolable",
    "Apple": "pickupable cleanable heatable coolable sliceable",
    "Knife": "pickupable cleanable",
    "Plate": "pickupable cleanable isReceptacleObject",
    "DeskLamp": "toggleable",
    "Statue": "",
}
FIXTURES = {"Table": "", "Shelf": "", "Cabinet": "openable", "Fridge": "openable"}
FIXTURES |= {"Microwave": "openable", "Sink": ""}

PORTABLE_THINGS = ("Mug", "Apple", "Knife")
"""What every fixture takes; a plate in hand stays there."""

KITCHEN_FACTS = """
    (receptacleAtLocation Table_bar_1 loc_bar_1) (receptacleAtLocation Shelf_bar_1 loc_bar_1)
    (receptacleAtLocation Cabinet_bar_1 loc_bar_2) (receptacleAtLocation Cabinet_bar_2 loc_bar_3)
    (receptacleAtLocation Fridge_bar_1 loc_bar_4) (receptacleAtLocation Microwave_bar_1 loc_bar_5)
    (receptacleAtLocation Sink_bar_1_bar_SinkBasin loc_bar_6)
    (inReceptacle Mug_bar_1 Table_bar_1) (inReceptacle Mug_bar_2 Cabinet_bar_1)
    (inReceptacle Apple_bar_1 Table_bar_1) (inReceptacle Apple_bar_1 Shelf_bar_1)
    (inReceptacle Knife_bar_1 Shelf_bar_1) (inReceptacle DeskLamp_bar_1 Table_bar_1)
    (inReceptacle Plate_bar_1 Shelf_bar_1) (inReceptacleObject Knife_bar_1 Plate_bar_1)
    (objectAtLocation Mug_bar_1 loc_bar_1) (objectAtLocation Mug_bar_2 loc_bar_2)
    (objectAtLocation Apple_bar_1 loc_bar_1) (objectAtLocation Knife_bar_1 loc_bar_1)
    (objectAtLocation DeskLamp_bar_1 loc_bar_1) (objectAtLocation Plate_bar_1 loc_bar_1)
    (atLocation agent1 loc_bar_9)
"""
"""Table and shelf stand in one place, and the apple is listed in both."""


def make_game(
    goal: str = "pick_and_place_simple", facts: str = KITCHEN_FACTS, words: str = GRAMMAR
) -> dict[str, object]:
    """What a game file holds, of one of the six types, in a house of which only the places need be said."""
    return {
        "pddl_domain": read_domain(),
        "grammar": words,
        "pddl_problem": make_problem(facts, GOALS[goal]),
        "solvable": True,
        "walkthrough": [],
    }


def make_problem(facts: str, goal: str) -> str:
    """A whole problem: the kinds of things and fixtures, which go without saying, and what is said."""
    ids = {name: name.partition("_")[0] for name in sorted(set(re.findall(r"[A-Z]\w*_bar_\w+", facts)))}
    things = {name: kind for name, kind in ids.items() if kind in THINGS}
    fixtures = {name: kind for name, kind in ids.items() if kind in FIXTURES}
    places = " ".join(sorted(set(re.findall(r"\bloc_bar_\d+", facts))))
    said = [f"(objectType {name} {kind}Type)" for name, kind in things.items()]
    said += [f"(receptacleType {name} {kind}Type)" for name, kind in fixtures.items()]
    said += [
        f"(canContain {fixture}Type {thing}Type)" for fixture, thing in product(FIXTURES, PORTABLE_THINGS)
    ]
    said += [f"({fact} {name})" for name, kind in things.items() for fact in THINGS[kind].split()]
    said += [f"({fact} {name})" for name, kind in fixtures.items() for fact in FIXTURES[kind].split()]
    rtypes = " ".join(f"{kind}Type" for kind in FIXTURES)
    otypes = " ".join(f"{kind}Type" for kind in THINGS)
    return f"""(define (problem house) (:domain household)
      (:objects agent1 - agent {" ".join(things)} - object {" ".join(fixtures)} - receptacle
        {places} - location {rtypes} - rtype {otypes} - otype)
      (:init {" ".join(said)} {facts})
      (:goal {goal}))"""


def make_random_house(chance: random.Random) -> str:
    """Facts of a house: fixtures share places, and things may be in two fixtures or, of many, in none.

    Every goal can be reached: the official engine does not load a game otherwise.
    """
    fixtures = [f"{kind}_bar_{number}" for kind in FIXTURES for number in range(chance.randint(1, 2))]
    facts = []
    for fixture in fixtures:
        facts.append(f"(receptacleAtLocation {fixture} loc_bar_{chance.randint(1, 4)})")
    for kind in THINGS:
        for number in range(chance.randint(2, 3)):
            thing = f"{kind}_bar_{number}"
            facts.append(f"(objectAtLocation {thing} loc_bar_{chance.randint(1, 4)})")
            homes = chance.sample(fixtures, chance.choice([1, 1, 2] if number < 2 else [0, 1, 2]))
            facts += [f"(inReceptacle {thing} {fixture})" for fixture in homes]
    facts.append(f"(atLocation agent1 loc_bar_{chance.choice([1, 9])})")
    return "\n".join(facts)


def write_random_games(folder: Path, count: int) -> None:
    """Files of random houses, for the official engine."""
    for number in range(count):
        chance = random.Random(number)
        goal = chance.choice(list(GOALS))
        file = folder / goal / f"trial_{number}" / "game.tw-pddl"
        file.parent.mkdir(parents=True, exist_ok=True)
        words = GRAMMAR if number % 2 else OLD_GRAMMAR
        file.write_text(json.dumps(make_game(goal, make_random_house(chance), words)), encoding="utf-8")
