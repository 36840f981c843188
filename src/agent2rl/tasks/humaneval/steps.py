"""The steps that the miniature's functions are made of: each in code and in words, with its constants."""

import string
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

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
"""What may stand in the slots of a step."""


@dataclass(frozen=True, eq=False)
class FunctionStep:
    """Takes a number `n`, a text `s` or a list of numbers `xs`; gives one of these, or at last a `truth`."""

    takes: str
    gives: str
    code: str
    """An expression over what it takes."""
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
"""One call after the other; without any, it gives back what it takes."""


def run_function(function: Function, value: Any) -> Any:
    """What it gives, or None where it fails."""
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
    """Its source, a line for each step."""
    *before, last = function
    lines = [f"{call.step.gives} = {call.fill_constants(call.step.code)}" for call in before]
    return "".join(f"    {line}\n" for line in [*lines, f"return {last.fill_constants(last.step.code)}"])


def list_shorter_functions(function: Function) -> tuple[Function, ...]:
    """What is left of it with fewer steps."""
    return ((), *((call,) for call in function if len(function) > 1))


def iterate_near_misses(function: Function) -> Iterator[Function]:
    """The same steps in the other order, and the same with one constant that is next to the right one."""
    if len(function) > 1:
        yield function[::-1]
    for place, (step, constants) in enumerate(function):
        for i, constant in enumerate(constants):
            for other in _neighbouring_constants(constant):
                call = StepCall(step, (*constants[:i], other, *constants[i + 1 :]))
                yield (*function[:place], call, *function[place + 1 :])


def _neighbouring_constants(constant: Constant) -> tuple[Constant, Constant]:
    if isinstance(constant, int):
        return constant - 1, constant + 1
    here = LETTERS.index(constant)
    return LETTERS[here - 1], LETTERS[(here + 1) % len(LETTERS)]
