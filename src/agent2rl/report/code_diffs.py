"""Changes of code as lines that a page can colour, no more of them than anybody reads."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from agent2rl.report import formatting

LINES = 400
"""Of one attempt."""
ALL_LINES = 8000
CHARACTERS = 400
"""Of a line."""

Kind = Literal["file", "hunk", "added", "removed", "same"]


@dataclass(frozen=True)
class CodeDiff:
    lines: tuple[tuple[Kind, str], ...]
    added: int
    removed: int
    left_out: int
    """Lines."""


def parse_diffs(diffs: Mapping[int, str]) -> dict[int, CodeDiff]:
    """By attempt. The last ones are cut shorter where all together are too long."""
    found: dict[int, CodeDiff] = {}
    left = ALL_LINES
    for number in sorted(diffs):
        found[number] = _parse_diff(diffs[number], min(LINES, left))
        left -= len(found[number].lines)
    return found


def _parse_diff(text: str, most: int) -> CodeDiff:
    """A header ends where a hunk begins: a removed line may begin with dashes, too."""
    lines: list[tuple[Kind, str]] = []
    counts = {"added": 0, "removed": 0}
    total, header = 0, True
    for line in text.removesuffix("\n").split("\n") if text else ():
        if line.startswith("diff --git "):
            header = True
        elif line.startswith("@@ "):
            header = False
        kind = _classify_line(line, header)
        if kind in counts:
            counts[kind] += 1
        if total < most:
            lines.append((kind, formatting.truncate_text(line, CHARACTERS)))
        total += 1
    return CodeDiff(tuple(lines), counts["added"], counts["removed"], total - len(lines))


def _classify_line(line: str, header: bool) -> Kind:
    if line.startswith("@@ "):
        return "hunk"
    if header:
        return "file"
    return "added" if line.startswith("+") else "removed" if line.startswith("-") else "same"
