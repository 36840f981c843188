"""What reports, pages and the terminal say about reproductions."""

import shlex
from collections.abc import Sequence

from agent2rl.core.reproduction import Reproduction
from agent2rl.report import tables

MOST_SHOWN = 5
SPLITS = {"feedback": "feedback", "heldout": "held-out"}


def describe_reproduction(each: Reproduction) -> str:
    """Return the answer and both figures in one line."""
    figures = ""
    if each.original and each.retrained and each.difference:
        split = SPLITS.get(str(each.split), str(each.split))
        difference = f"{each.difference.improvement:+.2f} {tables.format_interval(each.difference.ci)}"
        figures = (
            f": {tables.format_score(each.original)} originally, {tables.format_score(each.retrained)} "
            f"retrained ({split}), difference {difference}"
        )
        figures += ", the same weights" if each.same_weights else ""
    reason = f" ({each.reason})" if each.reason and figures else f": {each.reason}" if each.reason else ""
    return f"{each.answer}{figures}{reason}"


def build_reproduction_rows(each: Reproduction) -> list[tuple[str, str]]:
    """Return everything about one reproduction."""
    rows = [
        ("submission", f"{each.submission}, from revision {each.revision} of the code"),
        ("answer", describe_reproduction(each)),
    ]
    if each.difference and each.answer == "reproduced":
        half = (each.difference.ci.high - each.difference.ci.low) / 2
        rows.append(("precision", f"differences below about {half:.1f} points cannot be noticed"))
    named = "named by the user: " if each.named else ""
    rows += [("step", f"{named}{shlex.join(step.argv)}") for step in each.steps]
    rows += [("left out", text) for text in _shorten_list(each.left_out)]
    rows += [("withheld", text) for text in _shorten_list(each.withheld)]
    rows += [("different", text) for text in each.differences]
    return rows


def _shorten_list(texts: Sequence[str]) -> list[str]:
    more = len(texts) - MOST_SHOWN
    return [*texts[:MOST_SHOWN], *([f"and {more} more"] if more > 0 else [])]
