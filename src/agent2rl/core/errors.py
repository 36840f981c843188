"""Errors say whose fault it is and what to do next.

    Agent2RLError
    ├── UserError       the command line, a configuration, a task folder: fix the input
    ├── WorldError      a hub, a provider, the network: try again or go without it
    ├── MachineError    this computer lacks something: bubblewrap, disk, memory
    ├── Refusal         the agent's submission breaks a rule; the agent is told how to fix it
    └── GradingError    a grading child crashed, hung, ran out of memory or sent an invalid result
        └── EngineFailure   the inference engine itself failed; its messages in the grading log say why

Any other exception is a bug in agent2rl.
"""

from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime


class Agent2RLError(Exception):
    """Base class: `message` says what happened, `hint` says what to do about it."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".strip()


class UserError(Agent2RLError):
    """The user's input is wrong."""


class WorldError(Agent2RLError):
    """A service outside this computer failed."""


class MachineError(Agent2RLError):
    """This computer lacks something that a run needs."""


class Refusal(Agent2RLError):
    """A submission breaks a rule."""


class GradingError(Agent2RLError):
    """A grading produced no score."""


class EngineFailure(GradingError):
    """The inference engine itself failed; the grading log has its messages."""


# Retryable failures of remote servers


class TransientError(Exception):
    """A failure worth retrying after `seconds`, the delay that the server asked for."""

    def __init__(self, message: str, seconds: float = 0.0) -> None:
        super().__init__(message)
        self.seconds = seconds


class RetriesExhausted(WorldError):
    """A transient failure persisted through all retries."""


def parse_retry_after(header: str) -> float:
    """Return the delay in seconds of a Retry-After header (a number or a date); 0 if it is invalid."""
    with suppress(ValueError):
        return max(0.0, float(header))
    with suppress(ValueError):
        date = parsedate_to_datetime(header)
        return max(0.0, (date.replace(tzinfo=date.tzinfo or UTC) - datetime.now(UTC)).total_seconds())
    return 0.0
