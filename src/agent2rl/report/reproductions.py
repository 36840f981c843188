"""What reports, pages and the terminal say about reproductions."""

import shlex
from collections.abc import Mapping, Sequence

from agent2rl.core.reproduction import WORKSPACE_MARK, RecordedStep, Reproduction
from agent2rl.report import descriptions

MOST_SHOWN = 5


def build_reproduction_rows(each: Reproduction) -> list[tuple[str, str]]:
    """Return everything about one reproduction."""
    rows = [
        ("submission", f"{each.submission}, from revision {each.revision} of the code"),
        ("answer", descriptions.describe_reproduction(each)),
    ]
    half = (each.difference.ci.high - each.difference.ci.low) / 2 if each.difference else 0.0
    if half and each.answer == "reproduced":
        rows.append(("precision", f"differences below about {half:.1f} points cannot be noticed"))
    named = "named by the user: " if each.named else ""
    rows += [("step", f"{named}{format_step(step)}") for step in each.steps]
    rows += [("left out", text) for text in _shorten_list(each.left_out)]
    rows += [("withheld", text) for text in _shorten_list(each.withheld)]
    rows += [("different", text) for text in each.differences]
    return rows


def format_step(step: RecordedStep) -> str:
    """Return a step as a command line."""
    variables = "".join(f"{name}={shlex.quote(value)} " for name, value in step.environment.items())
    folder = f"cd {shlex.quote(step.directory)} && " if step.directory else ""
    return f"{folder}{variables}{shlex.join(step.argv)}".replace(f"'{WORKSPACE_MARK}", "'$WORKSPACE").replace(
        WORKSPACE_MARK, "$WORKSPACE"
    )


NOTE = (
    "Reproduced: how many of the best submissions that somebody tried to train again from their code scored "
    "the same. The others are counted too."
)


def format_reproduction_counts(counts: Mapping[str, int]) -> str:
    """Format how many of the runs that somebody tried to reproduce were reproduced."""
    cannot = counts.get("cannot", 0)
    doubts = f" ({cannot} cannot)" if cannot else ""
    return f"{counts.get('reproduced', 0)} of {sum(counts.values())}{doubts}"


def _shorten_list(texts: Sequence[str]) -> list[str]:
    more = len(texts) - MOST_SHOWN
    return [*texts[:MOST_SHOWN], *([f"and {more} more"] if more > 0 else [])]
