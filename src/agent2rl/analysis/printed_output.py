"""What an agent's programs printed, cut at its submissions: agent.log, and logs in the workspace.

An agent that an LLM drives prints JSON, with the output of its commands inside: of such a line the texts are
kept. Of much output the beginning and the end are kept.
"""

import os
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from pathlib import Path

from agent2rl.analysis.attempts import PrintedText
from agent2rl.analysis.timeline import AgentTimeline
from agent2rl.core.events import FileSeen
from agent2rl.store import untrusted_json
from agent2rl.store.untrusted_files import read_untrusted_slice
from agent2rl.store.untrusted_json import JsonNode

PART_BYTES, LOG_BYTES, FILES_BYTES = 2 << 20, 6 << 20, 4 << 20
"""That are read: of each part, of agent.log, and of all log files together."""
HEAD = 4
"""The beginning is this part of what is read, the end is the rest."""
MOST_FILES = 200
WORKSPACE = "workspace"
OURS = ("agent.log", "transcript")
"""A file of the agent's that is called so is named with its folder: it is not the record's."""
SHORTEST = 40
"""A text of one line and less than this is a name or a number, not output."""


def read_agent_log(log: Path, cuts: Sequence[int]) -> list[tuple[PrintedText, ...]]:
    """agent.log between these sizes of it, and after the last: one part more than there are cuts."""
    try:
        file = log.open("rb")
        size = os.fstat(file.fileno()).st_size
    except OSError:
        return [() for _ in range(len(cuts) + 1)]
    edges = list(accumulate([0, *(min(cut, size) for cut in cuts), size], max))
    most = _choose_read_limit([end - begin for begin, end in pairwise(edges)], LOG_BYTES)
    found, lines, read = [], 0, 0
    with file:
        for begin, end in pairwise(edges):
            lines += _count_lines(file.fileno(), read, begin)
            read = begin
            found.append(tuple(_read_parts(file.fileno(), begin, end, lines + 1, most)))
    return found


def read_log_files(
    workspace: Path, timeline: AgentTimeline, ends: Sequence[float]
) -> list[tuple[PrintedText, ...]]:
    """Log files, each part in the attempt in which it was written. Nothing in the workspace is followed."""
    found: list[list[PrintedText]] = [[] for _ in ends]
    grown = list(_list_growth(timeline))
    most = _choose_read_limit([seen.bytes - begin for _, seen, begin in grown], FILES_BYTES)
    for at, seen, begin in grown:
        content = read_untrusted_slice(workspace, seen.path, begin, seen.bytes, most)
        if content:
            place = next((i for i, end in enumerate(ends) if at <= end), len(ends) - 1)
            name = f"{WORKSPACE}/{seen.path}" if seen.path.startswith(OURS) else seen.path
            found[place].append(PrintedText(name, content.decode(errors="replace"), 1, at))
    return [tuple(each) for each in found]


def _list_growth(timeline: AgentTimeline) -> Iterator[tuple[float, FileSeen, int]]:
    """What was written of each log file, and from which byte on."""
    told: dict[str, int] = {}
    for at, seen in timeline.logs[: 10 * MOST_FILES]:
        if len(told) >= MOST_FILES and seen.path not in told:
            continue
        begin = told.get(seen.path, 0)
        told[seen.path] = seen.bytes
        yield at, seen, begin if begin <= seen.bytes else 0  # else it was written anew


def _choose_read_limit(sizes: Sequence[int], total: int) -> int:
    """How much of each may be read so that all together are no more than so much; small ones are whole."""
    left = total
    for place, size in enumerate(sorted(sizes)):
        others = len(sizes) - place
        if size * others > left:
            return min(PART_BYTES, left // others)
        left -= size
    return PART_BYTES


def _read_parts(file: int, begin: int, end: int, line: int, most: int) -> Iterator[PrintedText]:
    """The whole of it, or its beginning and its end."""
    if end - begin <= most:
        pieces = [(begin, end, line)]
    else:
        head = most // HEAD
        tail = end - (most - head)
        pieces = [
            (begin, begin + head, line),
            (tail, end, line + _count_lines(file, begin, tail)),
        ]
    for low, high, first in pieces:
        yield from _split_output(os.pread(file, high - low, low), first)


def _split_output(content: bytes, first: int) -> Iterator[PrintedText]:
    """Plain lines together; each line of JSON by itself, as the texts in it."""
    plain: list[str] = []
    begun = first
    for number, line in enumerate(content.split(b"\n"), start=first):
        event = untrusted_json.parse_json(line) if line.startswith(b"{") and len(line) > SHORTEST else None
        texts = list(_extract_texts(event, 0)) if event else []
        if not texts:
            plain.append(line.decode(errors="replace"))
            continue
        if any(plain):
            yield PrintedText("agent.log", "\n".join(plain), begun)
        plain, begun = [], number + 1
        yield PrintedText(f"agent.log line {number}", "\n".join(texts))
    if any(plain):
        yield PrintedText("agent.log", "\n".join(plain), begun)


def _extract_texts(node: JsonNode, depth: int) -> Iterator[str]:
    """Those that are output, not names. A line of numbers alone, such as a training's own, has none."""
    if node.text:
        if "\n" in node.text or len(node.text) >= SHORTEST:
            yield node.text
    elif depth < untrusted_json.DEEPEST:
        for _, child in node.entries:
            yield from _extract_texts(child, depth + 1)
        for child in node:
            yield from _extract_texts(child, depth + 1)


def _count_lines(file: int, begin: int, end: int) -> int:
    count = 0
    while begin < end:
        chunk = os.pread(file, min(1 << 20, end - begin), begin)
        if not chunk:
            break
        count += chunk.count(b"\n")
        begin += len(chunk)
    return count
