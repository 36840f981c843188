"""Generate the miniature's homes in the official file format. Deterministic.

    for home in generate_homes("train", 100):
        game = AlfworldGame.from_data(home.data, home.id)

A home is a PDDL problem in the domain of domain.pddl, with the texts of grammar.txt, a task sentence, and the
shortest sequence of commands that wins. Not covered: several fixtures in one place, and things in other
things.
"""

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import permutations, product
from pathlib import Path

from pydantic import JsonValue

from agent2rl.environments.alfworld.pddl import GoalType
from agent2rl.tasks.alfworld.layout import (
    APPLIANCES,
    EASY,
    FIXTURES,
    HOLLOW,
    LAMP,
    OPENABLE,
    ROOMS,
    THINGS,
    HomeDifficulty,
    HomeGoal,
    HomeLayout,
    Part,
    furnish_home,
    kind_of,
    pick_one,
)

# Writing a home as a PDDL problem

_QUALITIES = {
    "clean": "(cleanable ?o) (isClean ?o)",
    "heat": "(heatable ?o) (isHot ?o)",
    "cool": "(coolable ?o) (isCool ?o)",
}
_ABLE = {
    "take": "pickupable",
    "clean": "cleanable",
    "heat": "heatable",
    "cool": "coolable",
    "slice": "sliceable",
    "use": "toggleable",
}


@cache
def read_domain() -> str:
    """Read the domain as one line, to save space: every file has a copy."""
    return " ".join(Path(__file__).with_name("domain.pddl").read_text(encoding="utf-8").split())


def write_goal(goal: HomeGoal) -> str:
    """Write a goal as PDDL."""
    thing, place = _name_type(goal.thing), _name_type(goal.place)
    if goal.type == "look_at_obj_in_light":
        return f"""(and
    (exists (?x - object ?r - receptacle ?a - agent ?l - location) (and (objectType ?x {place})
      (toggleable ?x) (isToggled ?x) (inReceptacle ?x ?r) (receptacleAtLocation ?r ?l) (atLocation ?a ?l)))
    (exists (?o - object ?a - agent) (and (objectType ?o {thing}) (holds ?a ?o))))"""
    placed = f"(objectType ?o {thing}) (receptacleType ?r {place}) (inReceptacle ?o ?r)"
    qualities = " ".join(_QUALITIES[verb] for verb in goal.verbs)
    if goal.count == 2:
        second = f"(not (= ?o ?p)) (objectType ?p {thing}) (inReceptacle ?p ?r)"
        if qualities:
            second += f" {qualities.replace('?o', '?p')}"
        placed += f"\n    (exists (?p - object) (and {second}))"
    return f"(exists (?r - receptacle) (exists (?o - object) (and {placed} {qualities})))"


def write_problem(layout: HomeLayout) -> str:
    """Write a home and its goal as PDDL. Everything in the domain must be declared, present or not."""
    ids = _assign_ids(layout)
    things = {"knife", *map(kind_of, layout.things)}
    fixtures = {*APPLIANCES.values(), *map(kind_of, layout.fixtures)}
    declared = {
        "agent": ["agent1"],
        "object": [ids[name] for name in layout.things],
        "receptacle": [ids[name] for name in layout.fixtures],
        "location": [f"loc_bar_{number}" for number in range(len(layout.fixtures) + 1)],
        "rtype": [_name_type(kind) for kind in FIXTURES if kind in fixtures],
        "otype": [_name_type(kind) for kind in THINGS if kind in things],
    }
    objects = "\n".join(f"{' '.join(names)} - {kind}" for kind, names in declared.items())
    facts = " ".join(_iterate_facts(layout, ids))
    return f"""(define (problem home) (:domain household)
(:objects {objects})
(:init (atLocation agent1 loc_bar_0) {facts})
(:goal {write_goal(layout.goal)}))
"""


def _name_type(kind: str) -> str:
    return f"{kind.title()}Type"


def _assign_ids(layout: HomeLayout) -> dict[str, str]:
    """Assign ids. The first id of a kind has the highest number in its name, as in the official files."""
    names = (*layout.fixtures, *layout.things)
    counts, ids = Counter(map(kind_of, names)), {}
    for name in names:
        kind, _, number = name.partition(" ")
        ids[name] = f"{kind.title()}_bar_{1 + counts[kind] - int(number):02d}"
    return ids


def _iterate_facts(layout: HomeLayout, ids: dict[str, str]) -> Iterator[str]:
    locations = {name: f"loc_bar_{number}" for number, name in enumerate(layout.fixtures, start=1)}
    for name in layout.fixtures:
        yield f"(receptacleType {ids[name]} {_name_type(kind_of(name))})"
        yield f"(receptacleAtLocation {ids[name]} {locations[name]})"
        if kind_of(name) in OPENABLE:
            yield f"(openable {ids[name]})"
            yield from () if name in layout.shut else (f"(opened {ids[name]})",)
    for name, fixture in layout.things.items():
        yield f"(objectType {ids[name]} {_name_type(kind_of(name))})"
        yield f"(inReceptacle {ids[name]} {ids[fixture]})"
        yield f"(objectAtLocation {ids[name]} {locations[fixture]})"
        yield from (f"({_ABLE[use]} {ids[name]})" for use in sorted(THINGS[kind_of(name)].uses))
    present = {*map(kind_of, layout.fixtures)}
    for thing in sorted({*map(kind_of, layout.things)}):
        fitting = [place for place in THINGS[thing].places if place in present]
        yield from (f"(canContain {_name_type(place)} {_name_type(thing)})" for place in fitting)


# The shortest walkthrough, with full knowledge of the home


def find_walkthrough(layout: HomeLayout) -> list[str]:
    """Return the commands; of several shortest walkthroughs, the first in alphabetical order."""
    goal = layout.goal
    choices = permutations(layout.list_of_kind(goal.thing), goal.count)
    walks = (
        _HomeWalk(layout).carry_things(things, place)
        for things, place in product(choices, layout.list_of_kind(goal.place))
    )
    return min(walks, key=lambda commands: (len(commands), commands))


class _HomeWalk:
    def __init__(self, layout: HomeLayout) -> None:
        self.layout = layout
        self.here = ""
        self.shut = set(layout.shut)
        self.commands: list[str] = []

    def carry_things(self, things: Sequence[str], place: str) -> list[str]:
        """Bring things to a place, or hold one next to a lamp, each treated as the task requires."""
        goal = self.layout.goal
        for thing in things:
            source = self.layout.things[thing]
            self._go_and_open(source)
            self.commands.append(f"take {thing} from {source}")
            for verb, kind in zip(goal.verbs, goal.appliances, strict=True):
                [appliance] = self.layout.list_of_kind(kind)
                self._go_to(appliance)
                self.commands.append(f"{verb} {thing} with {appliance}")
            if goal.place == LAMP:
                self._go_to(self.layout.things[place])
                self.commands.append(f"use {place}")
            else:
                self._go_and_open(place)
                self.commands.append(f"move {thing} to {place}")
        return self.commands

    def _go_to(self, fixture: str) -> None:
        if fixture != self.here:
            self.here = fixture
            self.commands.append(f"go to {fixture}")

    def _go_and_open(self, fixture: str) -> None:
        """Go there and, if it is closed, open it. Appliances work closed."""
        self._go_to(fixture)
        if fixture in self.shut:
            self.shut.remove(fixture)
            self.commands.append(f"open {fixture}")


# Texts: the grammar (grammar.txt), and the sentence that states the task

SENTENCES: dict[GoalType, tuple[str, ...]] = {
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
    "pick_clean_heat_then_place_in_recep": (
        "put a clean and hot {thing} {in_} the {place}",
        "clean {a} {thing}, heat it and put it {in_} the {place}",
    ),
    "pick_clean_cool_then_place_in_recep": (
        "put a clean and cool {thing} {in_} the {place}",
        "clean {a} {thing}, cool it and put it {in_} the {place}",
    ),
    "pick_two_clean_then_place_in_recep": (
        "put two clean {thing} {in_} the {place}",
        "clean two {thing} and put them {in_} the {place}",
    ),
    "pick_two_heat_then_place_in_recep": (
        "put two hot {thing} {in_} the {place}",
        "heat two {thing} and put them {in_} the {place}",
    ),
}


def write_grammar(task: str) -> str:
    """Write the grammar with the sentence that states the task."""
    return _read_grammar().replace("TASK", f"Your task is to: {task}.")


@cache
def _read_grammar() -> str:
    return Path(__file__).with_name("grammar.txt").read_text(encoding="utf-8")


def write_task_sentence(dice: random.Random, goal: HomeGoal) -> str:
    """Write the task sentence in one of its phrasings."""
    return pick_one(dice, SENTENCES[goal.type]).format(
        a="an" if goal.thing[0] in "aeiou" else "a",
        thing=goal.thing,
        in_="in" if goal.place in HOLLOW else "on",
        place=goal.place,
    )


@dataclass(frozen=True)
class GeneratedHome:
    id: str
    """`<task>/<trial>`, like the official ones."""
    data: Mapping[str, JsonValue] = field(repr=False)
    """The contents of its file."""


def generate_homes(split: Part, count: int, difficulty: HomeDifficulty = EASY) -> tuple[GeneratedHome, ...]:
    """Generate the first `count` homes of a split, all different; the types of tasks alternate."""
    dice = random.Random(f"alfworld-mini:{split}")
    types = difficulty.list_task_types(split)
    homes: dict[str, GeneratedHome] = {}
    while len(homes) < count:
        layout = furnish_home(dice, types[len(homes) % len(types)], split, difficulty)
        problem = write_problem(layout)
        data: dict[str, JsonValue] = {
            "pddl_domain": read_domain(),
            "grammar": write_grammar(write_task_sentence(dice, layout.goal)),
            "pddl_problem": problem,
            "solvable": True,
            "walkthrough": [*find_walkthrough(layout)],
        }
        homes.setdefault(problem, GeneratedHome(f"{_name_task(layout.goal)}/trial_{len(homes):04d}", data))
    return tuple(homes.values())


def _name_task(goal: HomeGoal) -> str:
    """Name a task like the official ones, which end with the number of the room."""
    room = 1 + [*ROOMS].index(goal.room)
    return f"{goal.type}-{goal.thing.title()}-None-{goal.place.title()}-{room}"
