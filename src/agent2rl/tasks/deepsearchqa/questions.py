"""Asks about the miniature's world: questions as small programs over its facts, so that answers are exact.

chain           what a way of links leads to, or a number told there
set             all things that ways lead to
count           how many of them there are
intersection    those of them that have another link too
comparison      which of two, or which of several, is the older or the larger

A question is left out where the pages that its own words find already hold all of its answers, and where its
steps are not enough for somebody who knows what to look for.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agent2rl.environments.search.answers import SET
from agent2rl.environments.search.local import Local
from agent2rl.environments.search.research import STEPS
from agent2rl.tasks.deepsearchqa.facts import Facts, Thing
from agent2rl.tasks.deepsearchqa.names import Part, pick
from agent2rl.tasks.deepsearchqa.pages import Pages
from agent2rl.tasks.deepsearchqa.paths import BACK, Path, backward, end, follow, forward, start
from agent2rl.tasks.deepsearchqa.walks import Hop, Walk
from agent2rl.tasks.deepsearchqa.wording import (
    CATEGORIES,
    CLAUSES,
    EARLIER,
    MANY,
    SUPERLATIVES,
    VALUES,
    of,
    those,
)

SINGLE = "Single Answer"
LEAST, MOST = 2, 4
"""Items of a set."""


@dataclass(frozen=True)
class Question:
    problem: str
    category: str
    kind: str
    path: Path
    items: tuple[tuple[str, ...], ...]
    """What is right, each item under all its names."""
    answer_type: str
    needed: tuple[tuple[str, ...], ...]
    """What somebody must have seen to know: the items, or what is counted."""
    named: tuple[str, ...]
    """The ids of the things that it names."""
    documents: tuple[str, ...]
    """The ids of the documents that tell it, and of those that rule others out."""
    walkthrough: tuple[str, ...]
    """Actions that show all of it, and the answer."""

    @property
    def record(self) -> dict[str, str]:
        """In the official format."""
        answer = ", ".join(names[0] for names in self.items)
        return {
            "problem": self.problem,
            "problem_category": self.category,
            "answer": answer,
            "answer_type": self.answer_type,
        }


@dataclass(frozen=True)
class Asker:
    split: Part
    world: Facts
    pages: Pages
    library: Local
    dice: random.Random

    def chain(self) -> Question | None:
        path = pick(self.dice, forward(self.split))
        first = self._some(start(path))
        way = follow(self.world, first.id, path)[0]
        last = self.world.things[way[-1]]
        phrase, hops = of(path, self._name(first)), self._hops([way], path)
        if len(set(way)) < len(way):
            return None
        asked = [value for value in last.values if value in VALUES]
        items: tuple[tuple[str, ...], ...]
        if asked and self.dice.random() < 0.5:
            value = pick(self.dice, asked)
            items, problem = ((last.values[value],),), VALUES[value].format(phrase)
            hops.append(Hop(((last.id, value),), back=False))
            path = (*path, value)
        else:
            items, problem = (last.names,), f"{'Who' if last.kind == 'person' else 'What'} is {phrase}?"
        return self._question("chain", path, problem, last.kind, items, (first.id,), hops)

    def whole(self) -> Question | None:
        return self._several("set", lambda phrase, _: f"Name all {phrase}.")

    def count(self, size: int) -> Question | None:
        return self._several("count", lambda phrase, _: f"How many {phrase} are there?", size)

    def _several(self, kind: str, word: Callable[[str, str], str], size: int = 0) -> Question | None:
        path = pick(self.dice, backward(self.split))
        first = self._some(start(path))
        found = self._found(first, path)
        if found is None:
            return None
        ways, last = found
        if size and len(last) != size:
            return None
        items = tuple(self.world.things[thing].names for thing in last)
        problem = word(those(path, self._name(first)), end(path))
        counted = ((str(len(items)),),) if kind == "count" else items
        hops = self._hops(ways, path)
        return self._question(kind, path, problem, end(path), counted, (first.id,), hops, items)

    def intersection(self) -> Question | None:
        path = pick(self.dice, backward(self.split))
        first = self._some(start(path))
        ways = follow(self.world, first.id, path)
        last = sorted({way[-1] for way in ways})
        if not LEAST < len(last) <= len(ways) <= MOST + 1 or first.id in last:
            return None
        things = [self.world.things[thing] for thing in last]
        ties = [
            (like, key, [thing for thing in things if _same(thing, like, key)])
            for like in things
            for key in (*like.links, *like.values)
            if key in CLAUSES and BACK + key != path[-1] and like.links.get(key) != first.id
        ]
        ties = [tie for tie in ties if len(tie[2]) < len(last)]
        if not ties:
            return None
        like, key, both = pick(self.dice, [tie for tie in ties if len(tie[2]) > 1] or ties)
        # Those that are not among them have to be seen as well.
        hops = [*self._hops(ways, path), Hop(tuple((thing, key) for thing in last), back=False)]
        other = self.world.things.get(like.links.get(key, ""))
        phrase = those(path, self._name(first), (key, self._name(other) if other else like.values[key]))
        items = tuple(thing.names for thing in both)
        named = (first.id, other.id) if other else (first.id,)
        path = (*path, BACK + key)
        return self._question("intersection", path, f"Name all {phrase}.", like.kind, items, named, hops)

    def comparison(self) -> Question | None:
        return self._of_two() if self.dice.random() < 0.5 else self._of_several()

    def _of_two(self) -> Question | None:
        path = pick(self.dice, forward(self.split))
        one, two = self._some(start(path)), self._some(start(path))
        ways = [*follow(self.world, one.id, path), *follow(self.world, two.id, path)]
        last = [self.world.things[way[-1]] for way in ways]
        values = [value for value in last[0].values if value in EARLIER]
        if not values or last[0].id == last[1].id or one.id == two.id:
            return None
        value = pick(self.dice, values)
        winner = _best(last, value)
        if winner is None:
            return None
        problem = EARLIER[value].format(of(path, self._name(one)), of(path, self._name(two)))
        hops = [*self._hops(ways, path), Hop(tuple((thing.id, value) for thing in last), back=False)]
        named = (one.id, two.id)
        return self._question(
            "comparison", (*path, value), problem, winner.kind, (winner.names,), named, hops
        )

    def _of_several(self) -> Question | None:
        path = pick(self.dice, backward(self.split))
        first = self._some(start(path))
        found = self._found(first, path)
        if found is None:
            return None
        ways, ids = found
        last = [self.world.things[thing] for thing in ids]
        values = [value for value in last[0].values if value in SUPERLATIVES]
        value = pick(self.dice, values) if values else ""
        winner = _best(last, value) if value else None
        if winner is None:
            return None
        problem = SUPERLATIVES[value].format(those(path, self._name(first)))
        hops = [*self._hops(ways, path), Hop(tuple((thing, value) for thing in ids), back=False)]
        return self._question(
            "comparison", (*path, value), problem, winner.kind, (winner.names,), (first.id,), hops
        )

    def _found(self, first: Thing, path: Path) -> tuple[list[tuple[str, ...]], list[str]] | None:
        """The ways of a path, and what they lead to, where they are not too many."""
        ways = follow(self.world, first.id, path)
        last = sorted({way[-1] for way in ways})
        few = LEAST <= len(last) <= MOST and len(ways) <= MOST
        return (ways, last) if few and first.id not in last else None

    def _hops(self, ways: Sequence[tuple[str, ...]], path: Path) -> list[Hop]:
        """The facts that each step of the ways stands on."""
        return [
            Hop(tuple(dict.fromkeys((way[place + back], link.lstrip(BACK)) for way in ways)), back)
            for place, link in enumerate(path)
            for back in [link.startswith(BACK)]
        ]

    def _some(self, kind: str) -> Thing:
        return pick(self.dice, self.world.kinds[kind])

    def _name(self, thing: Thing) -> str:
        return pick(self.dice, (thing.name, *thing.names))

    def _question(
        self,
        kind: str,
        path: Path,
        problem: str,
        about: str,
        items: tuple[tuple[str, ...], ...],
        named: tuple[str, ...],
        hops: Sequence[Hop],
        needed: tuple[tuple[str, ...], ...] = (),
    ) -> Question | None:
        walk = Walk(self.world, self.pages, self.library)
        if not walk.see(hops, most=STEPS - 1):
            return None
        found = Question(
            problem=problem,
            category=CATEGORIES[about],
            kind=kind,
            path=path,
            items=items,
            answer_type=SET if kind in ("set", "intersection") else SINGLE,
            needed=needed or items,
            named=named,
            documents=tuple(sorted({self.pages.told[fact] for hop in hops for fact in hop.facts})),
            walkthrough=(*walk.actions, f"answer[{'; '.join(names[0] for names in items)}]"),
        )
        return None if told_at_once(found, self.library) else found


def questions(split: Part, world: Facts, written: Pages, library: Local, count: int) -> tuple[Question, ...]:
    """The first `count` questions of a split, no two alike; the kinds take turns."""
    asker = Asker(split, world, written, library, random.Random(f"deepsearchqa-mini:{split}:questions"))
    found: dict[str, Question] = {}

    def counted() -> Question | None:
        """Each number as often as the others, so that to guess one is not worth much."""
        return asker.count(LEAST + len(found) // len(kinds) % (MOST - LEAST + 1))

    kinds = (asker.chain, asker.whole, asker.intersection, counted, asker.comparison)
    while len(found) < count:
        question = kinds[len(found) % len(kinds)]()
        if question and question.problem not in found:
            found[question.problem] = question
    return tuple(found.values())


def told_at_once(question: Question, library: Local) -> bool:
    """Whether the pages that the question's own words find hold all that somebody must have seen."""
    results = library.search(question.problem)
    seen = "\n".join(f"{one.title}\n{library.open(one.id)}" for one in results)
    return all(any(name in seen for name in names) for names in question.needed)


def _same(one: Thing, other: Thing, key: str) -> bool:
    return one.links.get(key) == other.links.get(key) and one.values.get(key) == other.values.get(key)


def _best(things: Sequence[Thing], value: str) -> Thing | None:
    """The one that comes first, where no two are alike."""
    amounts = {thing.id: int(thing.values[value]) for thing in things}
    if len(set(amounts.values())) < len(things):
        return None
    return (max if value in MANY else min)(things, key=lambda thing: amounts[thing.id])
