"""Generates the miniature's homes, the same each time, in the official file format.

    for home in generate_homes("train", 100):
        game = AlfworldGame.from_data(home.data, home.id)

A home is a PDDL problem in domain.pddl, with the texts of grammar.txt, a task sentence, and the shortest
sequence of commands that wins. Not covered: several fixtures in one place, and things in other things.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import permutations, product
from pathlib import Path

from pydantic import JsonValue

from agent2rl.environments.alfworld.pddl import TaskType
from agent2rl.tasks.alfworld.layout import (
    APPLIANCES,
    EASY,
    FIXTURES,
    HOLLOW,
    LAMP,
    OPENABLE,
    ROOMS,
    TASK_TYPES,
    THINGS,
    HomeDifficulty,
    HomeGoal,
    HomeLayout,
    Part,
    furnish_home,
    kind_of,
    pick_one,
)

# Writes a home as a PDDL problem, in the domain of all of them (domain.pddl).

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
    """In one line, since every file has a copy."""
    return " ".join(Path(__file__).with_name("domain.pddl").read_text(encoding="utf-8").split())


def write_goal(goal: HomeGoal) -> str:
    """A goal as PDDL states it."""
    thing, place = _name_type(goal.thing), _name_type(goal.place)
    if goal.type == "look_at_obj_in_light":
        return f"""(and
    (exists (?x - object ?r - receptacle ?a - agent ?l - location) (and (objectType ?x {place})
      (toggleable ?x) (isToggled ?x) (inReceptacle ?x ?r) (receptacleAtLocation ?r ?l) (atLocation ?a ?l)))
    (exists (?o - object ?a - agent) (and (objectType ?o {thing}) (holds ?a ?o))))"""
    placed = f"(objectType ?o {thing}) (receptacleType ?r {place}) (inReceptacle ?o ?r)"
    if goal.count == 2:
        placed += (
            f"\n    (exists (?p - object) (and (not (= ?o ?p)) (objectType ?p {thing}) (inReceptacle ?p ?r)))"
        )
    qualities = _QUALITIES.get(goal.verb, "")
    return f"(exists (?r - receptacle) (exists (?o - object) (and {placed} {qualities})))"


def write_problem(layout: HomeLayout) -> str:
    """A home and its goal. What the domain speaks of must be declared, whether it is there or not."""
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
    """Of one kind, the first id in order has the highest number in its name."""
    ids = {}
    for name in (*layout.fixtures, *layout.things):
        kind, _, number = name.partition(" ")
        ids[name] = f"{kind.title()}_bar_{1 + len(layout.list_of_kind(kind)) - int(number):02d}"
    return ids


def _iterate_facts(layout: HomeLayout, ids: dict[str, str]) -> Iterator[str]:
    where = {name: f"loc_bar_{number}" for number, name in enumerate(layout.fixtures, start=1)}
    for name in layout.fixtures:
        yield f"(receptacleType {ids[name]} {_name_type(kind_of(name))})"
        yield f"(receptacleAtLocation {ids[name]} {where[name]})"
        if kind_of(name) in OPENABLE:
            yield f"(openable {ids[name]})"
            yield from () if name in layout.shut else (f"(opened {ids[name]})",)
    for name, fixture in layout.things.items():
        yield f"(objectType {ids[name]} {_name_type(kind_of(name))})"
        yield f"(inReceptacle {ids[name]} {ids[fixture]})"
        yield f"(objectAtLocation {ids[name]} {where[fixture]})"
        yield from (f"({_ABLE[use]} {ids[name]})" for use in sorted(THINGS[kind_of(name)].uses))
    present = {*map(kind_of, layout.fixtures)}
    for thing in sorted({*map(kind_of, layout.things)}):
        fitting = [place for place in THINGS[thing].places if place in present]
        yield from (f"(canContain {_name_type(place)} {_name_type(thing)})" for place in fitting)


# How a home's task is done by one who knows where everything is, in as few commands as can be.


def find_walkthrough(layout: HomeLayout) -> list[str]:
    """The commands; of several shortest ways, the first in the alphabet."""
    goal = layout.goal
    choices = permutations(layout.list_of_kind(goal.thing), goal.count)
    walks = (
        _HomeWalk(layout).carry_things(things, place)
        for things, place in product(choices, layout.list_of_kind(goal.place))
    )
    return min(walks, key=lambda said: (len(said), said))


class _HomeWalk:
    def __init__(self, layout: HomeLayout) -> None:
        self.layout = layout
        self.here = ""
        self.shut = set(layout.shut)
        self.said: list[str] = []

    def carry_things(self, things: Sequence[str], place: str) -> list[str]:
        """Bring things to a place, or show one to a lamp, each treated as the task wants it."""
        goal = self.layout.goal
        for thing in things:
            source = self.layout.things[thing]
            self._go_and_open(source)
            self.said.append(f"take {thing} from {source}")
            if goal.verb:
                [appliance] = self.layout.list_of_kind(goal.appliance)
                self._go_to(appliance)
                self.said.append(f"{goal.verb} {thing} with {appliance}")
            if goal.place == LAMP:
                self._go_to(self.layout.things[place])
                self.said.append(f"use {place}")
            else:
                self._go_and_open(place)
                self.said.append(f"move {thing} to {place}")
        return self.said

    def _go_to(self, fixture: str) -> None:
        if fixture != self.here:
            self.here = fixture
            self.said.append(f"go to {fixture}")

    def _go_and_open(self, fixture: str) -> None:
        """Go there and, if it is closed, open it. Appliances work closed."""
        self._go_to(fixture)
        if fixture in self.shut:
            self.shut.remove(fixture)
            self.said.append(f"open {fixture}")


# The words in which a home is played: its grammar (grammar.txt), and the sentence that states its task.

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
