"""Find errors of the agent's programs in logs: Python tracebacks, out of memory, failed commands.

Prefixes that launchers put before each line (`[rank0]: `, `(pid=7) `) are removed. A traceback without its
last line names no error and is ignored.

The weight of an error depends on what follows it in the same log. If the same training continued, it had
caught the error. If a new training began, the error had been fixed.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from agent2rl.analysis.attempts import AgentSourceFile, AttemptSpan
from agent2rl.analysis.findings import EvidenceBook, Failure
from agent2rl.analysis.log_readings import MetricReading, PrintedLine, read_metrics, split_streams

# Python tracebacks. A chain or a group of exceptions counts as one.

BEGIN = re.compile(r"^(?P<prefix>.{0,80}?)(?P<group>Exception Group )?Traceback \(most recent call last\):")
FRAME = re.compile(r'^\s*File "(?P<file>[^"]{1,500})", line (?P<line>\d{1,9})(?:, in (?P<call>.{1,200}))?')
ERROR = re.compile(r"^(?P<type>[A-Za-z_][\w.]{0,200})(?::\s?(?P<message>.*))?$")
CHAIN = re.compile(r"^(?:During handling of the above exception|The above exception was the direct cause)")
MARK = re.compile(r"^\s*+[|+] ?")
"""Prefix of each line of an exception group."""
LAUNCHER = re.compile(r"^(?:\[[\w:./ -]{1,40}\]|\([\w=:., -]{1,60}\)):? ?")
"""Prefix that a launcher puts before each line of a process."""
LIBRARY = re.compile(r"site-packages|dist-packages|/lib/python\d|^<|/conda/|/\.venv/")
RAISED = re.compile(
    r"(?:Error|Exception|Interrupt|Exit|Iteration|Group|Warning|Timeout|Failure|Refused|Stop)$"
)
LONGEST_LINES = 400
"""Limit on the lines of a traceback. Python itself folds repeated frames."""


@dataclass(frozen=True)
class TracebackFrame:
    file: str
    line: int
    call: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True)
class PrintedTraceback:
    """A traceback in printed output."""

    type: str
    message: str
    frames: tuple[TracebackFrame, ...]
    begin: PrintedLine
    end: PrintedLine
    cause: str = ""
    """The exception that it was raised from, or the first one in the group."""

    @property
    def text(self) -> str:
        return f"{self.type}: {self.message}" if self.message else self.type

    def find_own_frame(
        self, sources: Sequence[AgentSourceFile]
    ) -> tuple[TracebackFrame, AgentSourceFile | None] | None:
        """Return the last frame in the agent's code, and its file if that was recorded."""
        for frame in reversed(self.frames):
            if source := find_source(frame, sources):
                return frame, source
        for frame in reversed(self.frames):
            if not LIBRARY.search(frame.file):
                return frame, None
        return None


def find_source(frame: TracebackFrame, sources: Sequence[AgentSourceFile]) -> AgentSourceFile | None:
    """Return the source file of a frame, matched by the end of its path."""
    if LIBRARY.search(frame.file):
        return None
    path = "/" + frame.file.removeprefix("./")
    full = (each for each in sources if path.endswith(f"/{each.path}"))
    named = (each for each in sources if f"/{each.path}".endswith(path))  # started from its own folder
    return next(full, None) or next(named, None)


def parse_tracebacks(lines: Sequence[PrintedLine]) -> list[PrintedTraceback]:
    """Return all tracebacks in order. Each chain and each group is one."""
    found: list[PrintedTraceback] = []
    place, chained, group = 0, False, False
    lines = [_strip_launcher(line) for line in lines]
    while place < len(lines):
        text = lines[place].text
        begin = BEGIN.match(text) if "Traceback (" in text else None
        bare = FRAME.match(text) if not begin and 'File "' in text else None
        if begin or (bare and not bare["call"]):
            raised, after = _parse_traceback(lines, place, begin["prefix"] if begin else "")
            if raised is not None:
                joins = bool(found) and (chained or (group and _is_group_line(text)))
                if joins:
                    raised = _join_tracebacks(found.pop(), raised, chained)
                group = (group and joins and not chained) or bool(begin and begin["group"])
                found.append(raised)
            chained, place = False, after
            continue
        if found and "above exception" in text:
            chained = True
        elif group and text.strip() and not _is_group_line(text):
            group = False
        place += 1
    return found


def _strip_launcher(line: PrintedLine) -> PrintedLine:
    # Most lines have no prefix, and a look at a letter is faster than a pattern.
    return line._replace(text=LAUNCHER.sub("", line.text)) if line.text[0] in "[(" else line


def _is_group_line(text: str) -> bool:
    return text.lstrip().startswith(("|", "+"))


def _join_tracebacks(first: PrintedTraceback, then: PrintedTraceback, chained: bool) -> PrintedTraceback:
    """Join two tracebacks. The last of a chain ended the program; the first in a group says most."""
    main, other = (then, first) if chained else (first, then)
    frames = main.frames if chained else (first.frames if first.cause else (*first.frames, *then.frames))
    return PrintedTraceback(
        type=main.type,
        message=main.message,
        frames=frames,
        begin=first.begin,
        end=then.end,
        cause=(first.cause if not chained else "") or other.text,
    )


def _parse_traceback(
    lines: Sequence[PrintedLine], first: int, prefix: str
) -> tuple[PrintedTraceback | None, int]:
    """Parse the traceback that begins here; return it, and the line to continue at."""
    frames: list[TracebackFrame] = []
    at = first if FRAME.match(lines[first].text) else first + 1
    while at < min(len(lines), first + LONGEST_LINES):
        text = _strip_prefix(lines[at].text, prefix)
        if BEGIN.match(text) or CHAIN.match(text):
            return None, at
        if frame := FRAME.match(text):
            frames.append(TracebackFrame(frame["file"], int(frame["line"]), (frame["call"] or "").strip()))
        elif text[:1].isspace() or not frames or _continues_line(lines, first, at):
            pass  # a line of code
        elif (error := ERROR.match(text)) and (error["message"] is not None or RAISED.search(error["type"])):
            message = (error["message"] or "").strip()
            raised = PrintedTraceback(error["type"], message[:300], tuple(frames), lines[first], lines[at])
            return raised, at + 1
        else:
            return None, at  # other output was printed in between
        at += 1
    return None, max(at, first + 1)


def _continues_line(lines: Sequence[PrintedLine], first: int, at: int) -> bool:
    """Whether this is the rest of the previous line, which was split at a quoted line break."""
    return lines[at].number == lines[at - 1].number != lines[first].number


def _strip_prefix(text: str, prefix: str) -> str:
    """Remove the prefix of a launcher or of an exception group."""
    if _is_group_line(prefix):
        return MARK.sub("", text)
    return text.removeprefix(prefix)


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
"""A line like this quotes an error but does not report one."""
HINTS = (
    *("emory", "bad_alloc", "ALLOC_FAILED", "EXHAUSTED", "oom-kill", "Killed", "137", "SIGKILL", "exit"),
    *("not found", "open file", "error: ", "Segmentation", "No space"),
)
"""Only lines with one of these are searched, for speed."""
STOPPED = {"KeyboardInterrupt", "SystemExit", "BrokenPipeError"}
"""Exceptions that stop a program on purpose."""

Aftermath = Literal["end", "fixed", "caught"]
WEIGHT: dict[Aftermath, float] = {"end": 1.0, "fixed": 0.35, "caught": 0.15}
MOST_ERRORS = 3


@dataclass(frozen=True)
class LoggedError:
    failure: Failure
    after: Aftermath


@dataclass(frozen=True)
class _ErrorMatch:
    """An error at one place in a log."""

    kind: Literal["code-error", "out-of-memory"]
    text: str
    begin: PrintedLine
    end: PrintedLine
    confidence: float
    raised: PrintedTraceback | None = None


def find_logged_errors(span: AttemptSpan, book: EvidenceBook) -> list[LoggedError]:
    """Return errors by weight, the heaviest first. Equal errors are returned once."""
    logs, course = split_streams(span.printed), read_metrics(span.printed)
    found: dict[tuple[str, str], tuple[float, _ErrorMatch, Aftermath]] = {}
    for name, lines in logs.items():
        broke = sorted(_scan_errors(lines), key=lambda each: each.end.place)
        places = [each.line.place for each in course[name]]
        elsewhere = not places and any(course.values())
        for place, each in enumerate(broke):
            after = _classify_aftermath(each, course[name], places, place == len(broke) - 1)
            confidence = each.confidence * WEIGHT[after] * (0.6 if elsewhere else 1.0)
            # Of equal errors, prefer the last one, which is nearest to the end.
            key = (each.kind, each.text[:80])
            if key not in found or confidence >= found[key][0]:
                found[key] = (confidence, each, after)
    most = sorted(found.values(), key=lambda one: -one[0])[:MOST_ERRORS]
    return [
        LoggedError(_build_failure(each, after, confidence, span.sources, book), after)
        for confidence, each, after in most
    ]


def _scan_errors(lines: Sequence[PrintedLine]) -> Iterator[_ErrorMatch]:
    inside: set[int] = set()
    for raised in parse_tracebacks(lines):
        inside |= set(range(raised.begin.place, raised.end.place + 1))
        memory = bool(MEMORY.search(f"{raised.text} ")) or raised.type.endswith(("MemoryError", "bad_alloc"))
        confidence = 0.35 if raised.type in STOPPED else 0.95 if memory else 0.9
        kind: Literal["code-error", "out-of-memory"] = "out-of-memory" if memory else "code-error"
        yield _ErrorMatch(kind, raised.text, raised.begin, raised.end, confidence, raised)
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
    """Return what followed the error in the same log."""
    before, later = bisect_left(places, broke.begin.place), bisect_right(places, broke.end.place)
    if later == len(places):
        return "end" if last else "fixed"
    return "caught" if before and _continues_training(course[before - 1], course[later]) else "fixed"


def _continues_training(one: MetricReading, other: MetricReading) -> bool:
    """Whether two consecutive metric readings belong to the same training."""
    if one.step is not None and other.step is not None:
        return other.step > one.step
    if one.epoch is not None and other.epoch is not None:
        return other.epoch > one.epoch
    return False


def _build_failure(
    broke: _ErrorMatch,
    after: Aftermath,
    confidence: float,
    sources: Sequence[AgentSourceFile],
    book: EvidenceBook,
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
    ends = {"end": "", "fixed": "; another program ran later", "caught": "; the training continued"}
    return Failure(
        kind=broke.kind,
        message=f"{said}{ends[after]}.",
        confidence=round(confidence, 3),
        evidence=tuple(cited),
    )


def _quote_line(source: AgentSourceFile, line: int) -> str:
    lines = source.text.split("\n")
    return (lines[line - 1].strip() if 0 < line <= len(lines) else "") or f"line {line}"
