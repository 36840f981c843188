"""A run cut into attempts, each with all that was recorded of it: what the rest of the analysis reads."""

from dataclasses import dataclass

from agent2rl.core.grading_records import Submission
from agent2rl.core.records import Rollouts


@dataclass(frozen=True)
class AgentSourceFile:
    """A file of the agent's code at some revision."""

    revision: int
    path: str
    """Below the workspace; what the harness laid there for the agent is below `agent/`."""
    text: str

    def cite_line(self, line: int) -> str:
        """How evidence names a place in it."""
        return f"revision {self.revision}, {self.path}:{line}"


@dataclass(frozen=True)
class PrintedText:
    """Something that a program printed: a part of agent.log, a log file, what a tool call gave back."""

    name: str
    """`agent.log`, `code/train.log`, `transcript step 12`."""
    text: str
    first_line: int = 1
    at: float | None = None

    def cite_line(self, number: int) -> str:
        """How evidence names its n-th line, from 0."""
        return f"{self.name}:{self.first_line + number}"


@dataclass(frozen=True)
class RecordedProcess:
    """A process of the agent. Times are seconds since the agent's start."""

    pid: int
    command: str
    began: float
    ended: float | None
    """None: it still runs, or nobody saw its end."""
    cpu_seconds: float
    peak_bytes: int

    def ran_between(self, began: float, ended: float) -> bool:
        """At some time between these."""
        return self.began < ended and (self.ended is None or self.ended > began)


@dataclass(frozen=True)
class SavedWeights:
    """Weights that appeared below the workspace."""

    path: str
    at: float
    bytes: int


@dataclass(frozen=True)
class AttemptSpan:
    """One attempt: from the submission before, or the start, to its own, or the end."""

    number: int
    began: float
    ended: float
    submission: Submission | None
    sources: tuple[AgentSourceFile, ...]
    """The code as it was at the end."""
    changed: tuple[str, ...]
    """Paths that differ from the attempt before."""
    processes: tuple[RecordedProcess, ...]
    """Alive at some time in it."""
    weights: tuple[SavedWeights, ...]
    """That appeared in it."""
    rollouts: Rollouts
    """Played in it."""
    printed: tuple[PrintedText, ...]
    last: bool = False
    """The agent ended, or the record stops here."""
