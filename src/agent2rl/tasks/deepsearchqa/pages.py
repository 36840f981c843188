"""Writes the miniature's world down: short pages, each fact on one of them, and pages that only mislead.

A page calls another thing by any of its names; only the thing's own first page tells that they are one.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass

from agent2rl.environments.search.backend import SearchDocument
from agent2rl.tasks.deepsearchqa.facts import FactEntity, FactWorld
from agent2rl.tasks.deepsearchqa.names import Part, pick_one

SENTENCES = {
    "capital": ("Its capital is {}.", "The capital is {}."),
    "country": ("It lies in {}.", "The town belongs to {}."),
    "home": ("Its campus is in {}.", "It is at home in {}."),
    "birthplace": ("Born in {}.", "A native of {}."),
    "school": ("Studied at {}.", "Attended {}."),
    "employer": ("Works for {}.", "On the staff of {}."),
    "seat": ("It has its seat in {}.", "Its head office is in {}."),
    "founder": ("It was founded by {}.", "{} founded the company."),
    "author": ("It was written by {}.", "Its author is {}."),
    "publisher": ("It was published by {}.", "The publisher was {}."),
    "setting": ("The story is set in {}.", "It takes place in {}."),
    "place": ("It stands in {}.", "Visitors find it in {}."),
    "architect": ("The building was designed by {}.", "{} was its architect."),
}
VALUES = {
    "born": "Born on {}.",
    "occupation": "Profession: {}.",
    "founded": "It was founded in {}.",
    "employees": "It has {} employees.",
    "trade": "Its business is {}.",
    "published": "It appeared in {}.",
    "genre": "It is a {}.",
    "population": "It has {} inhabitants.",
    "elevation": "The town hall stands {} metres above the sea.",
    "independent": "The country has been independent since {}.",
    "opened": "The museum opened in {}.",
}
LATER = ("school", "employer", "seat", "setting", "architect", "employees")
"""Told on a page of its own where a thing has one."""
SECOND = {
    "person": "{name}: career",
    "company": "{name}: company profile",
    "work": "{name}: reception",
    "museum": "{name}: visit",
}
NOISE = (
    "A storm delayed the {} fair, which {} was to open.",
    "In a letter to the editor, a reader from {} complained about the noise of {}.",
    "{} and {} were both mentioned in a quiz on the radio last week.",
    "A charity run led past {}; the prize was named after {}.",
    "The calendar of events lists a lecture about {} and a concert in honour of {}.",
)
NOTES = 250


@dataclass(frozen=True)
class FactPages:
    documents: tuple[SearchDocument, ...]
    told: Mapping[tuple[str, str], str]
    """A thing's id and a link or value of it → the id of the document that tells it."""


def write_pages(split: Part, world: FactWorld) -> FactPages:
    dice = random.Random(f"deepsearchqa-mini:{split}:pages")
    told: dict[tuple[str, str], str] = {}
    documents = [
        page for thing in world.things.values() for page in _write_entity_pages(dice, world, thing, told)
    ]
    things = [*world.things.values()]
    documents += [_write_note(dice, number, things) for number in range(NOTES)]
    return FactPages(tuple(documents), told)


def _write_entity_pages(
    dice: random.Random, world: FactWorld, thing: FactEntity, told: dict[tuple[str, str], str]
) -> list[SearchDocument]:
    main: list[str] = []
    later: list[str] = []
    for key in (*thing.links, *thing.values):
        second = key in LATER and thing.kind in SECOND
        (later if second else main).append(_write_sentence(dice, world, thing, key))
        told[thing.id, key] = f"{thing.id}-2" if second else thing.id
    _shuffle_lines(dice, main)
    if thing.aliases:
        main.insert(0, f"Also known as {thing.aliases[0]}.")
    else:
        main.insert(0, f"A {thing.kind}.")
    found = [SearchDocument(thing.id, thing.name, " ".join(main))]
    if later:
        _shuffle_lines(dice, later)
        title = SECOND[thing.kind].format(name=thing.name)
        found.append(SearchDocument(f"{thing.id}-2", title, " ".join(later)))
    return found


def _write_sentence(dice: random.Random, world: FactWorld, thing: FactEntity, key: str) -> str:
    if key in thing.links:
        other = world.things[thing.links[key]]
        return pick_one(dice, SENTENCES[key]).format(pick_one(dice, (other.name, *other.names)))
    return VALUES[key].format(thing.values[key])


def _write_note(dice: random.Random, number: int, things: list[FactEntity]) -> SearchDocument:
    said = [
        pick_one(dice, NOISE).format(
            pick_one(dice, pick_one(dice, things).names), pick_one(dice, pick_one(dice, things).names)
        )
        for _ in range(3)
    ]
    return SearchDocument(f"note-{number:03d}", f"Notes of the week, no. {number + 1}", " ".join(said))


def _shuffle_lines(dice: random.Random, lines: list[str]) -> None:
    for place in range(len(lines) - 1, 0, -1):
        other = int(dice.random() * (place + 1))
        lines[place], lines[other] = lines[other], lines[place]
