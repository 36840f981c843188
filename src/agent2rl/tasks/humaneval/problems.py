"""Generates the problems of the miniature: the same ones each time, functions of one or two steps.

Steps ("sort the list", "keep the first 3 items") are common to all splits, and training has each of them.
What they make together is not: a family, which is steps in their order, belongs to one split, by their places
in the table, and so does every tuple of constants, by the remainder of its sum. So a model must learn what
each step is and how steps compose; no function that it learnt by heart is asked for again.

Tests are chosen, not just drawn: a function that is nearly right fails one of them if there is any input in
the pool that it fails on.
"""

import random
from collections.abc import Sequence
from functools import cache
from itertools import cycle, product
from typing import Any, Literal, TypeVar

from agent2rl.core.task import Example
from agent2rl.tasks.humaneval.steps import (
    CONSTANTS,
    STEPS,
    Function,
    FunctionStep,
    StepCall,
    iterate_near_misses,
    list_shorter_functions,
    list_slots,
    run_function,
    write_body,
)

Part = Literal["train", "feedback", "heldout"]
Family = tuple[FunctionStep, ...]
T = TypeVar("T")

FAMILIES: tuple[Family, ...] = (
    *((step,) for step in STEPS),
    *((one, two) for one, two in product(STEPS, STEPS) if one != two and one.gives == two.takes),
)
SHARES: tuple[Part, ...] = ("train", "train", "train", "feedback", "heldout")
REMAINDERS: dict[Part, frozenset[int]] = {
    "train": frozenset({0, 1}),
    "feedback": frozenset({2}),
    "heldout": frozenset({3}),
}
"""Which sums of a function's constants, modulo 4, belong to a split; a letter counts as its code point."""
NAMES = ("change", "combine", "compute", "f", "g", "make", "mix", "solve", "step", "value", "work")
WORDS = (
    "apple ball bottle button candle carrot chair coin cookie flower garden glass kitchen lemon letter"
    " library market onion orange paper pencil picture pillow plate river school silver spoon station street"
    " table ticket tomato towel train window winter yellow"
)
FEWEST_TESTS = 5


def generate_problems(split: Part, count: int) -> tuple[Example, ...]:
    """The first `count` problems of a split, no two alike; its families take turns.

    A family misses its turn where its constants make it no more than one of its steps; some always do.
    """
    dice = random.Random(f"humaneval-mini:{split}")
    found: dict[str, Example] = {}
    for family in cycle(family for family in FAMILIES if split_of(family) == split):
        if len(found) == count:
            break
        function = _draw_function(dice, family, split)
        if told := _choose_inputs(dice, function):
            example = _build_example(dice, function, told, f"humaneval-mini-{split}-{len(found):04d}")
            found.setdefault(example.prompt, example)
    return tuple(found.values())


def split_of(family: Family) -> Part:
    """As in a Latin square: first or second, a step meets three in five of its partners in training."""
    places = [STEPS.index(step) for step in family]
    return SHARES[sum(weight * place for weight, place in enumerate(places, start=1)) % len(SHARES)]


def _draw_function(dice: random.Random, family: Family, split: Part) -> Function:
    """The family with constants of the split."""
    while True:
        function = tuple(
            StepCall(step, tuple(_pick_one(dice, CONSTANTS[slot]) for slot in list_slots(step)))
            for step in family
        )
        numbers = [ord(c) if isinstance(c, str) else c for call in function for c in call.constants]
        if not numbers or sum(numbers) % 4 in REMAINDERS[split]:
            return function


def _choose_inputs(dice: random.Random, function: Function) -> list[Any] | None:
    """An input to show, then those to test with; None where fewer steps or always one answer would do."""
    pool = _build_input_pool(function[0].step.takes)
    start = int(dice.random() * len(pool))
    left = [*pool[start:], *pool[:start]]
    tests: list[Any] = []

    def take(*rivals: Function) -> list[Any]:
        """The next input that tells the function from all of these, if there is one."""
        for value in left:
            right = run_function(function, value)
            if right is not None and all(run_function(rival, value) != right for rival in rivals):
                left.remove(value)
                return [value]
        return []

    def passes(rival: Function) -> bool:
        return all(run_function(rival, value) == run_function(function, value) for value in tests)

    for rival in (*list_shorter_functions(function), *iterate_near_misses(function)):
        tests += take(rival) if passes(rival) else []
    for _ in range(FEWEST_TESTS - len(tests)):
        tests += take()
    answers = {repr(run_function(function, value)) for value in tests}
    shown = take(*list_shorter_functions(function))
    if not shown or len(answers) == 1 or any(map(passes, list_shorter_functions(function))):
        return None
    return [*shown, *tests]


@cache
def _build_input_pool(kind: str) -> tuple[Any, ...]:
    """The inputs that there are, in no order."""
    dice = random.Random(f"humaneval-mini:{kind}")
    items = range(1, 21)
    pools: dict[str, Sequence[Any]] = {
        "n": range(-30, 60),
        "s": WORDS.split(),
        "xs": [[_pick_one(dice, items) for _ in range(_pick_one(dice, range(4, 8)))] for _ in range(200)],
    }
    return tuple(sorted(pools[kind], key=lambda _: dice.random()))


def _build_example(dice: random.Random, function: Function, told: list[Any], name: str) -> Example:
    called = _pick_one(dice, NAMES)
    ways = [
        call.fill_constants(_pick_one(dice, (call.step.words, call.step.other_words))) for call in function
    ]
    said = ", then ".join(ways)
    shown, *tests = told
    prompt = (
        f"def {called}({function[0].step.takes}):\n"
        f'    """{said[0].upper()}{said[1:]}.\n'
        f"    >>> {called}({shown!r})\n"
        f"    {run_function(function, shown)!r}\n"
        f'    """\n'
    )
    checks = "".join(
        f"    assert candidate({value!r}) == {run_function(function, value)!r}\n" for value in tests
    )
    meta = {"test": f"def check(candidate):\n{checks}", "entry_point": called}
    return Example(name, prompt, write_body(function), meta)


def _pick_one(dice: random.Random, choices: Sequence[T]) -> T:
    """By `random()`, the only method whose numbers every Python promises to keep."""
    return choices[int(dice.random() * len(choices))]
