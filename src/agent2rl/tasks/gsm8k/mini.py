"""GSM8K in miniature: generated one- and two-step word problems, the same format and the same evaluator.

A program is a string over `+ - * /`, applied from left to right: `*-` is (a * b) - c. Each split has its own
stories and numbers: a story belongs to one split (see stories.txt), and so does every tuple of numbers, by
the remainder of its sum. So nothing learnt by heart helps with another split, while the words that indicate
the operations ("each", "left", "shared equally") are common to all.
"""

import random
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Literal, TypeVar

from agent2rl.core.errors import UserError
from agent2rl.core.task import Example, Splits, Task
from agent2rl.tasks.gsm8k import EVALUATOR
from agent2rl.tasks.gsm8k import TASK as GSM8K

# Generating the problems, deterministically, from stories and numbers

Part = Literal["train", "feedback", "heldout"]
T = TypeVar("T")

RANGES: dict[str, tuple[range, ...]] = {
    "+": (range(3, 60), range(3, 60)),
    "-": (range(8, 90), range(3, 60)),
    "*": (range(2, 13), range(3, 13)),
    "/": (range(6, 120), range(2, 11)),
    "+-": (range(5, 50), range(3, 40), range(2, 30)),
    "*+": (range(2, 11), range(3, 11), range(2, 30)),
    "*-": (range(2, 11), range(3, 11), range(2, 30)),
    "+*": (range(2, 11), range(2, 11), range(2, 9)),
    "-/": (range(10, 90), range(2, 20), range(2, 10)),
}
REMAINDERS: dict[Part, frozenset[int]] = {
    "train": frozenset({0, 1, 2, 3}),
    "feedback": frozenset({4, 5}),
    "heldout": frozenset({6, 7}),
}
"""Split → sums of a problem's numbers, modulo 8."""

NAMES = ("Ada", "Ben", "Carla", "Dan", "Eva", "Finn", "Grace", "Hugo", "Ida", "Jon", "Kim", "Leo", "Mia")
THINGS = ("apples", "beads", "books", "buttons", "cards", "coins", "cookies", "eggs", "shells", "stamps")
VESSELS = (("box", "boxes"), ("bag", "bags"), ("jar", "jars"), ("tray", "trays"), ("basket", "baskets"))
WORDS = ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
IMPLIED = {"twice": 2, "half": 2, "dozen": 12}
"""Words of a story that stand for its second number."""
PHRASES = {"+": "Together that is", "-": "That leaves", "*": "That makes", "/": "Each part is"}


@cache
def generate_problems(split: Part, count: int) -> tuple[Example, ...]:
    """Generate the first `count` problems of a split, all different; programs and stories alternate."""
    dice = random.Random(f"gsm8k-mini:{split}")
    programs = list(RANGES)
    problems: dict[str, Example] = {}
    while len(problems) < count:
        program = programs[len(problems) % len(programs)]
        stories = read_stories(program, split)
        story = stories[len(problems) // len(programs) % len(stories)]
        numbers, answer = _draw_numbers(dice, program, story, split)
        question = _write_question(dice, story, numbers)
        name = f"gsm8k-mini-{split}-{len(problems):04d}"
        problems.setdefault(question, Example(name, question, answer))
    return tuple(problems.values())


@cache
def read_stories(program: str, split: Part) -> tuple[str, ...]:
    """Read the stories of a program and split."""
    text = Path(__file__).with_name("stories.txt").read_text(encoding="utf-8")
    _, _, section = text.partition(f"[{program} {split}]\n")
    return tuple(section.partition("\n\n")[0].splitlines())


def _draw_numbers(dice: random.Random, program: str, story: str, split: Part) -> tuple[tuple[int, ...], str]:
    """Draw numbers of the split with a positive whole number as result, and return the worked answer."""
    implied = [value for word, value in IMPLIED.items() if re.search(rf"\b{word}\b", story)]
    while True:
        drawn = [_pick_one(dice, choices) for choices in RANGES[program]]
        numbers = (drawn[0], *implied, *drawn[1 + len(implied) :])
        answer = _solve_program(program, numbers)
        if answer and sum(numbers) % 8 in REMAINDERS[split]:
            return numbers, answer


def _solve_program(program: str, numbers: Sequence[int]) -> str | None:
    """Return the worked answer, or None if a step does not give a positive whole number."""
    result, lines = numbers[0], []
    for sign, number in zip(program, numbers[1:], strict=True):
        before = result
        result = {"+": before + number, "-": before - number, "*": before * number, "/": before // number}[
            sign
        ]
        if result <= 0 or (sign == "/" and before % number):
            return None
        lines.append(
            f"{PHRASES[sign]} {before} {sign} {number} = <<{before}{sign}{number}={result}>>{result}."
        )
    return "\n".join([*lines, f"#### {result}"])


def _write_question(dice: random.Random, story: str, numbers: Sequence[int]) -> str:
    name = _pick_one(dice, NAMES)
    vessel, vessels = _pick_one(dice, VESSELS)
    return story.format(
        name=name,
        other=_pick_one(dice, [other for other in NAMES if other != name]),
        things=_pick_one(dice, THINGS),
        vessel=vessel,
        vessels=vessels,
        **{slot: _write_number(dice, number) for slot, number in zip("abc", numbers, strict=False)},
    )


def _write_number(dice: random.Random, number: int) -> str:
    """Write a number in digits, or sometimes as a word if it is small."""
    as_word = dice.random() < 0.2
    return WORDS[number - 2] if as_word and number - 2 < len(WORDS) else str(number)


def _pick_one(dice: random.Random, choices: Sequence[T]) -> T:
    """Pick a value with `random()`, the only method with the same numbers in every Python version."""
    return choices[int(dice.random() * len(choices))]


def load(data_dir: Path | None) -> Splits:
    if data_dir is not None:
        raise UserError("gsm8k-mini is generated and reads no files.", "Leave out --data-dir.")
    return Splits(
        train=generate_problems("train", 2000),
        feedback=generate_problems("feedback", 150),
        heldout=generate_problems("heldout", 150),
    )


TASK: Task = Task(
    id="gsm8k-mini",
    level=1,
    description=GSM8K.description
    + """
## The miniature

These problems are generated and short: one or two steps, two or three numbers. The problems that are used
for scoring tell other stories with other numbers, in the same everyday words.
""",
    load=load,
    evaluator=EVALUATOR,
    exposes=GSM8K.exposes,
    paper=GSM8K.paper,
)
