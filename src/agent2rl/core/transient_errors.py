"""Failures of somebody else's server that may pass by themselves."""

from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from agent2rl.core.errors import WorldError


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
