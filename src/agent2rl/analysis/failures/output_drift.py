"""Whether a model's outputs lost their form: empty, without the mark that right answers have, going round in
circles, running on, or no action to the world. Each is counted against the untouched model's outputs.

What an evaluator would read as an answer is not known here; a mark counts where right answers have it.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import sqrt

from agent2rl.core.records import ExampleResult

MARKS = ("####", "\\boxed{", "<answer>", "```", "Action:", "answer[", "The answer is", "Final answer")
NOTED = re.compile(
    r"\b(?:SyntaxError|IndentationError|TabError|no answer|no action|no more actions|not be parsed|unparsed"
    r"|outgrew the model's context|truncated|cut off|empty)\b",
    re.IGNORECASE,
)
REFUSED = ("nothing happens", "there is no action", "invalid action", "unknown action", "not a valid action")
"""How a world answers what is no action in it."""
SHOWN = 4000
"""Characters of an output that are looked at."""
WINDOW = 12
LEAST_EXAMPLES = 8
"""Examples from which on shares are spoken of."""
MORE = 0.2
"""By how much a share must grow."""
CERTAIN = 3.0
"""And by how many standard errors."""


@dataclass(frozen=True)
class OutputDrift:
    what: str
    """`are empty`, with `of the outputs` before it."""
    before: float | None
    """None: the untouched model's outputs are not known."""
    after: float
    examples: tuple[ExampleResult, ...]
    """Some that show it."""


def find_drift(before: Sequence[ExampleResult], after: Sequence[ExampleResult]) -> OutputDrift | None:
    """What grew most, if anything did clearly."""
    if len(after) < LEAST_EXAMPLES:
        return None
    found = [
        one
        for what, shows in _list_traits(before, after).items()
        if (one := _measure_growth(what, shows, before, after))
    ]
    return max(found, key=lambda one: one.after - (one.before or 0.0), default=None)


def _measure_growth(
    what: str,
    shows: Callable[[ExampleResult], bool],
    before: Sequence[ExampleResult],
    after: Sequence[ExampleResult],
) -> OutputDrift | None:
    now = [each for each in after if shows(each)]
    share = len(now) / len(after)
    if len(before) < LEAST_EXAMPLES:
        return OutputDrift(what, None, share, tuple(now[:3])) if share >= 0.5 else None
    was = sum(map(shows, before)) / len(before)
    pooled = (was * len(before) + share * len(after)) / (len(before) + len(after))
    error = sqrt(pooled * (1 - pooled) * (1 / len(before) + 1 / len(after)))
    if share - was < max(MORE, CERTAIN * error):
        return None
    return OutputDrift(what, was, share, tuple(now[:3]))


def _list_traits(
    before: Sequence[ExampleResult], after: Sequence[ExampleResult]
) -> dict[str, Callable[[ExampleResult], bool]]:
    traits: dict[str, Callable[[ExampleResult], bool]] = {
        "are empty": lambda one: not one.output.strip() and len(one.trajectory) < 2,
        "go round in circles": lambda one: is_repetitive(one.output),
        "could not be read": lambda one: bool(NOTED.search(one.note)),
        "come to no action": lambda one: _share_refused(one) >= 0.5,
    }
    if len(before) >= LEAST_EXAMPLES:
        lengths = sorted(len(one.output) for one in before)
        limit = max(2 * lengths[int(0.95 * (len(lengths) - 1))], 400)
        traits["run on"] = lambda one: len(one.output) > limit
        for mark in MARKS:
            if _is_mark_expected(mark, before, after):
                traits[f"have no {mark}"] = lambda one, mark=mark: mark not in one.output  # type: ignore[misc]
    return traits


def _is_mark_expected(mark: str, before: Sequence[ExampleResult], after: Sequence[ExampleResult]) -> bool:
    """Right answers have it, wherever they come from; where there are none, most outputs had it."""
    right = [mark in one.output for one in (*before, *after) if one.score >= 1 and len(one.trajectory) < 2]
    if right:
        return sum(right) >= 0.9 * len(right)
    return sum(mark in one.output for one in before) >= 0.5 * len(before)


def is_repetitive(text: str) -> bool:
    """Whether a text says the same again and again: few of its stretches are different."""
    shown = text[:SHOWN]
    count = len(shown) - WINDOW + 1
    if count < 150:
        return False
    return len({shown[place : place + WINDOW] for place in range(count)}) < 0.3 * count


def _share_refused(result: ExampleResult) -> float:
    """The share of turns that the world could do nothing with."""
    turns = result.trajectory[1:]
    if not turns:
        return 0.0
    refused = sum(
        turn.observation.strip().lower().startswith(REFUSED) or not turn.action.strip() for turn in turns
    )
    return refused / len(turns)
