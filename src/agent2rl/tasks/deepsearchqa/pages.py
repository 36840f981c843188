"""Write the miniature's facts as short pages, and check what a search can find on them.

Each fact is on one page; other pages only distract. A page refers to another entity by any of its names; only
the entity's own first page says that they name the same entity. `SearchWalk` knows every name and the words
of the pages, but has to search.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from agent2rl.environments.search.backends import LocalCorpus, SearchDocument
from agent2rl.tasks.deepsearchqa.facts import FactEntity, FactWorld, Part, pick_one

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
"""Facts on the second page of a thing, if it has one."""
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
    sources: Mapping[tuple[str, str], str]
    """A thing's id and one of its links or values → the id of the document with this fact."""


def write_pages(split: Part, world: FactWorld) -> FactPages:
    dice = random.Random(f"deepsearchqa-mini:{split}:pages")
    sources: dict[tuple[str, str], str] = {}
    documents = [
        page for thing in world.things.values() for page in _write_entity_pages(dice, world, thing, sources)
    ]
    things = [*world.things.values()]
    documents += [_write_note(dice, number, things) for number in range(NOTES)]
    return FactPages(tuple(documents), sources)


def _write_entity_pages(
    dice: random.Random, world: FactWorld, thing: FactEntity, sources: dict[tuple[str, str], str]
) -> list[SearchDocument]:
    main: list[str] = []
    later: list[str] = []
    for key in (*thing.links, *thing.values):
        second = key in LATER and thing.kind in SECOND
        (later if second else main).append(_write_sentence(dice, world, thing, key))
        sources[thing.id, key] = f"{thing.id}-2" if second else thing.id
    _shuffle_lines(dice, main)
    if thing.aliases:
        main.insert(0, f"Also known as {thing.aliases[0]}.")
    else:
        main.insert(0, f"A {thing.kind}.")
    documents = [SearchDocument(thing.id, thing.name, " ".join(main))]
    if later:
        _shuffle_lines(dice, later)
        title = SECOND[thing.kind].format(name=thing.name)
        documents.append(SearchDocument(f"{thing.id}-2", title, " ".join(later)))
    return documents


def _write_sentence(dice: random.Random, world: FactWorld, thing: FactEntity, key: str) -> str:
    if key in thing.links:
        other = world.things[thing.links[key]]
        return pick_one(dice, SENTENCES[key]).format(pick_one(dice, (other.name, *other.names)))
    return VALUES[key].format(thing.values[key])


def _write_note(dice: random.Random, number: int, things: list[FactEntity]) -> SearchDocument:
    sentences = [
        pick_one(dice, NOISE).format(
            pick_one(dice, pick_one(dice, things).names), pick_one(dice, pick_one(dice, things).names)
        )
        for _ in range(3)
    ]
    return SearchDocument(f"note-{number:03d}", f"Notes of the week, no. {number + 1}", " ".join(sentences))


def _shuffle_lines(dice: random.Random, lines: list[str]) -> None:
    for index in range(len(lines) - 1, 0, -1):
        other = int(dice.random() * (index + 1))
        lines[index], lines[other] = lines[other], lines[index]


# Checking that a question can be answered within its steps

Fact = tuple[str, str]
"""The id of a thing, and one of its links or values."""

HINTS = {
    "capital": "capital",
    "country": "lies belongs",
    "home": "campus home",
    "birthplace": "born native",
    "school": "studied attended",
    "employer": "works staff",
    "seat": "seat head office",
    "founder": "founded founder",
    "author": "written author",
    "publisher": "published publisher",
    "setting": "set takes place",
    "place": "stands visitors",
    "architect": "designed architect",
}


@dataclass(frozen=True)
class FactHop:
    """Facts that can be searched for at the same time."""

    facts: tuple[Fact, ...]
    back: bool
    """Whether the targets of the links are known, and their sources are searched for."""


@dataclass
class SearchWalk:
    """Search for facts with knowledge of all names and of the words on the pages."""

    world: FactWorld
    pages: FactPages
    library: LocalCorpus
    actions: list[str] = field(default_factory=list)
    shown: dict[str, str] = field(default_factory=dict)
    """Document id → the part of the document that was seen."""

    def show_all_facts(self, hops: Sequence[FactHop], most: int) -> bool:
        """Return whether all facts were seen within `most` actions, with one reserved for each later hop."""
        return all(
            self._take_hop(hop, most - left)
            for left, hop in zip(reversed(range(len(hops))), hops, strict=True)
        )

    def _take_hop(self, hop: FactHop, most: int) -> bool:
        if missing := self._list_missing(hop.facts):
            self._run_search(missing, hop.back)
        for fact in self._list_missing(hop.facts):
            if len(self.actions) > most:
                return False
            if self.pages.sources[fact] not in self.shown:
                self._run_search([fact], hop.back)
            if self.pages.sources[fact] not in self.shown:
                return False
            if not self._is_shown(fact):
                self._open_document(self.pages.sources[fact])
        return not self._list_missing(hop.facts) and len(self.actions) <= most

    def _list_missing(self, facts: Sequence[Fact]) -> list[Fact]:
        return [fact for fact in facts if not self._is_shown(fact)]

    def _is_shown(self, fact: Fact) -> bool:
        seen = self.shown.get(self.pages.sources[fact], "")
        thing, key = self.world.things[fact[0]], fact[1]
        names = self.world.things[thing.links[key]].names if key in thing.links else (thing.values[key],)
        return any(name in seen for name in names)

    def _run_search(self, facts: Sequence[Fact], back: bool) -> None:
        subjects = dict.fromkeys(
            self.world.things[thing].links[key] if back else thing for thing, key in facts
        )
        names = [name for thing in subjects for name in self.world.things[thing].names]
        query = " ".join([*names, *dict.fromkeys(HINTS.get(key, key) for _, key in facts)])
        if (action := f"search[{query}]") in self.actions:
            return
        self.actions.append(action)
        for result in self.library.search(query):
            self.shown.setdefault(result.id, f"{result.title}: {result.snippet}")

    def _open_document(self, document: str) -> None:
        self.actions.append(f"open[{document}]")
        self.shown[document] = self.library.open(document)
