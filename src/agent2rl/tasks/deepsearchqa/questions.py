"""Generate the miniature's questions as small programs over its facts, so that answers are exact.

chain           the thing at the end of a path of links, or one of its values
set             all things at the ends of a path
count           the number of these things
intersection    those of these things that also have another link
comparison      which of two, or which of several, is the older or the larger

A question is dropped if a search for its own words already finds all of its answers, or if a search with full
knowledge does not succeed within its steps.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agent2rl.environments.search.answer_matching import SET
from agent2rl.environments.search.backends import LocalCorpus
from agent2rl.environments.search.environment import STEPS
from agent2rl.tasks.deepsearchqa.facts import (
    BACK,
    TARGETS,
    FactEntity,
    FactWorld,
    LinkPath,
    Part,
    find_end_kind,
    find_start_kind,
    follow_path,
    list_backward_paths,
    list_forward_paths,
    pick_one,
)
from agent2rl.tasks.deepsearchqa.pages import FactHop, FactPages, SearchWalk

# Wording

ONE = {
    "capital": "the capital of {}",
    "country": "the country in which {} lies",
    "home": "the town that is home to {}",
    "birthplace": "the birthplace of {}",
    "school": "the university attended by {}",
    "employer": "the employer of {}",
    "seat": "the town where {} has its head office",
    "founder": "the founder of {}",
    "author": "the author of {}",
    "publisher": "the publisher of {}",
    "setting": "the town in which {} is set",
    "place": "the town that is the site of {}",
    "architect": "the architect of {}",
}
"""Phrases for the target of a link."""
CLAUSES = {
    "capital": "that have their capital in {}",
    "country": "that belong to {}",
    "home": "that are at home in {}",
    "birthplace": "who were born in {}",
    "school": "who studied at {}",
    "employer": "who work for {}",
    "seat": "that have their head office in {}",
    "founder": "that were founded by {}",
    "author": "that were written by {}",
    "publisher": "that were published by {}",
    "setting": "that are set in {}",
    "place": "that stand in {}",
    "architect": "that were designed by {}",
    "occupation": "whose profession is {}",
    "trade": "whose business is {}",
    "genre": "that belong to the genre {}",
}
"""Phrases for the sources of a link."""
PLURALS = {
    "country": "countries",
    "town": "towns",
    "university": "universities",
    "person": "people",
    "company": "companies",
    "work": "books",
    "museum": "museums",
}
CATEGORIES = {
    "country": "Geography",
    "town": "Geography",
    "university": "Education",
    "person": "History",
    "company": "Finance & Economics",
    "work": "Arts",
    "museum": "Travel",
}
VALUES = {
    "born": "On which date was {} born?",
    "founded": "In which year was {} founded?",
    "employees": "How many employees does {} have?",
    "population": "How many inhabitants does {} have?",
    "elevation": "How many metres above the sea is the town hall of {}?",
    "independent": "Since which year has {} been independent?",
    "published": "In which year did {} appear?",
    "opened": "In which year did {} open?",
}
EARLIER = {
    "founded": "Which was founded earlier: {} or {}?",
    "population": "Which has more inhabitants: {} or {}?",
    "elevation": "Whose town hall stands higher above the sea: that of {} or that of {}?",
    "independent": "Which has been independent for longer: {} or {}?",
    "employees": "Which has more employees: {} or {}?",
}
SUPERLATIVES = {
    "founded": "Which of the {} was founded first?",
    "published": "Which of the {} appeared first?",
    "opened": "Which of the {} opened first?",
    "population": "Which of the {} has the most inhabitants?",
    "employees": "Which of the {} has the most employees?",
}
MANY = ("population", "elevation", "employees")
"""Values for which the largest number wins; for others the smallest wins."""


def phrase_one(path: LinkPath, name: str) -> str:
    """Phrase the one thing that a forward path leads to."""
    for link in path:
        name = ONE[link].format(name)
    return name


def phrase_all(path: LinkPath, name: str, also: tuple[str, str] | None = None) -> str:
    """Phrase all things that a path leads to, optionally only those that also have another link."""
    for link in path:
        name = (
            f"{_pluralize_kind(link)} {CLAUSES[link[1:]]}".format(name)
            if link[0] == BACK
            else ONE[link].format(name)
        )
    return f"{name}, and {CLAUSES[also[0]].format(also[1])}" if also else name


def _pluralize_kind(link: str) -> str:
    return PLURALS[TARGETS[link[1:]][0]]


SINGLE = "Single Answer"
LEAST, MOST = 2, 4
"""Minimum and maximum number of items of a set."""


@dataclass(frozen=True)
class GeneratedQuestion:
    problem: str
    category: str
    kind: str
    path: LinkPath
    items: tuple[tuple[str, ...], ...]
    """The correct answer, each item with all its names."""
    answer_type: str
    needed: tuple[tuple[str, ...], ...]
    """The names that must be seen to know the answer: the items, or the things that are counted."""
    named: tuple[str, ...]
    """The ids of the things that the question names."""
    documents: tuple[str, ...]
    """The ids of the documents that contain the answer, and of those that rule others out."""
    walkthrough: tuple[str, ...]
    """Actions that find the answer, and the answer."""

    @property
    def record(self) -> dict[str, str]:
        """The question in the official format."""
        answer = ", ".join(names[0] for names in self.items)
        return {
            "problem": self.problem,
            "problem_category": self.category,
            "answer": answer,
            "answer_type": self.answer_type,
        }


@dataclass(frozen=True)
class QuestionGenerator:
    split: Part
    world: FactWorld
    pages: FactPages
    library: LocalCorpus
    dice: random.Random

    def ask_chain(self) -> GeneratedQuestion | None:
        path = pick_one(self.dice, list_forward_paths(self.split))
        first = self._pick_entity(find_start_kind(path))
        way = follow_path(self.world, first.id, path)[0]
        last = self.world.things[way[-1]]
        phrase, hops = phrase_one(path, self._pick_name(first)), self._list_hops([way], path)
        if len(set(way)) < len(way):
            return None
        values = [value for value in last.values if value in VALUES]
        items: tuple[tuple[str, ...], ...]
        if values and self.dice.random() < 0.5:
            value = pick_one(self.dice, values)
            items, problem = ((last.values[value],),), VALUES[value].format(phrase)
            hops.append(FactHop(((last.id, value),), back=False))
            path = (*path, value)
        else:
            items, problem = (last.names,), f"{'Who' if last.kind == 'person' else 'What'} is {phrase}?"
        return self._build_question("chain", path, problem, last.kind, items, (first.id,), hops)

    def ask_set(self) -> GeneratedQuestion | None:
        return self._ask_about_several("set", lambda phrase, _: f"Name all {phrase}.")

    def ask_count(self, size: int) -> GeneratedQuestion | None:
        return self._ask_about_several("count", lambda phrase, _: f"How many {phrase} are there?", size)

    def _ask_about_several(
        self, kind: str, word: Callable[[str, str], str], size: int = 0
    ) -> GeneratedQuestion | None:
        path = pick_one(self.dice, list_backward_paths(self.split))
        first = self._pick_entity(find_start_kind(path))
        ends = self._find_ends(first, path)
        if ends is None:
            return None
        ways, last = ends
        if size and len(last) != size:
            return None
        items = tuple(self.world.things[thing].names for thing in last)
        problem = word(phrase_all(path, self._pick_name(first)), find_end_kind(path))
        counted = ((str(len(items)),),) if kind == "count" else items
        hops = self._list_hops(ways, path)
        return self._build_question(
            kind, path, problem, find_end_kind(path), counted, (first.id,), hops, items
        )

    def ask_intersection(self) -> GeneratedQuestion | None:
        path = pick_one(self.dice, list_backward_paths(self.split))
        first = self._pick_entity(find_start_kind(path))
        ways = follow_path(self.world, first.id, path)
        last = sorted({way[-1] for way in ways})
        if not LEAST < len(last) <= len(ways) <= MOST + 1 or first.id in last:
            return None
        things = [self.world.things[thing] for thing in last]
        ties = [
            (like, key, [thing for thing in things if _have_same_value(thing, like, key)])
            for like in things
            for key in (*like.links, *like.values)
            if key in CLAUSES and BACK + key != path[-1] and like.links.get(key) != first.id
        ]
        ties = [tie for tie in ties if len(tie[2]) < len(last)]
        if not ties:
            return None
        like, key, both = pick_one(self.dice, [tie for tie in ties if len(tie[2]) > 1] or ties)
        # The things outside the intersection have to be seen as well.
        hops = [*self._list_hops(ways, path), FactHop(tuple((thing, key) for thing in last), back=False)]
        other = self.world.things.get(like.links.get(key, ""))
        phrase = phrase_all(
            path, self._pick_name(first), (key, self._pick_name(other) if other else like.values[key])
        )
        items = tuple(thing.names for thing in both)
        named = (first.id, other.id) if other else (first.id,)
        path = (*path, BACK + key)
        return self._build_question(
            "intersection", path, f"Name all {phrase}.", like.kind, items, named, hops
        )

    def ask_comparison(self) -> GeneratedQuestion | None:
        return self._compare_two() if self.dice.random() < 0.5 else self._compare_several()

    def _compare_two(self) -> GeneratedQuestion | None:
        path = pick_one(self.dice, list_forward_paths(self.split))
        one, two = self._pick_entity(find_start_kind(path)), self._pick_entity(find_start_kind(path))
        ways = [*follow_path(self.world, one.id, path), *follow_path(self.world, two.id, path)]
        last = [self.world.things[way[-1]] for way in ways]
        values = [value for value in last[0].values if value in EARLIER]
        if not values or last[0].id == last[1].id or one.id == two.id:
            return None
        value = pick_one(self.dice, values)
        winner = _find_winner(last, value)
        if winner is None:
            return None
        problem = EARLIER[value].format(
            phrase_one(path, self._pick_name(one)), phrase_one(path, self._pick_name(two))
        )
        hops = [*self._list_hops(ways, path), FactHop(tuple((thing.id, value) for thing in last), back=False)]
        named = (one.id, two.id)
        return self._build_question(
            "comparison", (*path, value), problem, winner.kind, (winner.names,), named, hops
        )

    def _compare_several(self) -> GeneratedQuestion | None:
        path = pick_one(self.dice, list_backward_paths(self.split))
        first = self._pick_entity(find_start_kind(path))
        ends = self._find_ends(first, path)
        if ends is None:
            return None
        ways, ids = ends
        last = [self.world.things[thing] for thing in ids]
        values = [value for value in last[0].values if value in SUPERLATIVES]
        value = pick_one(self.dice, values) if values else ""
        winner = _find_winner(last, value) if value else None
        if winner is None:
            return None
        problem = SUPERLATIVES[value].format(phrase_all(path, self._pick_name(first)))
        hops = [*self._list_hops(ways, path), FactHop(tuple((thing, value) for thing in ids), back=False)]
        return self._build_question(
            "comparison", (*path, value), problem, winner.kind, (winner.names,), (first.id,), hops
        )

    def _find_ends(self, first: FactEntity, path: LinkPath) -> tuple[list[tuple[str, ...]], list[str]] | None:
        """Return the ways along a path and their ends, or None if there are too few or too many."""
        ways = follow_path(self.world, first.id, path)
        last = sorted({way[-1] for way in ways})
        few = LEAST <= len(last) <= MOST and len(ways) <= MOST
        return (ways, last) if few and first.id not in last else None

    def _list_hops(self, ways: Sequence[tuple[str, ...]], path: LinkPath) -> list[FactHop]:
        """Return the facts that each step of the ways uses."""
        return [
            FactHop(tuple(dict.fromkeys((way[index + back], link.lstrip(BACK)) for way in ways)), back)
            for index, link in enumerate(path)
            for back in [link.startswith(BACK)]
        ]

    def _pick_entity(self, kind: str) -> FactEntity:
        return pick_one(self.dice, self.world.kinds[kind])

    def _pick_name(self, thing: FactEntity) -> str:
        return pick_one(self.dice, (thing.name, *thing.names))

    def _build_question(
        self,
        kind: str,
        path: LinkPath,
        problem: str,
        about: str,
        items: tuple[tuple[str, ...], ...],
        named: tuple[str, ...],
        hops: Sequence[FactHop],
        needed: tuple[tuple[str, ...], ...] = (),
    ) -> GeneratedQuestion | None:
        walk = SearchWalk(self.world, self.pages, self.library)
        if not walk.show_all_facts(hops, most=STEPS - 1):
            return None
        question = GeneratedQuestion(
            problem=problem,
            category=CATEGORIES[about],
            kind=kind,
            path=path,
            items=items,
            answer_type=SET if kind in ("set", "intersection") else SINGLE,
            needed=needed or items,
            named=named,
            documents=tuple(sorted({self.pages.sources[fact] for hop in hops for fact in hop.facts})),
            walkthrough=(*walk.actions, f"answer[{'; '.join(names[0] for names in items)}]"),
        )
        return None if is_answered_at_once(question, self.library) else question


def generate_questions(
    split: Part, world: FactWorld, pages: FactPages, library: LocalCorpus, count: int
) -> tuple[GeneratedQuestion, ...]:
    """Generate the first `count` questions of a split, all different; the kinds alternate."""
    generator = QuestionGenerator(
        split, world, pages, library, random.Random(f"deepsearchqa-mini:{split}:questions")
    )
    questions: dict[str, GeneratedQuestion] = {}

    def ask_count() -> GeneratedQuestion | None:
        """Ask for each number equally often, so that guessing gains little."""
        return generator.ask_count(LEAST + len(questions) // len(kinds) % (MOST - LEAST + 1))

    kinds = (
        generator.ask_chain,
        generator.ask_set,
        generator.ask_intersection,
        ask_count,
        generator.ask_comparison,
    )
    while len(questions) < count:
        question = kinds[len(questions) % len(kinds)]()
        if question and question.problem not in questions:
            questions[question.problem] = question
    return tuple(questions.values())


def is_answered_at_once(question: GeneratedQuestion, library: LocalCorpus) -> bool:
    """Return whether a search for the question's own words finds pages with everything that is needed."""
    results = library.search(question.problem)
    seen = "\n".join(f"{result.title}\n{library.open(result.id)}" for result in results)
    return all(any(name in seen for name in names) for names in question.needed)


def _have_same_value(one: FactEntity, other: FactEntity, key: str) -> bool:
    return one.links.get(key) == other.links.get(key) and one.values.get(key) == other.values.get(key)


def _find_winner(things: Sequence[FactEntity], value: str) -> FactEntity | None:
    """Return the thing that wins the comparison, or None if two are equal."""
    amounts = {thing.id: int(thing.values[value]) for thing in things}
    if len(set(amounts.values())) < len(things):
        return None
    return (max if value in MANY else min)(things, key=lambda thing: amounts[thing.id])
