"""The house of a game as it is before anything is done, made from the facts of its PDDL problem.

Things (what lies about) and fixtures (receptacles, which stay where they are) are numbers here, in the order
of their ids, because that is the order in which texts list them. What is true of one alone is kept as a set
of predicates. Not covered: facts that neither texts nor preconditions ask for.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from agent2rl.core.errors import UserError
from agent2rl.environments.alfworld.pddl import Atom

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
    """All tuples are by number: of the thing, of the fixture or of the location."""

    things: tuple[str, ...]
    fixtures: tuple[str, ...]
    names: Mapping[str, tuple[str, ...]]
    """Things or fixtures, by the letters that stand for them in commands."""
    numbers: Mapping[str, Mapping[str, int]]
    """The same, the other way round."""
    thing_types: tuple[str, ...]
    fixture_types: tuple[str, ...]
    thing_facts: tuple[Facts, ...]
    fixture_facts: tuple[Facts, ...]
    accepted: tuple[frozenset[int], ...]
    """The things that may be put in or on each fixture."""
    contents: tuple[Numbers, ...]
    """The things in or on each fixture. A thing may be in two."""
    inside: tuple[Numbers, ...]
    """The things inside each thing, which no action changes."""
    standing: Numbers
    """The location of each fixture."""
    nearby: tuple[Numbers, ...]
    """The fixtures at each location."""
    around: tuple[Numbers, ...]
    """The things at each location."""
    start: int
    """The location where one begins."""


def build_house(facts: Iterable[Atom]) -> House:
    """The house in which these facts are true."""
    pairs, singles, ids = _group_facts(facts)
    things, fixtures, locations = _collect_ids(pairs, singles)
    names = _assign_names(ids)
    thing_names, fixture_names = (
        tuple(names[thing] for thing in things),
        tuple(names[one] for one in fixtures),
    )
    thing_types, fixture_types = (
        _look_up_types(things, pairs["objecttype"]),
        _look_up_types(fixtures, pairs["receptacletype"]),
    )
    where, place = dict(pairs["receptacleatlocation"]), _number_names(locations)
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
        standing=tuple(place[where[fixture]] for fixture in fixtures),
        nearby=_group_members(pairs["receptacleatlocation"], fixtures, locations),
        around=_group_members(pairs["objectatlocation"], things, locations),
        start=len(locations) - 1,
    )


def _group_facts(facts: Iterable[Atom]) -> tuple[Pairs, Mapping[str, set[str]], set[str]]:
    """Facts on two and on one by predicate, and every id that occurs."""
    pairs: dict[str, list[tuple[str, str]]] = defaultdict(list)
    singles: dict[str, set[str]] = defaultdict(set)
    ids: set[str] = set()
    for fact in facts:
        if len(fact) == 3 and fact[0] in OF_TWO:
            pairs[fact[0]].append((fact[1], fact[2]))
        elif len(fact) == 2 and fact[0] in OF_ONE:
            singles[fact[0]].add(fact[1])
        elif fact[0] not in UNASKED:
            raise UserError(f"A game that begins with ({' '.join(fact)}) cannot be played.")
        ids.update(fact[1:])
    return pairs, singles, ids


def _collect_ids(pairs: Pairs, singles: Mapping[str, set[str]]) -> tuple[list[str], list[str], list[str]]:
    """The ids of things and of fixtures, in order, and those of locations, the one where play begins last."""
    things = {
        one for relation in ("objecttype", "objectatlocation", "inreceptacle") for one, _ in pairs[relation]
    }
    things |= {one for pair in pairs["inreceptacleobject"] for one in pair}
    things |= {one for predicate in OF_THINGS for one in singles[predicate]}
    where = dict(pairs["receptacleatlocation"])
    if len(where) != len(set(pairs["receptacleatlocation"])) or len(pairs["atlocation"]) != 1:
        raise UserError("A receptacle of this game, or the player, is not in exactly one place.")
    [(_, start)] = pairs["atlocation"]
    return sorted(things), sorted(where), [*sorted(set(where.values()) - {start}), start]


def _assign_names(ids: Iterable[str]) -> dict[str, str]:
    """`mug_bar__plus_00_dot_5_bar_…` → "mug 2". Of one kind, the first in order has the highest number."""
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
    """Equal sets are one object, to save memory."""
    shared: dict[Facts, Facts] = {}
    sets = (frozenset(predicate for predicate in predicates if one in singles[predicate]) for one in ids)
    return tuple(shared.setdefault(facts, facts) for facts in sets)


def _group_members(
    relation: Iterable[tuple[str, str]], members: Sequence[str], groups: Sequence[str]
) -> tuple[Numbers, ...]:
    """For each group the numbers of its members, in order; other groups are left out."""
    numbers = _number_names(members)
    found: dict[str, set[int]] = {group: set() for group in groups}
    for member, group in relation:
        if group in found:
            found[group].add(numbers[member])
    return tuple(tuple(sorted(found[group])) for group in groups)


def _find_accepted(
    rules: Iterable[tuple[str, str]], things: Sequence[str], fixtures: Sequence[str]
) -> tuple[frozenset[int], ...]:
    """By the types of things and fixtures."""
    fitting: dict[str, set[str]] = {kind: set() for kind in fixtures}
    for fixture, thing in rules:
        if fixture in fitting:
            fitting[fixture].add(thing)
    accepted = {
        fixture: frozenset(number for number, thing in enumerate(things) if thing in kinds)
        for fixture, kinds in fitting.items()
    }
    return tuple(accepted[kind] for kind in fixtures)
