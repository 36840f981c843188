"""Printed text as lines that can be read: without escapes and bars, in streams that belong together.

Whoever printed it may have meant harm. Each character is looked at a fixed number of times.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from agent2rl.analysis.attempts import PrintedText

LONGEST_LINE = 2000
"""Of a line that is read."""
ESCAPES = re.compile(r"\x1b\[[0-?]*+[ -/]*+[@-~]?|\x1b\][^\x07\x1b\n]*+\x07?|\x1b[@-_]?|\x00|\ufeff")
UNQUOTED = {'\\"': '"', "\\t": "\t", "\\'": "'"}
END = re.compile(r"(?<!\\)\\n")
OPENED = re.compile(r"""^.*["']:\s?["']""")
"""What stands before a quoted text: its name, and all before that."""
TOGETHER = ("agent.log", "transcript")
"""Parts whose names begin so are one stream: the output of an agent's commands, one after another."""


class PrintedLine(NamedTuple):
    text: str
    printed: PrintedText
    number: int
    place: int
    """In its stream."""

    @property
    def where(self) -> str:
        return self.printed.cite_line(self.number)


def split_streams(printed: Sequence[PrintedText]) -> Mapping[str, Sequence[PrintedLine]]:
    """The lines of each log, in their order."""
    return _split_streams(tuple(printed))


@lru_cache(2)  # of one attempt several things are asked
def _split_streams(printed: tuple[PrintedText, ...]) -> Mapping[str, Sequence[PrintedLine]]:
    found: dict[str, list[PrintedLine]] = {}
    for each in printed:
        name = next((name for name in TOGETHER if each.name.startswith(name)), each.name)
        lines = found.setdefault(name, [])
        for number, text in _clean_lines(each.text):
            lines.append(PrintedLine(text, each, number, len(lines)))
    return found


def _clean_lines(text: str) -> Iterator[tuple[int, str]]:
    for number, raw in enumerate(ESCAPES.sub("", text).split("\n")):
        if "\r" not in raw and "\\n" not in raw:
            if shown := raw[:LONGEST_LINE].rstrip():
                yield number, shown
            continue
        for piece in _unfold_line(raw):
            if shown := piece[:LONGEST_LINE].rstrip():
                yield number, shown


def _unfold_line(text: str) -> Iterator[str]:
    """A progress bar's states, and the lines of a text that was printed quoted, as JSON or by `repr`."""
    for piece in text.split("\r"):
        if "\\n" not in piece:
            yield piece
            continue
        first, *rest = END.split(piece)
        if opened := OPENED.match(first):
            yield opened[0]
            first = first[opened.end() :]
        for part in (first, *rest):
            for quoted, plain in UNQUOTED.items():
                part = part.replace(quoted, plain)
            yield part
