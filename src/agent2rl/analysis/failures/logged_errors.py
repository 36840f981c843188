"""Programs of the agent that broke: errors that nobody caught, memory that ran out, commands that failed.

How much one weighs depends on what came after it in the same log: a training that went on from there had
caught it, one that began anew had been mended.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from agent2rl.analysis.attempts import AgentSourceFile, AttemptSpan
from agent2rl.analysis.evidence import EvidenceBook
from agent2rl.analysis.failures.tracebacks import PrintedTraceback, parse_tracebacks
from agent2rl.analysis.findings import Failure
from agent2rl.analysis.logs.metric_readings import MetricReading, read_metrics
from agent2rl.analysis.logs.printed_lines import PrintedLine, split_streams

MEMORY = re.compile(
    r"OutOfMemoryError: \S|CUDA out of memory\. |can't allocate memory|\bstd::bad_alloc\b"
    r"|DefaultCPUAllocator: not enough memory"
    r"|Cannot allocate memory|CUBLAS_STATUS_ALLOC_FAILED|^MemoryError\b|RESOURCE_EXHAUSTED: |\boom-kill"
    r"|No available memory for the cache"
)
KILLED = re.compile(
    r"^(?:.{0,80}: line \d{1,6}:\s{1,8}\d{1,9} )?Killed(?:\s|$)"
    r"|\b(?:exit|exited|returned|status|code)\b.{0,30}\b137\b|<Signals\.SIGKILL: 9>|\bexitcode\s?: -9\b"
)
SHELL = re.compile(
    r": command not found$|^/bin/\w{1,8}: \d{1,6}: .{1,80}: not found$|can't open file '|: error: "
    r"(?:unrecognized arguments|the following arguments are required|argument )|^Segmentation fault\b"
    r"|: \d{1,9} Segmentation fault\b|returned non-zero exit status \d|No space left on device"
    r"|\bexit(?:ed with)?(?: code| status)?[:=]? [1-9]\d{0,2}$"
)
CODE = re.compile(r"^\s*(?:except\b|#|raise\b|if\b|elif\b|assert\b)|^\s*\d*\s*[-*•] ")
"""Such a line quotes an error and prints none."""
HINTS = (
    *("emory", "bad_alloc", "ALLOC_FAILED", "EXHAUSTED", "oom-kill", "Killed", "137", "SIGKILL", "exit"),
    *("not found", "open file", "error: ", "Segmentation", "No space"),
)
"""In every line that is looked at."""
STOPPED = {"KeyboardInterrupt", "SystemExit", "BrokenPipeError"}
"""Errors that somebody wanted."""

Aftermath = Literal["end", "mended", "caught"]
WEIGHT: dict[Aftermath, float] = {"end": 1.0, "mended": 0.35, "caught": 0.15}
MOST_ERRORS = 3


@dataclass(frozen=True)
class LoggedError:
    failure: Failure
    after: Aftermath


@dataclass(frozen=True)
class _ErrorMatch:
    """One place in a log."""

    kind: Literal["code-error", "out-of-memory"]
    text: str
    begin: PrintedLine
    end: PrintedLine
    confidence: float
    raised: PrintedTraceback | None = None


def find_logged_errors(span: AttemptSpan, book: EvidenceBook) -> list[LoggedError]:
    """What broke, the weightiest first, each error once."""
    logs, course = split_streams(span.printed), read_metrics(span.printed)
    found: dict[tuple[str, str], tuple[float, _ErrorMatch, Aftermath]] = {}
    for name, lines in logs.items():
        broke = sorted(_scan_errors(lines), key=lambda each: each.end.place)
        places = [each.line.place for each in course[name]]
        elsewhere = not places and any(course.values())
        for place, each in enumerate(broke):
            after = _classify_aftermath(each, course[name], places, place == len(broke) - 1)
            sure = each.confidence * WEIGHT[after] * (0.6 if elsewhere else 1.0)
            # The last of equals: it is the nearest to the end.
            key = (each.kind, each.text[:80])
            if key not in found or sure >= found[key][0]:
                found[key] = (sure, each, after)
    most = sorted(found.values(), key=lambda one: -one[0])[:MOST_ERRORS]
    return [
        LoggedError(_build_failure(each, after, sure, span.sources, book), after)
        for sure, each, after in most
    ]


def _scan_errors(lines: Sequence[PrintedLine]) -> Iterator[_ErrorMatch]:
    inside: set[int] = set()
    for raised in parse_tracebacks(lines):
        inside |= set(range(raised.begin.place, raised.end.place + 1))
        memory = bool(MEMORY.search(f"{raised.text} ")) or raised.type.endswith(("MemoryError", "bad_alloc"))
        sure = 0.35 if raised.type in STOPPED else 0.95 if memory else 0.9
        kind: Literal["code-error", "out-of-memory"] = "out-of-memory" if memory else "code-error"
        yield _ErrorMatch(kind, raised.text, raised.begin, raised.end, sure, raised)
    for line in lines:
        if not any(hint in line.text for hint in HINTS) or line.place in inside:
            continue
        if len(line.text) > 500 or CODE.match(line.text):
            continue
        if MEMORY.search(line.text):
            yield _ErrorMatch("out-of-memory", line.text.strip(), line, line, 0.85)
        elif KILLED.search(line.text):
            yield _ErrorMatch("out-of-memory", line.text.strip(), line, line, 0.7)
        elif SHELL.search(line.text):
            yield _ErrorMatch("code-error", line.text.strip(), line, line, 0.6)


def _classify_aftermath(
    broke: _ErrorMatch, course: Sequence[MetricReading], places: Sequence[int], last: bool
) -> Aftermath:
    """What followed in the same log."""
    before, later = bisect_left(places, broke.begin.place), bisect_right(places, broke.end.place)
    if later == len(places):
        return "end" if last else "mended"
    return "caught" if before and _continues_training(course[before - 1], course[later]) else "mended"


def _continues_training(one: MetricReading, other: MetricReading) -> bool:
    """Whether the next line of a training's course is the same training's."""
    if one.step is not None and other.step is not None:
        return other.step > one.step
    if one.epoch is not None and other.epoch is not None:
        return other.epoch > one.epoch
    return False


def _build_failure(
    broke: _ErrorMatch, after: Aftermath, sure: float, sources: Sequence[AgentSourceFile], book: EvidenceBook
) -> Failure:
    at = broke.end.printed.at
    cited = [book.add_evidence("log", broke.end.where, broke.text, at)]
    said = broke.text[:200]
    if raised := broke.raised:
        last = raised.frames[-1]
        own = raised.find_own_frame(sources)
        if own and (source := own[1]):
            cited.append(
                book.add_evidence("code", source.cite_line(own[0].line), _quote_line(source, own[0].line))
            )
        said += f" at {own[0]}" if own else ""
        said += f", in {last}" if not own or own[0] != last else ""
        said += f" (after {raised.cause[:100]})" if raised.cause else ""
    ends = {"end": "", "mended": "; later something else was run", "caught": "; the training went on"}
    return Failure(
        kind=broke.kind, message=f"{said}{ends[after]}.", confidence=round(sure, 3), evidence=tuple(cited)
    )


def _quote_line(source: AgentSourceFile, line: int) -> str:
    lines = source.text.split("\n")
    return (lines[line - 1].strip() if 0 < line <= len(lines) else "") or f"line {line}"
