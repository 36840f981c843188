"""The miniature's closed world: names, entities and their links, and the paths that questions follow.

Every link leads from one entity to exactly one other; a path follows links forwards, backwards (`~`) or
both. Names and paths belong to one split each, so that nothing of one split appears in another.
"""

import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Literal, TypeVar

from agent2rl.environments.search.answer_matching import normalize_text

# Names of the miniature's closed world. Each split has letters and words of its own: no name is in two.

Part = Literal["train", "feedback", "heldout"]
T = TypeVar("T")

ONSETS: dict[Part, str] = {
    "train": "b d f g k l br dr gr kl",
    "feedback": "m n p pr pl h",
    "heldout": "s t v w st tr",
}
"""How a made-up name of a split begins."""
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
    """Makes up names, no two of them alike."""

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
        """A former name, easily taken for another's."""
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
    """By `random()`, the only method whose numbers every Python promises to keep."""
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
"""Kind → link → the kind that it leads to."""
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
    """Link → the id of the thing that it leads to."""
    values: dict[str, str] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, *self.aliases)


@dataclass(frozen=True)
class FactWorld:
    things: Mapping[str, FactEntity]
    back: Mapping[tuple[str, str], tuple[str, ...]]
    """Link and the id that it leads to → from where."""

    @cached_property
    def kinds(self) -> Mapping[str, tuple[FactEntity, ...]]:
        return {kind: tuple(thing for thing in self.things.values() if thing.kind == kind) for kind in LINKS}


def generate_facts(split: Part) -> FactWorld:
    """The world of a split, the same each time."""
    dice = random.Random(f"deepsearchqa-mini:{split}:facts")
    names = NameGenerator(split, dice)
    made: dict[str, list[FactEntity]] = {}
    for kind, size in SIZES.items():
        made[kind] = [_make_entity(dice, names, kind, number, made) for number in range(size)]
    for country in made["country"]:
        own = [town for town in made["town"] if town.links["country"] == country.id]
        country.links["capital"] = own[0].id
    for person in made["person"]:
        person.links["employer"] = pick_one(dice, made["company"]).id
    things = {thing.id: thing for kind in made.values() for thing in kind}
    back: dict[tuple[str, str], list[str]] = defaultdict(list)
    for thing in things.values():
        for link, target in thing.links.items():
            back[link, target].append(thing.id)
    return FactWorld(things, {key: tuple(sources) for key, sources in back.items()})


def _make_entity(
    dice: random.Random, names: NameGenerator, kind: str, number: int, made: Mapping[str, list[FactEntity]]
) -> FactEntity:
    thing = FactEntity(f"{kind}-{number:03d}", kind, "")
    for link, target in LINKS[kind].items():
        if target in made and target != kind:
            # Each country has towns, before chance decides.
            first = kind == "town" and number < len(made[target])
            thing.links[link] = (made[target][number] if first else pick_one(dice, made[target])).id
    towns = {town.id: town.name for town in made.get("town", ())}
    trade = pick_one(dice, TRADES)
    again = {
        "country": names.make_country,
        "town": names.make_town,
        "person": names.make_person,
        "company": lambda: names.make_company(trade),
        "university": lambda: names.make_university(towns[thing.links["home"]]),
        "museum": lambda: names.make_museum(towns[thing.links["place"]]),
        "work": names.make_work_title,
    }[kind]
    thing.name = again()
    if kind != "country" and dice.random() < ALIAS_SHARE:
        thing.aliases = ((names.make_old_town() if kind == "town" else again()),)
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


# Ways through the miniature's world: links one after another, forwards, backwards (`~`) or both.

LinkPath = tuple[str, ...]
SHARES: dict[Part, tuple[int, ...]] = {"train": (0, 1), "feedback": (2,), "heldout": (3,)}
"""Every way has a number; its remainder by four says whose it is."""
BACK = "~"
TARGETS = {link: (kind, to) for kind, links in LINKS.items() for link, to in links.items()}
"""Link → from what it leads to what."""


def find_start_kind(path: LinkPath) -> str:
    """The kind of thing that a way begins with."""
    link = path[0]
    return TARGETS[link[1:]][1] if link.startswith(BACK) else TARGETS[link][0]


def find_end_kind(path: LinkPath) -> str:
    link = path[-1]
    return TARGETS[link[1:]][0] if link.startswith(BACK) else TARGETS[link][1]


@cache
def list_forward_paths(split: Part) -> tuple[LinkPath, ...]:
    """Two or three links that lead to one thing."""
    return _select_split((path for length in (2, 3) for path in _iterate_chains(length)), split)


@cache
def list_backward_paths(split: Part) -> tuple[LinkPath, ...]:
    """Ways that lead to several things: one or two links back, after none or one forwards."""
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
    """Every way from a thing along a path, as the things that it passes, the first and the last included."""
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
