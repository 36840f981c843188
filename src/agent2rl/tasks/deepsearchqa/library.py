"""Generate the miniature's library: places with links between them, a short page per link, and questions.

    one page        title "farm Lorne 38's school", text "school Tarn 51"
    a question      "What is shop Selby 12's farm's school?"

A question follows a path of links from a place. Each page has one link, so each link of the path takes a
search for what the search before it found. The splits share no names, and no paths.

The words are ones that the seedling knows, and names continue with numbers: what a name is can only be read
in a result. A model that has memorised the names of the training questions finds nothing with them.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import permutations
from typing import Literal, TypeVar

from agent2rl.environments.search.answer_matching import SET
from agent2rl.environments.search.backends import LocalCorpus, SearchDocument

Part = Literal["train", "feedback", "heldout"]
PARTS: tuple[Part, ...] = ("train", "feedback", "heldout")
T = TypeVar("T")

# Names and paths. Each belongs to one split.

KINDS = ("farm", "garden", "library", "museum", "school", "shop")
"""Kinds of places. Each place is linked to one place of every other kind, and has some cats."""
CATS, CAT = "cats", "cat"
PLACE_WORDS = (
    "Acorn Ashby Barton Beacon Calden Cobalt Delta Dorset Elmo Ember Falcon Farley Galway Granite Harbor "
    "Hilton Ilmen Jarrow Jasper Kelso Keystone Lantern Lorne Marlow Meridian Nimbus Norden Oakham Porto "
    "Quill Ripley Selby Tarn Upton Velden Wexley Yarrow Zell"
)
CAT_WORDS = (
    "Ada Amy Ana Bea Ben Bob Carla Chen Cleo Dan Dora Ella Emma Eva Fay Finn Flo Gina Glen Grace Greta "
    "Gus Hana Hank Hugo Ida Iris Ivan Ivy Jack Jane Jill Joe Jon June Kai Kate Ken Kim Lara Leo Lia Lily "
    "Luis Luna Mae Mara Marco Max Mia Milo Mona Nadia Nell Nick Nina Noah Nora Olga Omar Oscar Otto Pam "
    "Paul Petra Pia Quinn Raj Rita Rob Rosa Ruth Sam Sara Sofia Stan Tara Theo Tim Tina Tom Uma Vera Vic "
    "Wade Walt Wendy Will Yara Yuki Zoe"
)
NUMBERS = range(10, 100)
PLACES = 120
"""Number of places of each kind in a split."""
SHARES: dict[Part, tuple[int, ...]] = {"train": (0, 1), "feedback": (2,), "heldout": (3,)}
"""Split → numbers of its paths, modulo 4."""
SHOWN, SNIPPET_WORDS = 3, 3
"""What a search shows: little, because a tiny model has a small context. A name has three words."""

QUESTION_KINDS = ("two", "three", "set")
"""`two` links or `three` to a place, or one link to a place of which all cats are asked for."""
LinkPath = tuple[str, ...]
"""Kinds of places, from that of the first place to the last link."""


def pick_one(dice: random.Random, choices: Sequence[T]) -> T:
    """Pick a value with `random()`, the only method with the same numbers in every Python version."""
    return choices[int(dice.random() * len(choices))]


def list_names(split: Part, words: str) -> list[str]:
    """List the names of a split. Every word and every number is in all splits, but no pair of them."""
    return [
        f"{word} {number}"
        for index, word in enumerate(words.split())
        for number in NUMBERS
        if PARTS[(index + number) % len(PARTS)] == split
    ]


@cache
def list_paths(split: Part, kind: str) -> tuple[LinkPath, ...]:
    """List the paths of one kind of question."""
    paths: list[LinkPath] = (
        [(*path, CATS) for path in permutations(KINDS, 2)]
        if kind == "set"
        else list(permutations(KINDS, {"two": 3, "three": 4}[kind]))
    )
    # Shuffled, or the splits would differ in the last link alone.
    _shuffle(random.Random(f"deepsearchqa-mini:paths:{kind}"), paths)
    return tuple(path for number, path in enumerate(paths) if number % 4 in SHARES[split])


def _shuffle(dice: random.Random, values: list[T]) -> None:
    for index in range(len(values) - 1, 0, -1):
        other = int(dice.random() * (index + 1))
        values[index], values[other] = values[other], values[index]


# The library of a split, and questions that it answers; deterministic


@dataclass(frozen=True)
class GeneratedQuestion:
    problem: str
    kind: str
    path: LinkPath
    items: tuple[str, ...]
    """The correct answer."""
    documents: tuple[str, ...]
    """The ids of the documents that lead to the answer."""
    walkthrough: tuple[str, ...]
    """Actions that find the answer, and the answer."""

    @property
    def answer_type(self) -> str:
        return SET if self.kind == "set" else "Single Answer"


@dataclass(frozen=True)
class FactLibrary:
    places: dict[str, list[str]]
    """The places of each kind."""
    links: dict[tuple[str, str], tuple[str, ...]]
    """Place and link → the places or cats that it leads to."""
    ids: dict[tuple[str, str], str]
    """Place and link → the id of the document that tells it."""
    search: LocalCorpus


def generate_facts(split: Part) -> FactLibrary:
    dice = random.Random(f"deepsearchqa-mini:{split}:facts")
    names, cats = list_names(split, PLACE_WORDS), list_names(split, CAT_WORDS)
    _shuffle(dice, names)
    _shuffle(dice, cats)
    places = {
        kind: [f"{kind} {name}" for name in names[index * PLACES : (index + 1) * PLACES]]
        for index, kind in enumerate(KINDS)
    }
    links: dict[tuple[str, str], tuple[str, ...]] = {}
    for kind in KINDS:
        for place in places[kind]:
            for other in KINDS:
                if other != kind:
                    links[place, other] = (pick_one(dice, places[other]),)
            links[place, CATS] = tuple(f"{CAT} {cats.pop()}" for _ in range(pick_one(dice, (2, 3))))
    ids = {fact: f"page-{number:04d}" for number, fact in enumerate(links)}
    documents = [
        SearchDocument(ids[place, link], f"{place}'s {link}", ", ".join(targets))
        for (place, link), targets in links.items()
    ]
    return FactLibrary(places, links, ids, LocalCorpus(documents, SHOWN, SNIPPET_WORDS))


def generate_questions(split: Part, facts: FactLibrary, count: int) -> tuple[GeneratedQuestion, ...]:
    """Generate the first `count` questions of a split, all different; the kinds alternate."""
    dice = random.Random(f"deepsearchqa-mini:{split}:questions")
    questions: dict[str, GeneratedQuestion] = {}
    while len(questions) < count:
        question = _draw_question(dice, split, facts, QUESTION_KINDS[len(questions) % len(QUESTION_KINDS)])
        if question.problem not in questions and not is_answered_at_once(question, facts.search):
            questions[question.problem] = question
    return tuple(questions.values())


def _draw_question(dice: random.Random, split: Part, facts: FactLibrary, kind: str) -> GeneratedQuestion:
    path = pick_one(dice, list_paths(split, kind))
    first = pick_one(dice, facts.places[path[0]])
    found: tuple[str, ...] = (first,)
    actions, documents = [], []
    for link in path[1:]:
        actions.append(f"search[{found[0]}'s {link}]")
        documents.append(facts.ids[found[0], link])
        found = facts.links[found[0], link]
    possessives = "".join(f"{link}'s " for link in path[1:-1])
    asks = "Which are" if kind == "set" else "What is"
    if kind == "set":
        actions.append("open[1]")
    return GeneratedQuestion(
        problem=f"{asks} {first}'s {possessives}{path[-1]}?",
        kind=kind,
        path=path,
        items=found,
        documents=tuple(documents),
        walkthrough=(*actions, f"answer[{'; '.join(found)}]"),
    )


def is_answered_at_once(question: GeneratedQuestion, library: LocalCorpus) -> bool:
    """Return whether a search for the question's own words finds pages with everything that is needed."""
    results = library.search(question.problem)
    seen = "\n".join(f"{result.title}\n{library.open(result.id)}" for result in results)
    return all(item in seen for item in question.items)
