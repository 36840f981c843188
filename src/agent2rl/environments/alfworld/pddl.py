"""Reads PDDL text as nested lists, and recognises the goal of an ALFWorld problem in it.

Names are lower-cased and comments dropped. A goal is one of six forms and must match one of them exactly.
Not covered: goals in general, which would need a search at every step.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from agent2rl.core.errors import UserError

Atom: TypeAlias = tuple[str, ...]
"""A list of words alone, such as the fact `(inReceptacle mug table)`."""
Expression: TypeAlias = "str | Atom | list[Expression]"

_COMMENT = re.compile(r";[^\n]*")
_TOKEN = re.compile(r"\([^()]*\)|[()]|[^\s()]+")
"""An atom is one token: most of a problem is made of these."""


def parse_pddl(text: str) -> list[Expression]:
    """The one expression that a PDDL file consists of."""
    top: list[Expression] = []
    inner, outer = top, []
    for token in _TOKEN.findall(_COMMENT.sub("", text).lower()):
        if token == "(":
            outer.append(inner)
            inner = []
        elif token == ")" and outer:
            outer[-1].append(inner)
            inner = outer.pop()
        else:
            inner.append(tuple(token[1:-1].split()) if token[0] == "(" else token)
    if outer or len(top) != 1 or not isinstance(top[0], list):
        raise UserError("A PDDL text is not one expression in balanced parentheses.")
    return top[0]


def parse_sections(text: str) -> dict[str, list[Expression]]:
    """The parts of a problem by their heads: `problem`, `:objects`, `:init`, `:goal`, …"""
    parts = (part for part in parse_pddl(text) if not isinstance(part, str))
    return {part[0]: [*part[1:]] for part in parts if part and isinstance(part[0], str)}


def parse_action_names(text: str) -> set[str]:
    """The names of a domain's actions."""
    parts = (part for part in parse_pddl(text) if isinstance(part, list))
    return {str(part[1]) for part in parts if part[0] == ":action" and len(part) > 1}


def iter_facts(init: Iterable[Expression]) -> Iterator[Atom]:
    """What is true at first. The values of functions, `(= (distance …) …)`, are left out."""
    return (require_atom(part) for part in init if not (isinstance(part, list) and part[0] == "="))


def require_atom(expression: Expression) -> Atom:
    """An expression that must be an atom."""
    if isinstance(expression, tuple) and expression:
        return expression
    raise UserError(f"A PDDL fact is expected where {expression!r} stands.")


# What a game asks for, read from the goal of its PDDL problem.

TaskType = Literal[
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
]

PLACED: dict[TaskType, frozenset[str]] = {
    "pick_and_place_simple": frozenset(),
    "pick_clean_then_place_in_recep": frozenset({"cleanable", "isclean"}),
    "pick_heat_then_place_in_recep": frozenset({"heatable", "ishot"}),
    "pick_cool_then_place_in_recep": frozenset({"coolable", "iscool"}),
}
"""What must be true of the one thing that is to be placed."""


@dataclass(frozen=True)
class ParsedGoal:
    """A goal in terms of types: a `thing` in or on a `fixture`, or in hand and in the light of a `lamp`."""

    task: TaskType
    thing: str
    fixture: str = ""
    lamp: str = ""

    @property
    def qualities(self) -> frozenset[str]:
        return PLACED.get(self.task, frozenset())

    @property
    def count(self) -> int:
        return 2 if self.task == "pick_two_obj_and_place" else 1


GoalReading = tuple[ParsedGoal, set[Atom]]
"""A wish that may be meant, and all that its goal would say."""


def parse_goal(goal: Expression) -> ParsedGoal:
    """What a goal wants, whichever of the six forms it has."""
    atoms = set(_iter_atoms(goal))
    things = {name: kind for _, name, kind in _select_facts(atoms, "objecttype", 2)}
    fixtures = {name: kind for _, name, kind in _select_facts(atoms, "receptacletype", 2)}
    for meant, said in (*_iter_placing_goals(things, fixtures), *_iter_lamp_goals(things, atoms)):
        if said == atoms:
            return meant
    facts = " ".join(f"({' '.join(fact)})" for fact in sorted(atoms))
    raise UserError(f"The goal of this game is none of ALFWorld's six. It says: {facts}.")


def _iter_placing_goals(things: dict[str, str], fixtures: dict[str, str]) -> Iterator[GoalReading]:
    """One thing, as it is or treated, or two alike, in or on one fixture."""
    if len(fixtures) != 1 or len(set(things.values())) != 1:
        return
    [(place, fixture)], [thing] = fixtures.items(), set(things.values())
    said: set[Atom] = {("receptacletype", place, fixture)}
    for name in things:
        said |= {("objecttype", name, thing), ("inreceptacle", name, place)}
    if len(things) == 1:
        for task, qualities in PLACED.items():
            yield ParsedGoal(task, thing, fixture), said | {(quality, *things) for quality in qualities}
    elif len(things) == 2:
        yield ParsedGoal("pick_two_obj_and_place", thing, fixture), said | {("differ", *sorted(things))}


def _iter_lamp_goals(things: dict[str, str], atoms: set[Atom]) -> Iterator[GoalReading]:
    """One thing in hand, where a lamp is that was used."""
    lamps = _select_facts(atoms, "istoggled", 1)
    holdings = _select_facts(atoms, "holds", 2)
    spots = _select_facts(atoms, "receptacleatlocation", 2)
    if not len(lamps) == len(holdings) == len(spots) == 1:
        return
    [(_, lamp)], [(_, agent, thing)], [(_, place, location)] = lamps, holdings, spots
    if things.keys() != {lamp, thing}:
        return
    said: set[Atom] = {("objecttype", name, kind) for name, kind in things.items()}
    said |= {
        ("toggleable", lamp),
        ("istoggled", lamp),
        ("inreceptacle", lamp, place),
        ("holds", agent, thing),
    }
    said |= {("receptacleatlocation", place, location), ("atlocation", agent, location)}
    yield ParsedGoal("look_at_obj_in_light", things[thing], lamp=things[lamp]), said


def _select_facts(atoms: set[Atom], predicate: str, arguments: int) -> list[Atom]:
    return [fact for fact in atoms if fact[0] == predicate and len(fact) == 1 + arguments]


def _iter_atoms(goal: Expression) -> Iterator[Atom]:
    """Every fact of a conjunction, whatever quantifies it; `(not (= one other))` as `differ`."""
    match goal:
        case ["and", *parts]:
            for part in parts:
                yield from _iter_atoms(part)
        case ["exists", _, part]:
            yield from _iter_atoms(part)
        case ["not", ["=", str(one), str(other)]]:
            yield ("differ", *sorted((one, other)))
        case _:
            yield require_atom(goal)
