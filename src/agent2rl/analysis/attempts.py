"""Attempts of a run, each with everything recorded about it. The rest of the analysis reads these."""

from dataclasses import dataclass

from agent2rl.core.grading_records import Submission
from agent2rl.core.records import Rollouts


@dataclass(frozen=True)
class AgentSourceFile:
    """A file of the agent's code at a revision."""

    revision: int
    path: str
    """Relative to the workspace. Files that the harness put there for the agent are below `agent/`."""
    text: str

    def cite_line(self, line: int) -> str:
        """Return how evidence refers to a line of this file."""
        return f"revision {self.revision}, {self.path}:{line}"


@dataclass(frozen=True)
class PrintedText:
    """Output of a program: a part of agent.log, a log file, or the result of a tool call."""

    name: str
    """`agent.log`, `code/train.log`, `transcript step 12`."""
    text: str
    first_line: int = 1
    at: float | None = None

    def cite_line(self, number: int) -> str:
        """Return how evidence refers to a line of this text, counted from 0."""
        return f"{self.name}:{self.first_line + number}"


@dataclass(frozen=True)
class RecordedProcess:
    """A process of the agent. Times are seconds since the agent's start."""

    pid: int
    command: str
    began: float
    ended: float | None
    """None: it is still running, or its end was not recorded."""
    cpu_seconds: float
    peak_bytes: int

    def ran_between(self, began: float, ended: float) -> bool:
        return self.began < ended and (self.ended is None or self.ended > began)


@dataclass(frozen=True)
class SavedWeights:
    """Weights that appeared in the workspace."""

    path: str
    at: float
    bytes: int


@dataclass(frozen=True)
class AttemptSpan:
    """An attempt: from the start or the previous submission to its own submission or the end."""

    number: int
    began: float
    ended: float
    submission: Submission | None
    sources: tuple[AgentSourceFile, ...]
    """The code at the end of the attempt."""
    changed: tuple[str, ...]
    """Paths that differ from the previous attempt."""
    processes: tuple[RecordedProcess, ...]
    """Processes that were alive at some time in the attempt."""
    weights: tuple[SavedWeights, ...]
    """Weights that appeared in the attempt."""
    rollouts: Rollouts
    """Rollouts played in the attempt."""
    printed: tuple[PrintedText, ...]
    last: bool = False
    """True: the agent ended, or the record stops here."""
