"""An ALFWorld game, read once from its file (`game.tw-pddl`) and shared by any number of episodes.

The file is a JSON object with a PDDL domain, a PDDL problem, a grammar and a walkthrough. `House` is the
initial state, with things and fixtures as numbers in the order of their ids, which is the order in which
texts list them. The domain is recognised by its actions and not interpreted: ALFWorld has only one.

Files from before alfworld 0.4 have no action `help` and say `put X in/on Y`. They are read as ALFWorld's own
update of its files makes them: with `help` and `move X to Y`, so that prompts and scores are the same.
"""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Self, TypeVar

from agent2rl.core.errors import UserError
from agent2rl.environments.alfworld import pddl
from agent2rl.environments.alfworld.grammar import ACTIONS, Grammar, parse_grammar, split_task
from agent2rl.environments.alfworld.pddl import Atom, GoalType, ParsedGoal, parse_goal

# The initial state of the house, built from the facts of the PDDL problem

Facts = frozenset[str]
Numbers = tuple[int, ...]
Pairs = Mapping[str, list[tuple[str, str]]]
T = TypeVar("T")

OF_THINGS = frozenset(
    {"isreceptacleobject", "pickupable", "moveable", "toggleable", "ison", "istoggled", "sliceable"}
    | {"issliced", "cleanable", "isclean", "heatable", "ishot", "coolable", "iscool"}
)
OF_FIXTURES = frozenset({"openable", "opened"})
OF_ONE = OF_THINGS | OF_FIXTURES
OF_TWO = frozenset(
    {"objecttype", "objectatlocation", "inreceptacle", "inreceptacleobject", "cancontain"}
    | {"receptacletype", "receptacleatlocation", "atlocation"}
)
UNASKED = frozenset({"checked", "examined", "wasinreceptacle", "full", "isreceptacleobjectfull"})


@dataclass(frozen=True, eq=False)
class House:
    """The initial state of a house. All tuples are indexed by the number of a thing, fixture or location."""

    things: tuple[str, ...]
    fixtures: tuple[str, ...]
    names: Mapping[str, tuple[str, ...]]
    """Names of things or fixtures, by the letters that stand for them in commands."""
    numbers: Mapping[str, Mapping[str, int]]
    """The inverse of `names`: the number of each name."""
    thing_types: tuple[str, ...]
    fixture_types: tuple[str, ...]
    thing_facts: tuple[Facts, ...]
    fixture_facts: tuple[Facts, ...]
    accepted: tuple[frozenset[int], ...]
    """The things that may be put in or on each fixture."""
    contents: tuple[Numbers, ...]
    """The things in or on each fixture. A thing may be in two fixtures."""
    inside: tuple[Numbers, ...]
    """The things inside each thing, which no action changes."""
    standing: Numbers
    """The location of each fixture."""
    nearby: tuple[Numbers, ...]
    """The fixtures at each location."""
    around: tuple[Numbers, ...]
    """The things at each location."""
    start: int
    """The player's first location."""


def build_house(facts: Iterable[Atom]) -> House:
    """Build the house that these facts describe."""
    pairs, singles, ids = _group_facts(facts)
    things, fixtures, locations = _collect_ids(pairs, singles)
    names = _assign_names(ids)
    thing_names, fixture_names = (
        tuple(names[thing] for thing in things),
        tuple(names[fixture] for fixture in fixtures),
    )
    thing_types, fixture_types = (
        _look_up_types(things, pairs["objecttype"]),
        _look_up_types(fixtures, pairs["receptacletype"]),
    )
    fixture_locations, location_numbers = dict(pairs["receptacleatlocation"]), _number_names(locations)
    return House(
        things=thing_names,
        fixtures=fixture_names,
        names=_index_by_letters(thing_names, fixture_names),
        numbers=_index_by_letters(_number_names(thing_names), _number_names(fixture_names)),
        thing_types=thing_types,
        fixture_types=fixture_types,
        thing_facts=_collect_facts(things, singles, OF_THINGS),
        fixture_facts=_collect_facts(fixtures, singles, OF_FIXTURES),
        accepted=_find_accepted(pairs["cancontain"], thing_types, fixture_types),
        contents=_group_members(pairs["inreceptacle"], things, fixtures),
        inside=_group_members(pairs["inreceptacleobject"], things, things),
        standing=tuple(location_numbers[fixture_locations[fixture]] for fixture in fixtures),
        nearby=_group_members(pairs["receptacleatlocation"], fixtures, locations),
        around=_group_members(pairs["objectatlocation"], things, locations),
        start=len(locations) - 1,
    )


def _group_facts(facts: Iterable[Atom]) -> tuple[Pairs, Mapping[str, set[str]], set[str]]:
    """Group binary and unary facts by predicate, and collect every id."""
    pairs: dict[str, list[tuple[str, str]]] = defaultdict(list)
    singles: dict[str, set[str]] = defaultdict(set)
    ids: set[str] = set()
    for fact in facts:
        if len(fact) == 3 and fact[0] in OF_TWO:
            pairs[fact[0]].append((fact[1], fact[2]))
        elif len(fact) == 2 and fact[0] in OF_ONE:
            singles[fact[0]].add(fact[1])
        elif fact[0] not in UNASKED:
            raise UserError(f"Unsupported initial fact in a game: ({' '.join(fact)}).")
        ids.update(fact[1:])
    return pairs, singles, ids


def _collect_ids(pairs: Pairs, singles: Mapping[str, set[str]]) -> tuple[list[str], list[str], list[str]]:
    """Return the sorted ids of things and fixtures, and those of locations with the first location last."""
    things = {
        one for relation in ("objecttype", "objectatlocation", "inreceptacle") for one, _ in pairs[relation]
    }
    things |= {one for pair in pairs["inreceptacleobject"] for one in pair}
    things |= {one for predicate in OF_THINGS for one in singles[predicate]}
    fixture_locations = dict(pairs["receptacleatlocation"])
    if len(fixture_locations) != len(set(pairs["receptacleatlocation"])) or len(pairs["atlocation"]) != 1:
        raise UserError("A receptacle of this game, or the player, is not in exactly one place.")
    [(_, start)] = pairs["atlocation"]
    locations = [*sorted(set(fixture_locations.values()) - {start}), start]
    return sorted(things), sorted(fixture_locations), locations


def _assign_names(ids: Iterable[str]) -> dict[str, str]:
    """Map ids to names: `mug_bar__plus_00_dot_5_bar_…` → "mug 2". Numbers of one kind count down."""
    kinds = {}
    for one in ids:
        kind, bar, _ = one.partition("_bar_")
        kinds[one] = "" if not bar else f"{kind}basin" if "basin" in one else kind
    left = Counter(kinds.values())
    names = {}
    for one in sorted(kinds):
        kind = kinds[one]
        names[one] = f"{kind} {left[kind]}" if kind else f"{one} "
        left[kind] -= 1
    return names


def _number_names(names: Iterable[str]) -> dict[str, int]:
    return {name: number for number, name in enumerate(names)}


def _index_by_letters(things: T, fixtures: T) -> dict[str, T]:
    return {"o": things, "co": things, "ko": things, "r": fixtures}


def _look_up_types(ids: Iterable[str], relation: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    types = dict(relation)
    return tuple(types.get(one, "") for one in ids)


def _collect_facts(
    ids: Iterable[str], singles: Mapping[str, set[str]], predicates: Facts
) -> tuple[Facts, ...]:
    """Return the facts of each id. Equal sets share one object, to save memory."""
    shared: dict[Facts, Facts] = {}
    sets = (frozenset(predicate for predicate in predicates if one in singles[predicate]) for one in ids)
    return tuple(shared.setdefault(facts, facts) for facts in sets)


def _group_members(
    relation: Iterable[tuple[str, str]], members: Sequence[str], groups: Sequence[str]
) -> tuple[Numbers, ...]:
    """Return the sorted numbers of the members of each of these groups."""
    numbers = _number_names(members)
    by_group: dict[str, set[int]] = {group: set() for group in groups}
    for member, group in relation:
        if group in by_group:
            by_group[group].add(numbers[member])
    return tuple(tuple(sorted(by_group[group])) for group in groups)


def _find_accepted(
    rules: Iterable[tuple[str, str]], things: Sequence[str], fixtures: Sequence[str]
) -> tuple[frozenset[int], ...]:
    """Return the things that each fixture accepts, by the types of both."""
    fitting: dict[str, set[str]] = {kind: set() for kind in fixtures}
    for fixture, thing in rules:
        if fixture in fitting:
            fitting[fixture].add(thing)
    accepted = {
        fixture: frozenset(number for number, thing in enumerate(things) if thing in kinds)
        for fixture, kinds in fitting.items()
    }
    return tuple(accepted[kind] for kind in fixtures)


_PLACING = frozenset({"pickupobject", "putobject", "heatobject", "coolobject", "cleanobject"})
_LIGHTING = frozenset({"gotolocation", "pickupobject", "putobject", "toggleobject"})


@dataclass(frozen=True)
class AlfworldGoal:
    """The goal of a game, with things and fixtures as numbers."""

    things: frozenset[int]
    fixtures: tuple[int, ...]
    lamps: frozenset[int] | None
    """None if the goal is to place things in or on a fixture."""
    qualities: frozenset[str]
    count: int
    actions: frozenset[str]
    """The actions that can change whether the goal is reached."""


@dataclass(frozen=True, eq=False)
class AlfworldGame:
    id: str
    task: str
    """The sentence that states the task: "put two newspaper in drawer."."""
    task_type: GoalType
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
        """Load a game from a file. Its id is `<task>/<trial>`, from the folders of the file."""
        try:
            data = json.loads(path.read_bytes())
        except (OSError, ValueError) as error:
            raise UserError(f"Cannot read the ALFWorld game {path}: {error}.") from error
        if not isinstance(data, dict):
            raise UserError(f"{path} is not an ALFWorld game: it is not a JSON object.")
        return cls.from_data(data, "/".join(path.absolute().parts[-3:-1]))

    @classmethod
    def from_data(cls, data: Mapping[str, object], id: str = "") -> Self:  # noqa: A002
        """Build a game from the JSON object of a file. The default id is the name of the problem."""
        texts = {key: data.get(key) for key in ("pddl_domain", "pddl_problem", "grammar")}
        domain, problem, grammar = (_require_text(texts, key) for key in texts)
        commands = data.get("walkthrough")
        walkthrough = tuple(map(str, commands)) if isinstance(commands, list) else ()
        if not _has_help(domain):
            grammar = _update_grammar(grammar)
            walkthrough = tuple(_OLD_PUT.sub(r"move \1 to \2", command) for command in walkthrough)
        parts = pddl.parse_sections(problem)
        notice, rest = split_task(grammar)
        house = build_house(pddl.iter_facts(parts.get(":init", [])))
        goal = parse_goal(["and", *parts.get(":goal", [])])
        words = parse_grammar(rest)
        return cls(
            id=id or " ".join(map(str, parts.get("problem", []))),
            task=notice.removeprefix("Your task is to: "),
            task_type=goal.task,
            walkthrough=walkthrough,
            notice=notice,
            grammar=words,
            house=house,
            goal=_number_goal(goal, house),
            ways=tuple(words.spellings["gotolocation"].format(r=name) for name in house.fixtures),
        )


def _require_text(texts: Mapping[str, object], key: str) -> str:
    text = texts[key]
    if not isinstance(text, str):
        raise UserError(f"This ALFWorld game has no text {key!r}.", "Use the games of the official release.")
    return text


@lru_cache(maxsize=8)
def _has_help(domain: str) -> bool:
    """Return whether this is the domain of current files, or of those before alfworld 0.4. Refuse others."""
    differing = pddl.parse_action_names(domain) ^ ACTIONS.keys()
    if differing - {"help"}:
        names = ", ".join(sorted(differing))
        raise UserError(f"This is not the domain of ALFWorld: it differs in the actions {names}.")
    return not differing


_OLD_PUT = re.compile(r"^put (.+) in/on (.+)$")
_OLD_TEXTS = {
    "You arrive at {lend.name}.": "You arrive at {r.name}.",
    "put {o} in/on {r}": "move {o} to {r}",
    "You put the {o.name} in/on the {r.name}.": "You move the {o.name} to the {r.name}.",
}
_HELP = """
action help {
    template :: "help";
    feedback :: "Commands: look, inventory, go to, open, close, take, move, examine, use, heat, clean, cool.";
}
"""


def _update_grammar(grammar: str) -> str:
    """Write the grammar of a file from before alfworld 0.4 as in current files."""
    for old, new in _OLD_TEXTS.items():
        grammar = grammar.replace(old, new)
    return grammar + _HELP


def _number_goal(goal: ParsedGoal, house: House) -> AlfworldGoal:
    def find_things(kind: str) -> frozenset[int]:
        return frozenset(number for number, name in enumerate(house.thing_types) if name == kind)

    fixtures = (number for number, name in enumerate(house.fixture_types) if name == goal.fixture)
    return AlfworldGoal(
        things=find_things(goal.thing),
        fixtures=tuple(fixtures),
        lamps=find_things(goal.lamp) if goal.lamp else None,
        qualities=goal.qualities,
        count=goal.count,
        actions=_LIGHTING if goal.lamp else _PLACING,
    )
