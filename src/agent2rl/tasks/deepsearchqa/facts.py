"""Generate the miniature's facts: names, entities and their links, and the paths that questions follow.

Every link leads from one entity to exactly one other; a path follows links forwards, backwards (`~`) or
both. Each name and path belongs to one split, so the splits share nothing.
"""

import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Literal, TypeVar

from agent2rl.environments.search.answer_matching import normalize_text

# Names. Each split has its own letters and words, so that no name is in two splits.

Part = Literal["train", "feedback", "heldout"]
T = TypeVar("T")

ONSETS: dict[Part, str] = {
    "train": "b d f g k l br dr gr kl",
    "feedback": "m n p pr pl h",
    "heldout": "s t v w st tr",
}
"""Beginnings of the names of a split."""
VOWELS = ["a", "e", "i", "o", "u", "ai", "ea", "or", "an", "el"]
MIDDLES = ["l", "r", "n", "m", "v", "d", "s", "lt", "nd", "rv"]
ENDS = {
    "town": ["ton", "burg", "mouth", "field", "by", "wick", "stead", "ford", "haven", "mere"],
    "country": ["ia", "land", "avia", "onia", "eria"],
    "surname": ["sen", "ley", "er", "man", "ov", "ez", "ski", "well", "quist", "etti"],
    "company": ["o", "ex", "us", "ar", "ix"],
}
GIVEN: dict[Part, str] = {
    "train": (
        "Ada Bruno Clara Daniel Elsa Felix Greta Hugo Ingrid Jonas Karla Leon Mona Nils Olga Paul Rosa Simon"
    ),
    "feedback": (
        "Agnes Boris Cora David Edith Frank Gloria Henry Irene Jakob Kira Lukas Maria Noah Petra Rudolf"
    ),
    "heldout": (
        "Alma Bernard Celia Dora Emil Flora George Helga Ivan Judith Konrad Lydia Martin Nora Oscar Ruth"
    ),
}
ADJECTIVES: dict[Part, str] = {
    "train": (
        "Silent Broken Golden Hidden Crimson Distant Empty Frozen Gentle Hollow Iron Jade Last "
        "Lonely Narrow Open Pale Quiet Restless Salt"
    ),
    "feedback": (
        "Amber Bitter Copper Dark Early Faithful Glass Honest Idle Jagged Kind Little Misty "
        "Northern Old Patient Red Secret Tall Violet"
    ),
    "heldout": (
        "Ancient Blue Calm Deep Eternal Fallen Green High Inner Just Keen Late Moonlit Noble "
        "Outer Proud Rough Simple True Winter"
    ),
}
NOUNS = (
    "Harbour Garden Bridge Lantern Mirror Orchard River Tower Window Island Letter Meadow Clock "
    "Shore Forest Voice Compass Door Feather Harvest Kingdom Market Ocean Path Road Season Shadow "
    "Stone Summer Train Valley Voyage"
)


class NameGenerator:
    """Generate unique names."""

    def __init__(self, split: Part, dice: random.Random) -> None:
        self._dice = dice
        self._onsets = ONSETS[split].split()
        self._given = GIVEN[split].split()
        self._adjectives, self._nouns = ADJECTIVES[split].split(), NOUNS.split()
        self._taken: set[str] = set()
        self._surnames = [self._make_root("surname") for _ in range(130)]

    def make_person(self) -> str:
        return self._make_unique(lambda: f"{self._pick_one(self._given)} {self._pick_one(self._surnames)}")

    def make_town(self) -> str:
        return self._make_unique(lambda: self._make_root("town"))

    def make_old_town(self) -> str:
        """Return a former name, easily confused with that of another town."""
        return self._make_unique(
            lambda: f"{self._pick_one(('Old', 'Upper', 'Saint', 'Castle'))} {self._make_root('town')}"
        )

    def make_country(self) -> str:
        return self._make_unique(lambda: self._make_root("country"))

    def make_company(self, trade: str) -> str:
        return self._make_unique(lambda: f"{self._make_root('company')} {trade}")

    def make_university(self, town: str) -> str:
        forms = ("University of {}", "{} College", "{} Institute of Technology", "{} Academy")
        return self._make_unique(
            lambda: self._pick_one(forms).format(self._pick_one((town, self._pick_one(self._surnames))))
        )

    def make_museum(self, town: str) -> str:
        of = ("Art", "Glass", "Maritime", "Natural History", "Railway", "Folk", "Science", "Textile")
        return self._make_unique(
            lambda: f"{self._pick_one((town, self._pick_one(self._surnames)))} {self._pick_one(of)} Museum"
        )

    def make_work_title(self) -> str:
        forms = ("The {} {}", "{} {}", "{} {}s")
        return self._make_unique(
            lambda: self._pick_one(forms).format(
                self._pick_one(self._adjectives), self._pick_one(self._nouns)
            )
        )

    def _make_unique(self, make: Callable[[], str]) -> str:
        while True:
            name = make()
            if normalize_text(name) not in self._taken:
                self._taken.add(normalize_text(name))
                return name

    def _make_root(self, kind: str) -> str:
        middle = self._pick_one(MIDDLES) + (self._pick_one(VOWELS) if self._dice.random() < 0.4 else "")
        return (
            self._pick_one(self._onsets) + self._pick_one(VOWELS) + middle + self._pick_one(ENDS[kind])
        ).capitalize()

    def _pick_one(self, choices: Sequence[T]) -> T:
        return pick_one(self._dice, choices)


def pick_one(dice: random.Random, choices: Sequence[T]) -> T:
    """Pick a value with `random()`, the only method with the same numbers in every Python version."""
    return choices[int(dice.random() * len(choices))]


LINKS: dict[str, dict[str, str]] = {
    "country": {"capital": "town"},
    "town": {"country": "country"},
    "university": {"home": "town"},
    "person": {"birthplace": "town", "school": "university", "employer": "company"},
    "company": {"seat": "town", "founder": "person"},
    "work": {"author": "person", "publisher": "company", "setting": "town"},
    "museum": {"place": "town", "architect": "person"},
}
"""Kind → link → target kind."""
SIZES = {"country": 8, "town": 60, "university": 40, "person": 300, "company": 90, "work": 270, "museum": 70}
TRADES = ("Foods", "Motors", "Press", "Textiles", "Shipping", "Instruments", "Pharma", "Energy", "Glassworks")
OCCUPATIONS = ("botanist", "engineer", "historian", "chemist", "painter", "linguist", "geologist", "composer")
GENRES = ("novel", "collection of poems", "travel book", "play", "biography", "volume of essays")
MONTHS = "January February March April May June July August September October November December"
ALIAS_SHARE = 0.3


@dataclass
class FactEntity:
    id: str
    kind: str
    name: str
    aliases: tuple[str, ...] = ()
    links: dict[str, str] = field(default_factory=dict)
    """Link → the id of its target."""
    values: dict[str, str] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, *self.aliases)


@dataclass(frozen=True)
class FactWorld:
    things: Mapping[str, FactEntity]
    back: Mapping[tuple[str, str], tuple[str, ...]]
    """Link and the id of its target → the ids of its sources."""

    @cached_property
    def kinds(self) -> Mapping[str, tuple[FactEntity, ...]]:
        return {kind: tuple(thing for thing in self.things.values() if thing.kind == kind) for kind in LINKS}


def generate_facts(split: Part) -> FactWorld:
    """Generate the facts of a split, deterministically."""
    dice = random.Random(f"deepsearchqa-mini:{split}:facts")
    names = NameGenerator(split, dice)
    entities: dict[str, list[FactEntity]] = {}
    for kind, size in SIZES.items():
        entities[kind] = [_make_entity(dice, names, kind, number, entities) for number in range(size)]
    for country in entities["country"]:
        towns = [town for town in entities["town"] if town.links["country"] == country.id]
        country.links["capital"] = towns[0].id
    for person in entities["person"]:
        person.links["employer"] = pick_one(dice, entities["company"]).id
    things = {thing.id: thing for kind in entities.values() for thing in kind}
    back: dict[tuple[str, str], list[str]] = defaultdict(list)
    for thing in things.values():
        for link, target in thing.links.items():
            back[link, target].append(thing.id)
    return FactWorld(things, {key: tuple(sources) for key, sources in back.items()})


def _make_entity(
    dice: random.Random,
    names: NameGenerator,
    kind: str,
    number: int,
    entities: Mapping[str, list[FactEntity]],
) -> FactEntity:
    thing = FactEntity(f"{kind}-{number:03d}", kind, "")
    for link, target in LINKS[kind].items():
        if target in entities and target != kind:
            # The first towns are dealt out, so that each country has one; the others are random.
            first = kind == "town" and number < len(entities[target])
            thing.links[link] = (entities[target][number] if first else pick_one(dice, entities[target])).id
    towns = {town.id: town.name for town in entities.get("town", ())}
    trade = pick_one(dice, TRADES)
    make_name = {
        "country": names.make_country,
        "town": names.make_town,
        "person": names.make_person,
        "company": lambda: names.make_company(trade),
        "university": lambda: names.make_university(towns[thing.links["home"]]),
        "museum": lambda: names.make_museum(towns[thing.links["place"]]),
        "work": names.make_work_title,
    }[kind]
    thing.name = make_name()
    if kind != "country" and dice.random() < ALIAS_SHARE:
        thing.aliases = ((names.make_old_town() if kind == "town" else make_name()),)
    thing.values = _draw_values(dice, kind, trade)
    return thing


def _draw_values(dice: random.Random, kind: str, trade: str) -> dict[str, str]:
    def number(low: int, high: int) -> str:
        return str(low + int(dice.random() * (high - low)))

    if kind == "person":
        born = f"{number(1, 29)} {pick_one(dice, MONTHS.split())} {number(1900, 1980)}"
        return {"born": born, "occupation": pick_one(dice, OCCUPATIONS)}
    if kind == "company":
        return {"founded": number(1850, 2000), "employees": number(200, 90_000), "trade": trade.lower()}
    if kind == "work":
        return {"published": number(1925, 2015), "genre": pick_one(dice, GENRES)}
    if kind == "town":
        return {"population": number(4_000, 900_000), "elevation": number(2, 1_900)}
    if kind == "country":
        return {"independent": number(1780, 1970)}
    return {"founded": number(1600, 1990)} if kind == "university" else {"opened": number(1870, 2015)}


# Paths of links, forwards, backwards (`~`) or both

LinkPath = tuple[str, ...]
SHARES: dict[Part, tuple[int, ...]] = {"train": (0, 1), "feedback": (2,), "heldout": (3,)}
"""Split → numbers of its paths, modulo 4."""
BACK = "~"
TARGETS = {link: (kind, to) for kind, links in LINKS.items() for link, to in links.items()}
"""Link → source kind and target kind."""


def find_start_kind(path: LinkPath) -> str:
    """Return the kind of thing that a path begins with."""
    link = path[0]
    return TARGETS[link[1:]][1] if link.startswith(BACK) else TARGETS[link][0]


def find_end_kind(path: LinkPath) -> str:
    link = path[-1]
    return TARGETS[link[1:]][0] if link.startswith(BACK) else TARGETS[link][1]


@cache
def list_forward_paths(split: Part) -> tuple[LinkPath, ...]:
    """Return the paths of two or three links, which lead to one thing."""
    return _select_split((path for length in (2, 3) for path in _iterate_chains(length)), split)


@cache
def list_backward_paths(split: Part) -> tuple[LinkPath, ...]:
    """Return paths that lead to several things: zero or one link forwards, then one or two backwards."""
    singles: list[LinkPath] = [(BACK + link,) for link in TARGETS]
    doubles = [
        (*one, *two) for one in singles for two in singles if find_end_kind(one) == find_start_kind(two)
    ]
    mixed = [((link, *back)) for link in TARGETS for back in (*singles, *doubles)]
    turned = [
        path
        for path in mixed
        if TARGETS[path[0]][1] == find_start_kind(path[1:]) and path[1] != BACK + path[0]
    ]
    return _select_split((path for path in (*doubles, *turned) if BACK + "capital" not in path), split)


def follow_path(world: FactWorld, thing: str, path: LinkPath) -> list[tuple[str, ...]]:
    """Return every way from a thing along a path, as a tuple of all things on it, both ends included."""
    ways: list[tuple[str, ...]] = [(thing,)]
    for link in path:
        if link.startswith(BACK):
            ways = [(*way, source) for way in ways for source in world.back.get((link[1:], way[-1]), ())]
        else:
            ways = [(*way, world.things[way[-1]].links[link]) for way in ways]
    return ways


def _iterate_chains(length: int) -> Iterator[LinkPath]:
    if length == 1:
        yield from ((link,) for link in TARGETS)
        return
    for path in _iterate_chains(length - 1):
        for link, (kind, _) in TARGETS.items():
            if kind == find_end_kind(path) and {path[-1], link} != {"country", "capital"}:
                yield (*path, link)


def _select_split(paths: Iterator[LinkPath], split: Part) -> tuple[LinkPath, ...]:
    return tuple(path for number, path in enumerate(sorted(set(paths))) if number % 4 in SHARES[split])
