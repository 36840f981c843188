"""What an agent's programs printed, cut at its submissions: agent.log, and logs in the workspace.

An agent that an LLM drives prints JSON, with the output of its commands inside: of such a line the texts are
kept. Of much output the beginning and the end are kept.
"""

import os
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from pathlib import Path

from agent2rl.analysis.attempts import Printed
from agent2rl.analysis.timeline import Timeline
from agent2rl.store import foreign
from agent2rl.store.foreign import Node
from agent2rl.store.left import slice_left

HEAD_BYTES, TAIL_BYTES = 1 << 19, 3 << 19
"""Of each part."""
MOST_FILES = 200
SHORTEST = 40
"""A text of one line and less than this is a name or a number, not output."""


def of_log(log: Path, cuts: Sequence[int]) -> list[tuple[Printed, ...]]:
    """agent.log between these sizes of it, and after the last: one part more than there are cuts."""
    try:
        size = log.stat().st_size
    except OSError:
        return [() for _ in range(len(cuts) + 1)]
    edges = list(accumulate([0, *(min(cut, size) for cut in cuts), size], max))
    found, lines, read = [], 0, 0
    with log.open("rb") as file:
        for begin, end in pairwise(edges):
            lines += _count_lines(file.fileno(), read, begin)
            read = begin
            found.append(tuple(_parts(file.fileno(), begin, end, lines + 1)))
    return found


def of_files(workspace: Path, timeline: Timeline, ends: Sequence[float]) -> list[tuple[Printed, ...]]:
    """Log files, each part in the attempt in which it was written. Nothing in the workspace is followed."""
    found: list[list[Printed]] = [[] for _ in ends]
    told: dict[str, int] = {}
    for at, seen in timeline.logs[: 10 * MOST_FILES]:
        begin = told.get(seen.path, 0)
        if seen.bytes < begin:  # written anew
            begin = 0
        if len(told) >= MOST_FILES and seen.path not in told:
            continue
        told[seen.path] = seen.bytes
        content = slice_left(workspace, seen.path, begin, seen.bytes, HEAD_BYTES + TAIL_BYTES)
        if content:
            place = next((i for i, end in enumerate(ends) if at <= end), len(ends) - 1)
            found[place].append(Printed(seen.path, content.decode(errors="replace"), 1, at))
    return [tuple(each) for each in found]


def _parts(file: int, begin: int, end: int, line: int) -> Iterator[Printed]:
    """The whole of it, or its beginning and its end."""
    if end - begin <= HEAD_BYTES + TAIL_BYTES:
        pieces = [(begin, end, line)]
    else:
        tail = end - TAIL_BYTES
        pieces = [
            (begin, begin + HEAD_BYTES, line),
            (tail, end, line + _count_lines(file, begin, tail)),
        ]
    for low, high, first in pieces:
        yield from _read(os.pread(file, high - low, low), first)


def _read(content: bytes, first: int) -> Iterator[Printed]:
    """Plain lines together; each line of JSON by itself, as the texts in it."""
    plain: list[str] = []
    begun = first
    for number, line in enumerate(content.split(b"\n"), start=first):
        event = foreign.parse(line) if line.startswith(b"{") and len(line) > SHORTEST else None
        texts = list(_texts(event, 0)) if event else []
        if not texts:
            plain.append(line.decode(errors="replace"))
            continue
        if any(plain):
            yield Printed("agent.log", "\n".join(plain), begun)
        plain, begun = [], number + 1
        yield Printed(f"agent.log line {number}", "\n".join(texts))
    if any(plain):
        yield Printed("agent.log", "\n".join(plain), begun)


def _texts(node: Node, depth: int) -> Iterator[str]:
    """Those that are output, not names. A line of numbers alone, such as a training's own, has none."""
    if node.text:
        if "\n" in node.text or len(node.text) >= SHORTEST:
            yield node.text
    elif depth < foreign.DEEPEST:
        for _, child in node.entries:
            yield from _texts(child, depth + 1)
        for child in node:
            yield from _texts(child, depth + 1)


def _count_lines(file: int, begin: int, end: int) -> int:
    count = 0
    while begin < end:
        chunk = os.pread(file, min(1 << 20, end - begin), begin)
        if not chunk:
            break
        count += chunk.count(b"\n")
        begin += len(chunk)
    return count
