"""Writes a home as a PDDL problem, in the domain of all of them (domain.pddl).

The domain has the official one's actions and predicates as far as a player can tell them apart. Not covered:
several fixtures in one place, and things in other things.
"""

from collections.abc import Iterator
from functools import cache
from pathlib import Path

from agent2rl.tasks.alfworld.kinds import APPLIANCES, FIXTURES, OPENABLE, THINGS
from agent2rl.tasks.alfworld.layout import HomeGoal, HomeLayout, kind_of

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
