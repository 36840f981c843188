"""Build a transcript from an agent's log, which may contain several sessions of its program.

Some programs also keep session files in HOME. They complete what the log lacks.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Literal

from agent2rl.core.llm import TokenCounts
from agent2rl.core.self_reports import AgentToolCall, ToolObservation, Transcript, TranscriptStep
from agent2rl.record import untrusted_files
from agent2rl.record.untrusted_files import JsonNode

MOST_STEPS = 50_000
MOST_CHARACTERS = 64 << 20
"""Limit of all kept text."""
LONGEST_TEXT = 1 << 16
"""Only the beginning and the end of a longer text are kept."""
MOST_SESSION_BYTES = 128 << 20
"""Limit of all session files in HOME together."""
Source = Literal["system", "user", "agent"]


@dataclass
class PartialStep:
    """A step that is being collected."""

    source: Source
    at: float | None
    said: list[str] = field(default_factory=list)
    thought: list[str] = field(default_factory=list)
    calls: list[AgentToolCall] = field(default_factory=list)
    observations: dict[str, ToolObservation] = field(default_factory=dict)
    tokens: TokenCounts | None = None

    def build_step(self) -> TranscriptStep:
        return TranscriptStep(
            source=self.source,
            text="".join(self.said),
            reasoning="".join(self.thought),
            calls=tuple(self.calls),
            observations=tuple(self.observations.values()),
            tokens=self.tokens,
            at=self.at,
        )


@dataclass
class TranscriptBuilder:
    """Collects the steps of a transcript."""

    agent: str
    version: str = ""
    model: str = ""
    session: str = ""
    error: str = ""
    unread: int = 0
    _tokens: dict[str, TokenCounts] = field(default_factory=dict)
    _processes: int = 0
    _turns: list[PartialStep] = field(default_factory=list)
    _named: dict[str, PartialStep] = field(default_factory=dict)
    _callers: dict[str, PartialStep] = field(default_factory=dict)
    _room: int = MOST_CHARACTERS

    def start_session(self) -> None:
        """Begin a new session of the program, in which ids may have other meanings."""
        self._named.clear()
        self._callers.clear()

    def open_step(self, source: Source, key: str = "", at: float | None = None) -> PartialStep:
        """Return the step with this key, or a new one."""
        if key in self._named:
            return self._named[key]
        turn = PartialStep(source, at)
        if len(self._turns) < MOST_STEPS:
            self._turns.append(turn)
        else:
            self.unread += 1
        if key:
            self._named[key] = turn
        return turn

    def current_step(self, source: Source, at: float | None = None) -> PartialStep:
        """Return the current step, or a new one if the source changed or a call has returned since."""
        going = self._turns[-1] if self._turns else None
        if going is None or going.source != source or going.observations:
            return self.open_step(source, at=at)
        return going

    def add_text(self, turn: PartialStep, text: str) -> None:
        turn.said.append(self._keep_text(text))

    def add_reasoning(self, turn: PartialStep, text: str) -> None:
        turn.thought.append(self._keep_text(text))

    def add_tool_call(self, turn: PartialStep, call: str, name: str, arguments: JsonNode) -> None:
        """Add a tool call; a repeated call counts once."""
        if call in self._callers:
            return
        complete = self._keep_text(arguments.shown) == arguments.shown
        turn.calls.append(AgentToolCall(id=call, name=name, arguments=arguments.value if complete else None))
        self._callers[call] = turn

    def add_observation(self, call: str, text: str, failed: bool = False) -> None:
        """Add the result of a call; a result without a call counts as not understood."""
        if call in self._callers:
            seen = ToolObservation(call=call, text=self._keep_text(text), failed=failed)
            self._callers[call].observations[call] = seen
        else:
            self.unread += 1

    def add_tokens(self, tokens: TokenCounts, of: str = "") -> None:
        """Add to the agent's own total. Counts `of` something are cumulative."""
        self._tokens[of] = tokens if of else tokens + self._tokens.get("", TokenCounts())

    def add_process_total(self, total: TokenCounts, turn: TokenCounts) -> None:
        """Add the running total that a process reports after each turn, with the part of this turn.

        A total that cannot contain the previous one and this turn is that of a new process.
        """
        minimum = turn + self._tokens.get(_name_process(self._processes), TokenCounts())
        if any(getattr(total, name) < getattr(minimum, name) for name in TokenCounts.model_fields):
            self._processes += 1
        self._tokens[_name_process(self._processes)] = total

    def build_transcript(self) -> Transcript:
        return Transcript(
            agent=self.agent,
            version=self.version,
            model=self.model,
            session=self.session,
            steps=tuple(turn.build_step() for turn in self._turns),
            tokens=sum(self._tokens.values(), TokenCounts()) if self._tokens else None,
            error=_cut_text(self.error),
            unread=self.unread,
        )

    def _keep_text(self, text: str) -> str:
        shortened = _cut_text(text)
        if len(shortened) > self._room:
            self.unread += 1
            return ""
        self._room -= len(shortened)
        return shortened


EventReader = Callable[[JsonNode, TranscriptBuilder], None]
"""Reads one event of a log and counts events that it does not understand."""


def read_json_log(agent: str, log: Path, read: EventReader) -> TranscriptBuilder:
    """Read a log with one JSON object per line and other lines in between."""
    notes = TranscriptBuilder(agent)
    _read_lines(untrusted_files.read_lines(log), read, notes)
    return notes


def _read_lines(lines: Iterable[bytes], read: EventReader, notes: TranscriptBuilder) -> None:
    for line in lines:
        event = untrusted_files.parse_json(line) if line.startswith(b"{") else None
        if event is not None:
            read(event, notes)
        elif line.strip():
            notes.unread += 1


def read_session_files(
    agent: str, home: Path, patterns: Iterable[PurePosixPath], read: EventReader
) -> TranscriptBuilder:
    """Read the files in HOME that match a pattern, each with one JSON object per line."""
    notes, room = TranscriptBuilder(agent), MOST_SESSION_BYTES
    for pattern in patterns:
        files, complete = untrusted_files.find_files(home, pattern)
        notes.unread += not complete
        for file in files:
            content = untrusted_files.read_untrusted_file(home, str(file), room)
            room -= len(content or b"")
            notes.unread += content is None
            _read_lines((content or b"").splitlines(), read, notes)
    return notes


def complete_transcript(logged: Transcript, stored: Transcript) -> Transcript:
    """Return the log's transcript, or that of the session files if the log is empty, each with what only the
    other one says.

    Both token counts can be too low: a killed program prints none, and a session file omits small requests.
    So the larger one is taken.
    """
    counts = [count for count in (logged.tokens, stored.tokens) if count]
    return (logged if logged.steps else stored).model_copy(
        update={
            "model": logged.model or stored.model,
            "version": logged.version or stored.version,
            "session": logged.session or stored.session,
            "tokens": max(counts, key=lambda count: count.total, default=None),
            "error": logged.error if logged.steps else logged.error or stored.error,
            "unread": logged.unread if logged.steps else logged.unread + stored.unread,
        }
    )


def _name_process(number: int) -> str:
    return f"process {number}"


def _cut_text(text: str) -> str:
    if len(text) <= LONGEST_TEXT:
        return text
    half = LONGEST_TEXT // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half:,} characters left out …]\n{text[-half:]}"
