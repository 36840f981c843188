"""Python's tracebacks in printed text: what was raised and where, chains and groups of them as one.

Prefixes that launchers put before each line (`[rank0]: `, `(pid=7) `) are taken off. A traceback that is cut
at its end has no error and is left out.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from agent2rl.analysis.attempts import AgentSourceFile
from agent2rl.analysis.logs.printed_lines import PrintedLine

BEGIN = re.compile(r"^(?P<prefix>.{0,80}?)(?P<group>Exception Group )?Traceback \(most recent call last\):")
FRAME = re.compile(r'^\s*File "(?P<file>[^"]{1,500})", line (?P<line>\d{1,9})(?:, in (?P<call>.{1,200}))?')
ERROR = re.compile(r"^(?P<type>[A-Za-z_][\w.]{0,200})(?::\s?(?P<message>.*))?$")
CHAIN = re.compile(r"^(?:During handling of the above exception|The above exception was the direct cause)")
MARK = re.compile(r"^\s*+[|+] ?")
"""Stands before each line of an exception group."""
LAUNCHER = re.compile(r"^(?:\[[\w:./ -]{1,40}\]|\([\w=:., -]{1,60}\)):? ?")
"""Puts its name before each line of a process."""
LIBRARY = re.compile(r"site-packages|dist-packages|/lib/python\d|^<|/conda/|/\.venv/")
RAISED = re.compile(
    r"(?:Error|Exception|Interrupt|Exit|Iteration|Group|Warning|Timeout|Failure|Refused|Stop)$"
)
LONGEST_LINES = 400
"""Of one traceback; Python itself folds repeated frames."""


@dataclass(frozen=True)
class TracebackFrame:
    file: str
    line: int
    call: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True)
class PrintedTraceback:
    """An error that nobody caught, as it was printed."""

    type: str
    message: str
    frames: tuple[TracebackFrame, ...]
    begin: PrintedLine
    end: PrintedLine
    cause: str = ""
    """What it was raised from, or what was within it."""

    @property
    def text(self) -> str:
        return f"{self.type}: {self.message}" if self.message else self.type

    def find_own_frame(
        self, sources: Sequence[AgentSourceFile]
    ) -> tuple[TracebackFrame, AgentSourceFile | None] | None:
        """The last frame in the agent's code, and the file where that was recorded."""
        for frame in reversed(self.frames):
            if source := find_source(frame, sources):
                return frame, source
        for frame in reversed(self.frames):
            if not LIBRARY.search(frame.file):
                return frame, None
        return None


def find_source(frame: TracebackFrame, sources: Sequence[AgentSourceFile]) -> AgentSourceFile | None:
    """The file of a frame, by the end of its path."""
    if LIBRARY.search(frame.file):
        return None
    path = "/" + frame.file.removeprefix("./")
    whole = (each for each in sources if path.endswith(f"/{each.path}"))
    named = (each for each in sources if f"/{each.path}".endswith(path))  # started where it lies
    return next(whole, None) or next(named, None)


def parse_tracebacks(lines: Sequence[PrintedLine]) -> list[PrintedTraceback]:
    """All of them in their order, each chain and each group as one."""
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
    return line._replace(text=LAUNCHER.sub("", line.text)) if line.text[0] in "[(" else line


def _is_group_line(text: str) -> bool:
    """Of an exception group."""
    return text.lstrip().startswith(("|", "+"))


def _join_tracebacks(first: PrintedTraceback, then: PrintedTraceback, chained: bool) -> PrintedTraceback:
    """Of a chain the last is what ended the program; of a group the first within it says most."""
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
    """The traceback that begins here, and where to read on."""
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
            return None, at  # something else was printed in between
        at += 1
    return None, max(at, first + 1)


def _continues_line(lines: Sequence[PrintedLine], first: int, at: int) -> bool:
    """Whether it is the rest of the line before, which was taken apart at a quoted end of line."""
    return lines[at].number == lines[at - 1].number != lines[first].number


def _strip_prefix(text: str, prefix: str) -> str:
    """Without what a launcher or a group put before it."""
    if _is_group_line(prefix):
        return MARK.sub("", text)
    return text.removeprefix(prefix)
