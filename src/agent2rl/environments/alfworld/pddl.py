"""Parse PDDL text to nested lists, and recognise the goal of an ALFWorld problem.

Names are lower-cased and comments dropped. A goal must match one of ALFWorld's six forms exactly, or one of
the longer chains that this project adds for its generated games.
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
"""An atom is one token, for speed: a problem consists mostly of atoms."""


def parse_pddl(text: str) -> list[Expression]:
    """Parse a PDDL file, which is one expression."""
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
        raise UserError("The PDDL text is not one expression with balanced parentheses.")
    return top[0]


def parse_sections(text: str) -> dict[str, list[Expression]]:
    """Return the sections of a problem by name: `problem`, `:objects`, `:init`, `:goal`, …"""
    parts = (part for part in parse_pddl(text) if not isinstance(part, str))
    return {part[0]: [*part[1:]] for part in parts if part and isinstance(part[0], str)}


def parse_action_names(text: str) -> set[str]:
    """Return the names of a domain's actions."""
    parts = (part for part in parse_pddl(text) if isinstance(part, list))
    return {str(part[1]) for part in parts if part[0] == ":action" and len(part) > 1}


def iter_facts(init: Iterable[Expression]) -> Iterator[Atom]:
    """Yield the initial facts, without function values such as `(= (distance …) …)`."""
    return (require_atom(part) for part in init if not (isinstance(part, list) and part[0] == "="))


def require_atom(expression: Expression) -> Atom:
    """Return the expression, which must be an atom."""
    if isinstance(expression, tuple) and expression:
        return expression
    raise UserError(f"Expected a PDDL fact, got {expression!r}.")


# Recognising the goal of a PDDL problem

TaskType = Literal[
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
]

ChainType = Literal[
    "pick_clean_heat_then_place_in_recep",
    "pick_clean_cool_then_place_in_recep",
    "pick_two_clean_then_place_in_recep",
    "pick_two_heat_then_place_in_recep",
]
"""Longer chains, which no official game has: two treatments of a thing, or two things that are treated."""
GoalType = TaskType | ChainType

PLACED: dict[GoalType, frozenset[str]] = {
    "pick_and_place_simple": frozenset(),
    "pick_clean_then_place_in_recep": frozenset({"cleanable", "isclean"}),
    "pick_heat_then_place_in_recep": frozenset({"heatable", "ishot"}),
    "pick_cool_then_place_in_recep": frozenset({"coolable", "iscool"}),
    "pick_clean_heat_then_place_in_recep": frozenset({"cleanable", "isclean", "heatable", "ishot"}),
    "pick_clean_cool_then_place_in_recep": frozenset({"cleanable", "isclean", "coolable", "iscool"}),
}
PLACED_TWICE: dict[GoalType, frozenset[str]] = {
    "pick_two_obj_and_place": frozenset(),
    "pick_two_clean_then_place_in_recep": frozenset({"cleanable", "isclean"}),
    "pick_two_heat_then_place_in_recep": frozenset({"heatable", "ishot"}),
}
"""Facts that must be true of each thing to be placed, for one thing and for two."""


@dataclass(frozen=True)
class ParsedGoal:
    """A goal in terms of types: a `thing` in or on a `fixture`, or in hand and in the light of a `lamp`."""

    task: GoalType
    thing: str
    fixture: str = ""
    lamp: str = ""

    @property
    def qualities(self) -> frozenset[str]:
        return (PLACED | PLACED_TWICE).get(self.task, frozenset())

    @property
    def count(self) -> int:
        return 2 if self.task in PLACED_TWICE else 1


GoalReading = tuple[ParsedGoal, set[Atom]]
"""A candidate goal, and all facts of its PDDL form."""


def parse_goal(goal: Expression) -> ParsedGoal:
    """Parse a goal of any known form."""
    atoms = set(_iter_atoms(goal))
    things = {name: kind for _, name, kind in _select_facts(atoms, "objecttype", 2)}
    fixtures = {name: kind for _, name, kind in _select_facts(atoms, "receptacletype", 2)}
    for candidate, facts in (*_iter_placing_goals(things, fixtures), *_iter_lamp_goals(things, atoms)):
        if facts == atoms:
            return candidate
    text = " ".join(f"({' '.join(fact)})" for fact in sorted(atoms))
    raise UserError(f"The goal of this game has no known form. Its facts: {text}.")


def _iter_placing_goals(things: dict[str, str], fixtures: dict[str, str]) -> Iterator[GoalReading]:
    """Yield goals to place one thing, treated or not, or two of a kind in or on one fixture."""
    if len(fixtures) != 1 or len(set(things.values())) != 1:
        return
    [(place, fixture)], [thing] = fixtures.items(), set(things.values())
    facts: set[Atom] = {("receptacletype", place, fixture)}
    for name in things:
        facts |= {("objecttype", name, thing), ("inreceptacle", name, place)}
    forms = {1: PLACED, 2: PLACED_TWICE}.get(len(things), {})
    if len(things) == 2:
        facts.add(("differ", *sorted(things)))
    for task, qualities in forms.items():
        treated: set[Atom] = {(quality, name) for quality in qualities for name in things}
        yield ParsedGoal(task, thing, fixture), facts | treated


def _iter_lamp_goals(things: dict[str, str], atoms: set[Atom]) -> Iterator[GoalReading]:
    """Yield the goal to hold one thing next to a lamp that was turned on."""
    lamps = _select_facts(atoms, "istoggled", 1)
    holdings = _select_facts(atoms, "holds", 2)
    spots = _select_facts(atoms, "receptacleatlocation", 2)
    if not len(lamps) == len(holdings) == len(spots) == 1:
        return
    [(_, lamp)], [(_, agent, thing)], [(_, place, location)] = lamps, holdings, spots
    if things.keys() != {lamp, thing}:
        return
    facts: set[Atom] = {("objecttype", name, kind) for name, kind in things.items()}
    facts |= {
        ("toggleable", lamp),
        ("istoggled", lamp),
        ("inreceptacle", lamp, place),
        ("holds", agent, thing),
    }
    facts |= {("receptacleatlocation", place, location), ("atlocation", agent, location)}
    yield ParsedGoal("look_at_obj_in_light", things[thing], lamp=things[lamp]), facts


def _select_facts(atoms: set[Atom], predicate: str, arguments: int) -> list[Atom]:
    return [fact for fact in atoms if fact[0] == predicate and len(fact) == 1 + arguments]


def _iter_atoms(goal: Expression) -> Iterator[Atom]:
    """Yield every fact of a conjunction, ignoring quantifiers; `(not (= one other))` becomes `differ`."""
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
