"""Generates the miniature's instructions: two facts about somebody, a question about one, and how to answer.

Each has an answer that has all the qualities of the rubric, and a reference that lacks one: its form, its
length or its language. Who goes with which value belongs to one split, by the hash of both; what is asked
and how it is to be answered is common to all.
"""

import hashlib
import random
from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeVar

from pydantic import JsonValue

from agent2rl.core.task import Example

Part = Literal["train", "feedback", "heldout"]
T = TypeVar("T")
SHARES: dict[Part, range] = {"train": range(4), "feedback": range(4, 6), "heldout": range(6, 8)}
"""Which eighths of all pairs of a name and a value belong to a split."""

NAMES = ("Ada", "Ben", "Carla", "Dan", "Eva", "Finn", "Grace", "Hugo", "Ida", "Jon", "Kim", "Leo", "Mia")
TOWNS = ("Alton", "Brook", "Carlow", "Dover", "Elm", "Ford", "Gale", "Hill", "Kent", "Lake", "March", "Stone")


class FactKind(NamedTuple):
    """A fact that can be asked for."""

    told: str
    asked: str
    english: str
    german: str
    values: Sequence[str]


KINDS = (
    FactKind(
        "{name} lives in {v}.", "Where does {name} live?", "{name} lives in {v}", "{name} wohnt in {v}", TOWNS
    ),
    FactKind(
        "{name} works with {v}.",
        "Who does {name} work with?",
        "{name} works with {v}",
        "{name} arbeitet mit {v}",
        NAMES,
    ),
    FactKind(
        "{name} is {v} years old.",
        "How old is {name}?",
        "{name} is {v} years old",
        "{name} ist {v} Jahre alt",
        tuple(str(age) for age in range(12, 80)),
    ),
    FactKind(
        "{name} was born in {v}.",
        "When was {name} born?",
        "{name} was born in {v}",
        "{name} kam {v} zur Welt",
        tuple(str(year) for year in range(1930, 2010)),
    ),
)
LANGUAGES = {"English": "", "German": "Answer in German."}
LENGTHS = {
    "1 sentences": "Write one sentence.",
    "2 sentences": "Write two sentences.",
    "6 words": "Use at most six words.",
}
FORMS = {
    "plain": "",
    "capitals": "Use capital letters.",
    "dash": "Begin with a dash.",
    "quotes": "Put it in quotes.",
}
SECOND = {"English": "That is it", "German": "Das ist so"}
OTHER = {"English": "German", "German": "English"}


def generate_instructions(split: Part, count: int) -> tuple[Example, ...]:
    """The first `count` of a split, no two alike; kinds, languages, lengths and forms take turns."""
    dice = random.Random(f"alpacaeval-mini:{split}")
    ways = [(language, length, form) for language in LANGUAGES for length in LENGTHS for form in FORMS]
    found: dict[str, Example] = {}
    while len(found) < count:
        kind = KINDS[len(found) % len(KINDS)]
        way = ways[len(found) // len(KINDS) % len(ways)]
        name, value = _draw_name_and_value(dice, kind, split)
        other = _pick_one(dice, [one for one in KINDS if one is not kind])
        beside = _pick_one(dice, [one for one in other.values if one not in (name, value)])
        prompt = _write_prompt(dice, (kind, value), (other, beside), name, way)
        others = [one for one in (beside, *kind.values) if one not in (name, value) and not one.isdigit()]
        meta: dict[str, JsonValue] = {"value": value, "others": [*dict.fromkeys(others)]}
        meta |= dict(zip(("language", "length", "form"), way, strict=True))
        meta["reference"] = _write_answer(kind, name, value, _change_one_quality(dice, way))
        answer = _write_answer(kind, name, value, way)
        found.setdefault(prompt, Example(f"alpacaeval-mini-{split}-{len(found):04d}", prompt, answer, meta))
    return tuple(found.values())


def _draw_name_and_value(dice: random.Random, kind: FactKind, split: Part) -> tuple[str, str]:
    while True:
        name = _pick_one(dice, NAMES)
        value = _pick_one(dice, [one for one in kind.values if one != name])
        if hashlib.sha256(f"{name} {value}".encode()).digest()[0] % 8 in SHARES[split]:
            return name, value


def _write_prompt(
    dice: random.Random,
    wanted: tuple[FactKind, str],
    beside: tuple[FactKind, str],
    name: str,
    way: tuple[str, str, str],
) -> str:
    facts = [kind.told.format(name=name, v=value) for kind, value in (wanted, beside)]
    if dice.random() < 0.5:
        facts.reverse()
    language, length, form = way
    how = [LANGUAGES[language], LENGTHS[length], FORMS[form]]
    return " ".join([*facts, wanted[0].asked.format(name=name), *filter(None, how)])


def _write_answer(kind: FactKind, name: str, value: str, way: tuple[str, str, str]) -> str:
    language, length, form = way
    text = (kind.english if language == "English" else kind.german).format(name=name, v=value) + "."
    if length.startswith("2"):
        text += f" {SECOND[language]}."
    return {"plain": text, "capitals": text.upper(), "dash": f"- {text}", "quotes": f'"{text}"'}[form]


def _change_one_quality(dice: random.Random, way: tuple[str, str, str]) -> tuple[str, str, str]:
    """Another way to say it, which is not the one that was asked for in one respect."""
    language, length, form = way
    place = int(dice.random() * 3)
    if place == 0:
        return OTHER[language], length, form
    if place == 1:  # two sentences have more than six words, or are more than one
        return language, "1 sentences" if length.startswith("2") else "2 sentences", form
    return language, length, _pick_one(dice, [one for one in FORMS if one != form])


def _pick_one(dice: random.Random, choices: Sequence[T]) -> T:
    """By `random()`, the only method whose numbers every Python promises to keep."""
    return choices[int(dice.random() * len(choices))]
