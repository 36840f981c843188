"""Names of the miniature's closed world. Each split has letters and words of its own: no name is in two.

Not covered: what the names stand for.
"""

import random
from collections.abc import Callable, Sequence
from typing import Literal, TypeVar

from agent2rl.environments.search.answer_matching import normalize_text

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
