"""Takes lists apart as people write them: commas, semicolons, lines, `and`; not in brackets or quotes.

Not covered: the marks at the beginning of a line, which are gone before.
"""

import re
from collections.abc import Iterator

_LIST = r"[;\n|•]|(?:(?<!\d),|,(?!\d{3}(?!\d)))(?!\s*(?i:inc|ltd|llc|plc|corp|co|jr|sr)\b)"
"""Neither the comma of a number nor that of a company parts a list."""
COMMA = re.compile(rf"\s*(?:{_LIST})\s*")
SEPARATOR = re.compile(rf"\s*(?:{_LIST}|(?<=\s)(?:and|or|&|/)(?=\s))\s*")
_AND = re.compile(r"^(?:and|or|&)(?:\s+|$)")


def split_list(text: str) -> list[str]:
    """The items of a list that is well written: `and` only parts the last two."""
    parts = [text[start:end] for start, end in iter_pieces(text, COMMA)]
    if len(parts) > 1 and not _AND.match(parts[-1]):
        halves = re.split(r"\s+and\s+", parts[-1])
        parts[-1:] = halves if len(halves) == 2 else parts[-1:]
    bare = [_AND.sub("", part).strip('"“” ') for part in parts]
    return [part for part in bare if re.search(r"\w", part)]


def iter_pieces(text: str, separator: re.Pattern[str] = SEPARATOR) -> Iterator[tuple[int, int]]:
    """Where the pieces between separators begin and end."""
    depth = _measure_depths(text)
    start = 0
    for found in separator.finditer(text):
        if depth[found.start()]:
            continue
        if text[start : found.start()].strip():
            yield start, found.start()
        start = found.end()
    if text[start:].strip():
        yield start, len(text)


def _measure_depths(text: str) -> list[int]:
    """How deep in brackets or quotes each place is; nowhere, where they do not match."""
    depths, depth, quoted = [], 0, False
    for letter in text:
        depth = depth + (letter in "([“") - (letter in ")]”")
        quoted ^= letter == '"'
        depths.append(depth + quoted)
    balanced = not depth and not quoted and all(level >= 0 for level in depths)
    return [*depths, 0] if balanced else [0] * (len(text) + 1)
