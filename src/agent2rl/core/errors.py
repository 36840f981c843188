"""Errors say whose fault it is and what to do next.

    Agent2RLError
    ├── UserError       the command line, a configuration, a task folder: fix the input
    ├── WorldError      a hub, a provider, the network: try again or go without it
    ├── MachineError    this computer lacks something: bubblewrap, disk, memory
    ├── Refusal         the agent's submission breaks a rule; the agent is told how to fix it
    └── GradingError    a grading child crashed, hung, ran out of memory or spoke nonsense

Anything else that is raised is a bug of agent2rl.
"""

from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime


class Agent2RLError(Exception):
    """What happened, and what the reader can do about it (`hint`)."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".strip()


class UserError(Agent2RLError):
    """The input is wrong."""


class WorldError(Agent2RLError):
    """Something outside this computer did not answer as it should."""


class MachineError(Agent2RLError):
    """This computer cannot keep a promise that a run needs."""


class Refusal(Agent2RLError):
    """A submission breaks a rule."""


class GradingError(Agent2RLError):
    """A grading did not come to a score."""


# Failures of somebody else's server that may pass by themselves.


class TransientError(Exception):
    """A failure that may pass by itself, and how long the server wants to be left alone."""

    def __init__(self, what: str, seconds: float = 0.0) -> None:
        super().__init__(what)
        self.seconds = seconds


class RetriesExhausted(WorldError):
    """What may pass was asked for again and again, and did not pass."""


def parse_retry_after(said: str) -> float:
    """The seconds of such a header, written as a number or as a date; none is 0."""
    with suppress(ValueError):
        return max(0.0, float(said))
    with suppress(ValueError):
        date = parsedate_to_datetime(said)
        return max(0.0, (date.replace(tzinfo=date.tzinfo or UTC) - datetime.now(UTC)).total_seconds())
    return 0.0
