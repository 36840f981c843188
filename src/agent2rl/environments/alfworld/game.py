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
from agent2rl.environments.alfworld.goal import ParsedGoal, TaskType, parse_goal
from agent2rl.environments.alfworld.grammar import ACTIONS, Grammar, parse_grammar, split_task
from agent2rl.environments.alfworld.house import House, build_house

_PLACING = frozenset({"pickupobject", "putobject", "heatobject", "coolobject", "cleanobject"})
_LIGHTING = frozenset({"gotolocation", "pickupobject", "putobject", "toggleobject"})


@dataclass(frozen=True)
class AlfworldGoal:
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
class AlfworldGame:
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
    goal: AlfworldGoal = field(repr=False)
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
        return cls.from_data(data, "/".join(path.absolute().parts[-3:-1]))

    @classmethod
    def from_data(cls, data: Mapping[str, object], id: str = "") -> Self:  # noqa: A002
        """From the object that a file holds. Without an id, the problem's own name is used."""
        texts = {key: data.get(key) for key in ("pddl_domain", "pddl_problem", "grammar")}
        domain, problem, grammar = (_require_text(texts, key) for key in texts)
        _check_domain(domain)
        parts = pddl.parse_sections(problem)
        notice, rest = split_task(grammar)
        house = build_house(pddl.iter_facts(parts.get(":init", [])))
        wanted = parse_goal(["and", *parts.get(":goal", [])])
        words = parse_grammar(rest)
        walkthrough = data.get("walkthrough")
        return cls(
            id=id or " ".join(map(str, parts.get("problem", []))),
            task=notice.removeprefix("Your task is to: "),
            task_type=wanted.task,
            walkthrough=tuple(map(str, walkthrough)) if isinstance(walkthrough, list) else (),
            notice=notice,
            grammar=words,
            house=house,
            goal=_number_goal(wanted, house),
            ways=tuple(words.spellings["gotolocation"].format(r=name) for name in house.fixtures),
        )


def _require_text(texts: Mapping[str, object], key: str) -> str:
    text = texts[key]
    if not isinstance(text, str):
        raise UserError(f"A game of ALFWorld has a text {key!r}, and this one has not.")
    return text


@lru_cache(maxsize=8)
def _check_domain(domain: str) -> None:
    actions = pddl.parse_action_names(domain)
    if actions != ACTIONS.keys():
        strange = ", ".join(sorted(actions ^ ACTIONS.keys()))
        raise UserError(f"This is not the domain of ALFWorld: it differs in the actions {strange}.")


def _number_goal(wanted: ParsedGoal, house: House) -> AlfworldGoal:
    def of(kind: str) -> frozenset[int]:
        return frozenset(number for number, name in enumerate(house.thing_types) if name == kind)

    fixtures = (number for number, name in enumerate(house.fixture_types) if name == wanted.fixture)
    return AlfworldGoal(
        things=of(wanted.thing),
        fixtures=tuple(fixtures),
        lamps=of(wanted.lamp) if wanted.lamp else None,
        qualities=wanted.qualities,
        count=wanted.count,
        actions=_LIGHTING if wanted.lamp else _PLACING,
    )
