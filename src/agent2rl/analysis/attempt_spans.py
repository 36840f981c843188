"""Split a run into attempts at its submissions, each with everything recorded and printed in it.

Printed output comes from agent.log and from log files in the workspace. An agent that an LLM drives prints
JSON that contains the output of its commands; only the texts of such a line are used. Of long output, only
the beginning and the end are read.
"""

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from pathlib import Path

from agent2rl.analysis.attempts import AgentSourceFile, AttemptSpan, PrintedText
from agent2rl.analysis.timeline import AgentTimeline
from agent2rl.core.events import FileSeen, TimelineEvent
from agent2rl.core.grading_records import Submission
from agent2rl.core.records import Rollouts
from agent2rl.record import untrusted_files
from agent2rl.record.files import open_regular_file
from agent2rl.record.reader import RunView
from agent2rl.record.revisions import RevisionReader
from agent2rl.record.untrusted_files import JsonNode, read_untrusted_slice
from agent2rl.system.unix import read_at

logger = logging.getLogger(__name__)

# Printed output, split at submissions: agent.log, and log files in the workspace.

PART_BYTES, LOG_BYTES, FILES_BYTES = 2 << 20, 6 << 20, 4 << 20
"""How much is read: of each part, of agent.log, and of all log files together."""
HEAD = 4
"""One in `HEAD` bytes that are read is from the beginning, the others are from the end."""
MOST_FILES = 200
WORKSPACE = "workspace"
OURS = ("agent.log", "transcript")
"""Names of our own records. A file of the agent with such a name is cited with its folder."""
SHORTEST = 40
"""A shorter text of one line is a name or a number, not output."""


def read_agent_log(log: Path, cuts: Sequence[int]) -> list[tuple[PrintedText, ...]]:
    """Read agent.log, split at these byte offsets: one part more than there are offsets."""
    try:
        file = open_regular_file(log)
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
    """Read log files, each part in the attempt that wrote it. Links in the workspace are not followed."""
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
    """Yield what was appended to each log file, and from which byte on."""
    sizes: dict[str, int] = {}
    for at, seen in timeline.logs[: 10 * MOST_FILES]:
        if len(sizes) >= MOST_FILES and seen.path not in sizes:
            continue
        begin = sizes.get(seen.path, 0)
        sizes[seen.path] = seen.bytes
        yield at, seen, begin if begin <= seen.bytes else 0  # a smaller file was rewritten


def _choose_read_limit(sizes: Sequence[int], total: int) -> int:
    """Return how much of each part to read so that all together stay within `total`."""
    left = total
    # Small parts are read whole, and what they leave is shared by the larger ones.
    for place, size in enumerate(sorted(sizes)):
        others = len(sizes) - place
        if size * others > left:
            return min(PART_BYTES, left // others)
        left -= size
    return PART_BYTES


def _read_parts(file: int, begin: int, end: int, line: int, most: int) -> Iterator[PrintedText]:
    """Read a part in full, or its beginning and its end."""
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
        yield from _split_output(read_at(file, high - low, low), first)


def _split_output(content: bytes, first: int) -> Iterator[PrintedText]:
    """Group plain lines; yield the texts of each JSON line separately."""
    plain: list[str] = []
    begun = first
    for number, line in enumerate(content.split(b"\n"), start=first):
        event = untrusted_files.parse_json(line) if line.startswith(b"{") and len(line) > SHORTEST else None
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
    """Yield texts that are output, not names. A JSON line of numbers, such as a metric, has none."""
    if node.text:
        if "\n" in node.text or len(node.text) >= SHORTEST:
            yield node.text
    elif depth < untrusted_files.DEEPEST:
        for _, child in node.entries:
            yield from _extract_texts(child, depth + 1)
        for child in node:
            yield from _extract_texts(child, depth + 1)


def _count_lines(file: int, begin: int, end: int) -> int:
    count = 0
    while begin < end:
        chunk = read_at(file, min(1 << 20, end - begin), begin)
        if not chunk:
            break
        count += chunk.count(b"\n")
        begin += len(chunk)
    return count


# Attempts.

WORTH_SECONDS = 5.0
"""The time after the last submission is an attempt if it trained this long, changed code, or failed."""
MODELS = "output/"
"""Files here are trained models, not code."""
BROKE = "Traceback (most recent call last)"
Texts = Mapping[str, str]


@dataclass(frozen=True)
class RevisionPin:
    """A revision of the code, and the size of agent.log when it was taken."""

    number: int
    commit: str
    log_bytes: int = 0


@dataclass(frozen=True)
class AttemptEnd:
    """The end of an attempt: a submission, or the end of the agent's time."""

    at: float
    submission: Submission | None
    pin: RevisionPin | None


def split_attempts(
    view: RunView, timeline: AgentTimeline, events: Sequence[TimelineEvent], notes: list[str]
) -> tuple[AttemptSpan, ...]:
    """Return an attempt for each submission, and one for the time after the last if it qualifies."""
    if timeline.started is None:
        return ()
    ends = _list_ends(view, timeline, events)
    texts = _read_texts(view, ends, notes)
    logs = read_agent_log(view.paths.agent_log, [end.pin.log_bytes if end.pin else 0 for end in ends[:-1]])
    files = read_log_files(view.paths.workspace, timeline, [end.at for end in ends])
    found: list[AttemptSpan] = []
    began, before = 0.0, _read_initial_code(events, view, notes)
    for place, end in enumerate(ends):
        code = texts.get(end.pin.commit, {}) if end.pin else {}
        number = end.pin.number if end.pin else 0
        found.append(
            AttemptSpan(
                number=place + 1,
                began=began,
                ended=end.at,
                submission=end.submission,
                sources=tuple(AgentSourceFile(number, path, text) for path, text in code.items()),
                changed=tuple(
                    path for path in sorted({*code, *before}) if code.get(path) != before.get(path)
                ),
                processes=tuple(each for each in timeline.processes if each.ran_between(began, end.at)),
                weights=tuple(each for each in timeline.weights if began < each.at <= end.at),
                rollouts=_sum_rollouts(timeline, began, end.at),
                printed=(*logs[place], *files[place]),
            )
        )
        # A submission without a revision says nothing about the code, so the next one is compared
        # with the last that is known.
        began, before = end.at, code or before
    spans = found if _is_attempt(found, timeline) else found[:-1]
    return (*spans[:-1], replace(spans[-1], last=True))


def _list_ends(view: RunView, timeline: AgentTimeline, events: Sequence[TimelineEvent]) -> list[AttemptEnd]:
    pins, last = _pin_revisions(events)
    ends: list[AttemptEnd] = []
    for each in sorted(view.submissions, key=lambda one: one.id):
        at = max(timeline.seconds_at(each.accepted_at), ends[-1].at if ends else 0.0)
        ends.append(AttemptEnd(at, each, pins.get(each.id)))
    return [*ends, AttemptEnd(max(timeline.seconds, ends[-1].at if ends else 0.0), None, last)]


def _pin_revisions(events: Sequence[TimelineEvent]) -> tuple[dict[int, RevisionPin], RevisionPin | None]:
    """Return the revision of each submission, and the newest revision."""
    pins: dict[int, RevisionPin] = {}
    last: RevisionPin | None = None
    for event in events:
        if event.kind in ("revision", "revision_of"):
            number, commit = event.data.get("number"), event.data.get("commit")
            size, submission = event.data.get("log_bytes"), event.data.get("submission")
            if isinstance(number, int) and isinstance(commit, str):
                last = RevisionPin(number, commit, size if isinstance(size, int) else 0)
                if isinstance(submission, int):
                    pins[submission] = last
    return pins, last


def _read_texts(view: RunView, ends: Sequence[AttemptEnd], notes: list[str]) -> dict[str, Texts]:
    """Return the code at the end of each attempt, by commit."""
    return _read_revisions(view, [end.pin.commit for end in ends if end.pin], notes)


def _read_initial_code(events: Sequence[TimelineEvent], view: RunView, notes: list[str]) -> Texts:
    """Return the code that the agent started with."""
    first = next((event.data.get("commit") for event in events if event.kind == "revision"), None)
    return _read_revisions(view, [first], notes).get(first, {}) if isinstance(first, str) else {}


def _read_revisions(view: RunView, commits: Sequence[str], notes: list[str]) -> dict[str, Texts]:
    if not commits:
        return {}
    try:
        code = RevisionReader(view.paths.revisions)
        try:
            return {commit: code.read_texts(commit) for commit in dict.fromkeys(commits)}
        finally:
            code.close()
    except Exception as error:  # a damaged repository fails in many ways
        logger.debug("Cannot read the revisions of %s", view.paths.run_id, exc_info=True)
        notes.append(f"revisions cannot be read ({type(error).__name__})")
        return {}


def _sum_rollouts(timeline: AgentTimeline, began: float, ended: float) -> Rollouts:
    return sum((new for at, new in timeline.played if began < at <= ended), Rollouts())


def _is_attempt(found: Sequence[AttemptSpan], timeline: AgentTimeline) -> bool:
    last = found[-1]
    trained = sum(
        min(stretch.ended, last.ended) - max(stretch.began, last.began)
        for stretch in timeline.stretches
        if stretch.kind == "training" and stretch.ended > last.began
    )
    written = any(not path.startswith(MODELS) for path in last.changed)
    broke = any(BROKE in each.text for each in last.printed)
    return len(found) == 1 or trained >= WORTH_SECONDS or written or broke
