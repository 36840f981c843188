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
class Step:
    """Takes a number `n`, a text `s` or a list of numbers `xs`; gives one of these, or at last a `truth`."""

    takes: str
    gives: str
    code: str
    """An expression over what it takes."""
    words: str
    other_words: str


STEPS = (
    Step("n", "n", "n + {k}", "add {k} to the number", "increase the number by {k}"),
    Step("n", "n", "n - {k}", "subtract {k} from the number", "lower the number by {k}"),
    Step("n", "n", "n * {m}", "multiply the number by {m}", "take the number {m} times"),
    Step("n", "n", "n % {m}", "take the remainder by {m}", "find what division by {m} leaves"),
    Step("n", "n", "n * n", "square the number", "multiply the number by itself"),
    Step("n", "n", "abs(n)", "drop the sign of the number", "find the absolute value"),
    Step("n", "n", "sum(map(int, str(n)))", "sum the digits", "add up the digits"),
    Step(
        "n", "truth", "n > {t}", "tell whether the number is above {t}", "say if the number is more than {t}"
    ),
    Step("xs", "xs", "[x + {k} for x in xs]", "add {k} to each item", "increase each item by {k}"),
    Step("xs", "xs", "[x * {m} for x in xs]", "multiply each item by {m}", "take each item {m} times"),
    Step("xs", "xs", "[x for x in xs if x > {k}]", "keep the items above {k}", "keep items of more than {k}"),
    Step("xs", "xs", "[x for x in xs if x % 2 == 0]", "keep the even items", "drop the odd items"),
    Step("xs", "xs", "xs[::-1]", "reverse the list", "turn the list around"),
    Step("xs", "xs", "sorted(xs)", "sort the list", "put the list in order"),
    Step("xs", "xs", "xs[:{i}]", "keep the first {i} items", "take {i} items from the start"),
    Step("xs", "xs", "xs[:-{i}]", "drop the last {i} items", "leave out {i} items at the end"),
    Step("xs", "n", "sum(xs)", "sum the list", "add up the items"),
    Step("xs", "n", "max(xs)", "find the largest item", "pick the largest of the items"),
    Step("xs", "n", "len(xs)", "count the items", "find how many items there are"),
    Step("s", "s", "s.upper()", "put the text in capitals", "make all letters large"),
    Step("s", "s", "s[::-1]", "reverse the text", "turn the text around"),
    Step("s", "s", "s * {i}", "repeat the text {i} times", "write the text {i} times"),
    Step("s", "s", "s + '{c}'", "put '{c}' at the end", "add '{c}' after the text"),
    Step("s", "s", "s.replace('{c}', '{d}')", "replace '{c}' with '{d}'", "turn each '{c}' into '{d}'"),
    Step("s", "s", "s[:{i}]", "keep the first {i} letters", "take {i} letters from the start"),
    Step("s", "s", "''.join(c for c in s if c not in 'aeiou')", "drop the vowels", "leave out each vowel"),
    Step("s", "n", "len(s)", "count the letters", "find how many letters there are"),
)


@cache
def slots(step: Step) -> tuple[str, ...]:
    return tuple(name for _, name, _, _ in string.Formatter().parse(step.code) if name)


class Call(NamedTuple):
    """A step with its constants."""

    step: Step
    constants: tuple[Constant, ...]

    def fill(self, text: str) -> str:
        return text.format_map(dict(zip(slots(self.step), self.constants, strict=True)))


Function = tuple[Call, ...]
"""One call after the other; without any, it gives back what it takes."""


def run(function: Function, value: Any) -> Any:
    """What it gives, or None where it fails."""
    try:
        for call in function:
            value = _compiled(call)(value)
    except (AttributeError, TypeError, ValueError):
        return None
    return value


@cache
def _compiled(call: Call) -> Callable[[Any], Any]:
    return eval(f"lambda {call.step.takes}: {call.fill(call.step.code)}")  # type: ignore[no-any-return]


def body(function: Function) -> str:
    """Its source, a line for each step."""
    *before, last = function
    lines = [f"{call.step.gives} = {call.fill(call.step.code)}" for call in before]
    return "".join(f"    {line}\n" for line in [*lines, f"return {last.fill(last.step.code)}"])


def shorter(function: Function) -> tuple[Function, ...]:
    """What is left of it with fewer steps."""
    return ((), *((call,) for call in function if len(function) > 1))


def misses(function: Function) -> Iterator[Function]:
    """The same steps in the other order, and the same with one constant that is next to the right one."""
    if len(function) > 1:
        yield function[::-1]
    for place, (step, constants) in enumerate(function):
        for i, constant in enumerate(constants):
            for other in _beside(constant):
                call = Call(step, (*constants[:i], other, *constants[i + 1 :]))
                yield (*function[:place], call, *function[place + 1 :])


def _beside(constant: Constant) -> tuple[Constant, Constant]:
    if isinstance(constant, int):
        return constant - 1, constant + 1
    here = LETTERS.index(constant)
    return LETTERS[here - 1], LETTERS[(here + 1) % len(LETTERS)]
