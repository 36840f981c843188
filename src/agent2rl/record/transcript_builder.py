"""Build a transcript from an agent's log, which may contain several sessions of its program."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
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
    for line in untrusted_files.read_lines(log):
        event = untrusted_files.parse_json(line) if line.startswith(b"{") else None
        if event is not None:
            read(event, notes)
        elif line.strip():
            notes.unread += 1
    return notes


def _cut_text(text: str) -> str:
    if len(text) <= LONGEST_TEXT:
        return text
    half = LONGEST_TEXT // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half:,} characters left out …]\n{text[-half:]}"
