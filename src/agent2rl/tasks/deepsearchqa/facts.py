"""The miniature's closed world: people, places, companies and works, and what holds between them.

Every link leads from one thing to exactly one other; the questions follow links forwards and backwards.
"""

import random
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from agent2rl.tasks.deepsearchqa.names import NameGenerator, Part, pick_one

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
