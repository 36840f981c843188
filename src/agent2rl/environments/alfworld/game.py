"""A game of ALFWorld, read once from its file and never changed: any number of episodes may share it.

A file (`game.tw-pddl`) is a JSON object with a PDDL domain, a PDDL problem, a grammar and a walkthrough. The
domain is recognised by its actions and not interpreted: ALFWorld has one only, and the engine plays by it.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Self

from agent2rl.core.errors import UserError
from agent2rl.environments.alfworld import pddl
from agent2rl.environments.alfworld.goal import TaskType, Wish, wish
from agent2rl.environments.alfworld.grammar import ACTIONS, Grammar, read, split
from agent2rl.environments.alfworld.house import House, build

_PLACING = frozenset({"pickupobject", "putobject", "heatobject", "coolobject", "cleanobject"})
_LIGHTING = frozenset({"gotolocation", "pickupobject", "putobject", "toggleobject"})


@dataclass(frozen=True)
class Goal:
    """What is wanted, by number."""

    things: frozenset[int]
    fixtures: tuple[int, ...]
    lamps: frozenset[int] | None
    """None: it is about fixtures."""
    qualities: frozenset[str]
    count: int
    actions: frozenset[str]
    """After any other action it is reached if it was before."""


@dataclass(frozen=True, eq=False)
class Game:
    id: str
    task: str
    """The sentence that says what to do: "put two newspaper in drawer."."""
    task_type: TaskType
    walkthrough: tuple[str, ...]
    """Commands that win."""
    notice: str = field(repr=False)
    """The task as the first observation states it."""
    grammar: Grammar = field(repr=False)
    house: House = field(repr=False)
    goal: Goal = field(repr=False)
    ways: tuple[str, ...] = field(repr=False)
    """The command that goes to each fixture."""

    @classmethod
    def load(cls, path: Path) -> Self:
        """From a file, whose id is `<task>/<trial>` after the folders it lies in."""
        try:
            data = json.loads(path.read_bytes())
        except (OSError, ValueError) as error:
            raise UserError(f"{path} cannot be read as a game of ALFWorld: {error}.") from error
        if not isinstance(data, dict):
            raise UserError(f"{path} is no game of ALFWorld: it holds no JSON object.")
        return cls.read(data, "/".join(path.absolute().parts[-3:-1]))

    @classmethod
    def read(cls, data: Mapping[str, object], id: str = "") -> Self:  # noqa: A002
        """From the object that a file holds. Without an id, the problem's own name is used."""
        texts = {key: data.get(key) for key in ("pddl_domain", "pddl_problem", "grammar")}
        domain, problem, grammar = (_text(texts, key) for key in texts)
        _recognise(domain)
        parts = pddl.sections(problem)
        notice, rest = split(grammar)
        house = build(pddl.facts(parts.get(":init", [])))
        wanted = wish(["and", *parts.get(":goal", [])])
        words = read(rest)
        walkthrough = data.get("walkthrough")
        return cls(
            id=id or " ".join(map(str, parts.get("problem", []))),
            task=notice.removeprefix("Your task is to: "),
            task_type=wanted.task,
            walkthrough=tuple(map(str, walkthrough)) if isinstance(walkthrough, list) else (),
            notice=notice,
            grammar=words,
            house=house,
            goal=_goal(wanted, house),
            ways=tuple(words.spellings["gotolocation"].format(r=name) for name in house.fixtures),
        )


def _text(texts: Mapping[str, object], key: str) -> str:
    text = texts[key]
    if not isinstance(text, str):
        raise UserError(f"A game of ALFWorld has a text {key!r}, and this one has not.")
    return text


@lru_cache(maxsize=8)
def _recognise(domain: str) -> None:
    actions = pddl.actions(domain)
    if actions != ACTIONS.keys():
        strange = ", ".join(sorted(actions ^ ACTIONS.keys()))
        raise UserError(f"This is not the domain of ALFWorld: it differs in the actions {strange}.")


def _goal(wanted: Wish, house: House) -> Goal:
    def of(kind: str) -> frozenset[int]:
        return frozenset(number for number, name in enumerate(house.thing_types) if name == kind)

    fixtures = (number for number, name in enumerate(house.fixture_types) if name == wanted.fixture)
    return Goal(
        things=of(wanted.thing),
        fixtures=tuple(fixtures),
        lamps=of(wanted.lamp) if wanted.lamp else None,
        qualities=wanted.qualities,
        count=wanted.count,
        actions=_LIGHTING if wanted.lamp else _PLACING,
    )
