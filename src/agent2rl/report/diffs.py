"""Changes of code as lines that a page can colour, no more of them than anybody reads."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from agent2rl.report import words

LINES = 400
"""Of one attempt."""
ALL_LINES = 8000
CHARACTERS = 400
"""Of a line."""

Kind = Literal["file", "hunk", "added", "removed", "same"]


@dataclass(frozen=True)
class Diff:
    lines: tuple[tuple[Kind, str], ...]
    added: int
    removed: int
    left_out: int
    """Lines."""


def read(diffs: Mapping[int, str]) -> dict[int, Diff]:
    """By attempt. The last ones are cut shorter where all together are too long."""
    found: dict[int, Diff] = {}
    left = ALL_LINES
    for number in sorted(diffs):
        found[number] = _read(diffs[number], min(LINES, left))
        left -= len(found[number].lines)
    return found


def _read(text: str, most: int) -> Diff:
    """A header ends where a hunk begins: a removed line may begin with dashes, too."""
    lines: list[tuple[Kind, str]] = []
    counts = {"added": 0, "removed": 0}
    total, header = 0, True
    for line in text.removesuffix("\n").split("\n") if text else ():
        if line.startswith("diff --git "):
            header = True
        elif line.startswith("@@ "):
            header = False
        kind = _kind(line, header)
        if kind in counts:
            counts[kind] += 1
        if total < most:
            lines.append((kind, words.cut(line, CHARACTERS)))
        total += 1
    return Diff(tuple(lines), counts["added"], counts["removed"], total - len(lines))


def _kind(line: str, header: bool) -> Kind:
    if line.startswith("@@ "):
        return "hunk"
    if header:
        return "file"
    return "added" if line.startswith("+") else "removed" if line.startswith("-") else "same"
