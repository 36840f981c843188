"""HumanEval in miniature: generated one- and two-step functions, the same format and the same evaluator.

Steps ("sort the list", "keep the first 3 items") are common to all splits, and training has each of them.
Their combinations are not: a family, which is a sequence of steps, belongs to one split, by their positions
in the table, and so does every tuple of constants, by the remainder of its sum. So a model must learn what
each step does and how steps compose; no function that it learnt by heart occurs again.

Tests are selected, not just drawn: a function that is nearly right fails one of them if it fails on any input
in the pool.
"""

import random
import string
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import cycle, product
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

from agent2rl.core.errors import UserError
from agent2rl.core.task import Example, Splits, Task
from agent2rl.tasks.humaneval import EVALUATOR
from agent2rl.tasks.humaneval import TASK as HUMANEVAL

# The steps of functions, each in code and in words, with its constants

Constant = int | str
LETTERS = "aeilnorst"
CONSTANTS: dict[str, Sequence[Constant]] = {
    "k": range(2, 20),
    "m": range(2, 10),
    "i": range(2, 6),
    "t": range(4, 50),
    "c": LETTERS,
    "d": LETTERS,
}
"""Possible values for the slots of a step."""


@dataclass(frozen=True, eq=False)
class FunctionStep:
    """Takes a number `n`, a text `s` or a list of numbers `xs`; gives one of these, or finally a `truth`."""

    takes: str
    gives: str
    code: str
    """An expression over the input."""
    words: str
    other_words: str


STEPS = (
    FunctionStep("n", "n", "n + {k}", "add {k} to the number", "increase the number by {k}"),
    FunctionStep("n", "n", "n - {k}", "subtract {k} from the number", "lower the number by {k}"),
    FunctionStep("n", "n", "n * {m}", "multiply the number by {m}", "take the number {m} times"),
    FunctionStep("n", "n", "n % {m}", "take the remainder by {m}", "find what division by {m} leaves"),
    FunctionStep("n", "n", "n * n", "square the number", "multiply the number by itself"),
    FunctionStep("n", "n", "abs(n)", "drop the sign of the number", "find the absolute value"),
    FunctionStep("n", "n", "sum(map(int, str(n)))", "sum the digits", "add up the digits"),
    FunctionStep(
        "n", "truth", "n > {t}", "tell whether the number is above {t}", "say if the number is more than {t}"
    ),
    FunctionStep("xs", "xs", "[x + {k} for x in xs]", "add {k} to each item", "increase each item by {k}"),
    FunctionStep(
        "xs", "xs", "[x * {m} for x in xs]", "multiply each item by {m}", "take each item {m} times"
    ),
    FunctionStep(
        "xs", "xs", "[x for x in xs if x > {k}]", "keep the items above {k}", "keep items of more than {k}"
    ),
    FunctionStep("xs", "xs", "[x for x in xs if x % 2 == 0]", "keep the even items", "drop the odd items"),
    FunctionStep("xs", "xs", "xs[::-1]", "reverse the list", "turn the list around"),
    FunctionStep("xs", "xs", "sorted(xs)", "sort the list", "put the list in order"),
    FunctionStep("xs", "xs", "xs[:{i}]", "keep the first {i} items", "take {i} items from the start"),
    FunctionStep("xs", "xs", "xs[:-{i}]", "drop the last {i} items", "leave out {i} items at the end"),
    FunctionStep("xs", "n", "sum(xs)", "sum the list", "add up the items"),
    FunctionStep("xs", "n", "max(xs)", "find the largest item", "pick the largest of the items"),
    FunctionStep("xs", "n", "len(xs)", "count the items", "find how many items there are"),
    FunctionStep("s", "s", "s.upper()", "put the text in capitals", "make all letters large"),
    FunctionStep("s", "s", "s[::-1]", "reverse the text", "turn the text around"),
    FunctionStep("s", "s", "s * {i}", "repeat the text {i} times", "write the text {i} times"),
    FunctionStep("s", "s", "s + '{c}'", "put '{c}' at the end", "add '{c}' after the text"),
    FunctionStep(
        "s", "s", "s.replace('{c}', '{d}')", "replace '{c}' with '{d}'", "turn each '{c}' into '{d}'"
    ),
    FunctionStep("s", "s", "s[:{i}]", "keep the first {i} letters", "take {i} letters from the start"),
    FunctionStep(
        "s", "s", "''.join(c for c in s if c not in 'aeiou')", "drop the vowels", "leave out each vowel"
    ),
    FunctionStep("s", "n", "len(s)", "count the letters", "find how many letters there are"),
)


@cache
def list_slots(step: FunctionStep) -> tuple[str, ...]:
    return tuple(name for _, name, _, _ in string.Formatter().parse(step.code) if name)


class StepCall(NamedTuple):
    """A step with its constants."""

    step: FunctionStep
    constants: tuple[Constant, ...]

    def fill_constants(self, text: str) -> str:
        return text.format_map(dict(zip(list_slots(self.step), self.constants, strict=True)))


Function = tuple[StepCall, ...]
"""A sequence of calls; the empty one returns its input."""


def run_function(function: Function, value: Any) -> Any:
    """Return the result, or None if the function fails."""
    try:
        for call in function:
            value = _compile_call(call)(value)
    except (AttributeError, TypeError, ValueError):
        return None
    return value


@cache
def _compile_call(call: StepCall) -> Callable[[Any], Any]:
    return eval(f"lambda {call.step.takes}: {call.fill_constants(call.step.code)}")  # type: ignore[no-any-return]


def write_body(function: Function) -> str:
    """Write the source of a function, one line per step."""
    *before, last = function
    lines = [f"{call.step.gives} = {call.fill_constants(call.step.code)}" for call in before]
    return "".join(f"    {line}\n" for line in [*lines, f"return {last.fill_constants(last.step.code)}"])


def list_shorter_functions(function: Function) -> tuple[Function, ...]:
    """Return the function with steps left out."""
    return ((), *((call,) for call in function if len(function) > 1))


def iterate_near_misses(function: Function) -> Iterator[Function]:
    """Yield the steps in the other order, and with one constant replaced by a neighbour."""
    if len(function) > 1:
        yield function[::-1]
    for index, (step, constants) in enumerate(function):
        for i, constant in enumerate(constants):
            for other in _neighbouring_constants(constant):
                call = StepCall(step, (*constants[:i], other, *constants[i + 1 :]))
                yield (*function[:index], call, *function[index + 1 :])


def _neighbouring_constants(constant: Constant) -> tuple[Constant, Constant]:
    if isinstance(constant, int):
        return constant - 1, constant + 1
    index = LETTERS.index(constant)
    return LETTERS[index - 1], LETTERS[(index + 1) % len(LETTERS)]


# Generating the problems, deterministically: functions of one or two steps

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
"""Split → sums of a function's constants, modulo 4; a letter counts as its code point."""
NAMES = ("change", "combine", "compute", "f", "g", "make", "mix", "solve", "step", "value", "work")
WORDS = (
    "apple ball bottle button candle carrot chair coin cookie flower garden glass kitchen lemon letter"
    " library market onion orange paper pencil picture pillow plate river school silver spoon station street"
    " table ticket tomato towel train window winter yellow"
)
FEWEST_TESTS = 5


def generate_problems(split: Part, count: int) -> tuple[Example, ...]:
    """Generate the first `count` problems of a split, all different; its families alternate.

    A family is skipped if its constants make it equal to one of its steps; for some this is always so.
    """
    dice = random.Random(f"humaneval-mini:{split}")
    problems: dict[str, Example] = {}
    for family in cycle(family for family in FAMILIES if split_of(family) == split):
        if len(problems) == count:
            break
        function = _draw_function(dice, family, split)
        if inputs := _choose_inputs(dice, function):
            example = _build_example(dice, function, inputs, f"humaneval-mini-{split}-{len(problems):04d}")
            problems.setdefault(example.prompt, example)
    return tuple(problems.values())


def split_of(family: Family) -> Part:
    """Return the split of a family. As in a Latin square, training has 3/5 of the partners of each step."""
    indices = [STEPS.index(step) for step in family]
    return SHARES[sum(weight * index for weight, index in enumerate(indices, start=1)) % len(SHARES)]


def _draw_function(dice: random.Random, family: Family, split: Part) -> Function:
    """Draw constants of the split for a family."""
    while True:
        function = tuple(
            StepCall(step, tuple(_pick_one(dice, CONSTANTS[slot]) for slot in list_slots(step)))
            for step in family
        )
        numbers = [ord(c) if isinstance(c, str) else c for call in function for c in call.constants]
        if not numbers or sum(numbers) % 4 in REMAINDERS[split]:
            return function


def _choose_inputs(dice: random.Random, function: Function) -> list[Any] | None:
    """Return an input to show, then those for tests; None if fewer steps or a constant answer would pass."""
    pool = _build_input_pool(function[0].step.takes)
    start = int(dice.random() * len(pool))
    left = [*pool[start:], *pool[:start]]
    tests: list[Any] = []

    def take(*rivals: Function) -> list[Any]:
        """Take the next input on which the function differs from all of these, if there is one."""
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
    """Return all inputs of a kind in random order."""
    dice = random.Random(f"humaneval-mini:{kind}")
    items = range(1, 21)
    pools: dict[str, Sequence[Any]] = {
        "n": range(-30, 60),
        "s": WORDS.split(),
        "xs": [[_pick_one(dice, items) for _ in range(_pick_one(dice, range(4, 8)))] for _ in range(200)],
    }
    return tuple(sorted(pools[kind], key=lambda _: dice.random()))


def _build_example(dice: random.Random, function: Function, inputs: list[Any], name: str) -> Example:
    function_name = _pick_one(dice, NAMES)
    phrases = [
        call.fill_constants(_pick_one(dice, (call.step.words, call.step.other_words))) for call in function
    ]
    description = ", then ".join(phrases)
    shown, *tests = inputs
    prompt = (
        f"def {function_name}({function[0].step.takes}):\n"
        f'    """{description[0].upper()}{description[1:]}.\n'
        f"    >>> {function_name}({shown!r})\n"
        f"    {run_function(function, shown)!r}\n"
        f'    """\n'
    )
    checks = "".join(
        f"    assert candidate({value!r}) == {run_function(function, value)!r}\n" for value in tests
    )
    meta = {"test": f"def check(candidate):\n{checks}", "entry_point": function_name}
    return Example(name, prompt, write_body(function), meta)


def _pick_one(dice: random.Random, choices: Sequence[T]) -> T:
    """Pick a value with `random()`, the only method with the same numbers in every Python version."""
    return choices[int(dice.random() * len(choices))]


def load(data_dir: Path | None) -> Splits:
    if data_dir is not None:
        raise UserError("humaneval-mini is generated and reads no files.", "Leave out --data-dir.")
    return Splits(
        train=generate_problems("train", 2000),
        feedback=generate_problems("feedback", 150),
        heldout=generate_problems("heldout", 150),
    )


TASK: Task = Task(
    id="humaneval-mini",
    level=1,
    description=HUMANEVAL.description
    + """
## The miniature

These problems are generated and short: one or two steps on a list, a text or a number. The problems that are
used for scoring combine the same steps in other ways, with other constants.
""",
    load=load,
    evaluator=EVALUATOR,
    exposes=HUMANEVAL.exposes,
    paper=HUMANEVAL.paper,
)
