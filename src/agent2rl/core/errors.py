"""Errors say whose fault it is and what to do next.

    Agent2RLError
    ├── UserError       the command line, a configuration, a task folder: fix the input
    ├── ExternalServiceError      a hub, a provider, the network: try again or go without it
    ├── MachineError    this computer lacks something: bubblewrap, disk, memory
    ├── Refusal         the agent's submission breaks a rule; the agent is told how to fix it
    └── GradingError    a grading child crashed, hung, ran out of memory or sent an invalid result
        └── EngineFailure   the inference engine itself failed; its messages in the grading log say why

Any other exception is a bug in agent2rl.
"""

import errno
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

FULL_DISK = {errno.ENOSPC, errno.EDQUOT}
FULL_DISK_HINT = (
    "Free some space, or write elsewhere: --runs-dir DIR for runs, AGENT2RL_CACHE=DIR for prepared models "
    "and data.\n`agent2rl resume` continues a run that has no result."
)


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


class ExternalServiceError(Agent2RLError):
    """A service outside this computer failed."""


WorldError = ExternalServiceError
"""Its earlier name, for plugins that import it."""


class MachineError(Agent2RLError):
    """This computer lacks something that a run needs."""


class Refusal(Agent2RLError):
    """A submission breaks a rule."""


class GradingError(Agent2RLError):
    """A grading produced no score."""


class EngineFailure(GradingError):
    """The inference engine itself failed; the grading log has its messages."""


def explain_full_disk(error: BaseException) -> MachineError | None:
    """Return the error that says that a disk or quota is full; None for any other error."""
    if not isinstance(error, OSError) or error.errno not in FULL_DISK:
        return None
    where = f" It was writing {error.filename}." if error.filename else ""
    return MachineError(f"The disk is full.{where}", FULL_DISK_HINT)


# Retryable failures of remote servers


class TransientError(Exception):
    """A failure worth retrying after `seconds`, the delay that the server asked for."""

    def __init__(self, message: str, seconds: float = 0.0) -> None:
        super().__init__(message)
        self.seconds = seconds


class RetriesExhausted(ExternalServiceError):
    """A transient failure persisted through all retries."""


def parse_retry_after(header: str) -> float:
    """Return the delay in seconds of a Retry-After header (a number or a date); 0 if it is invalid."""
    with suppress(ValueError):
        return max(0.0, float(header))
    with suppress(ValueError):
        date = parsedate_to_datetime(header)
        return max(0.0, (date.replace(tzinfo=date.tzinfo or UTC) - datetime.now(UTC)).total_seconds())
    return 0.0
