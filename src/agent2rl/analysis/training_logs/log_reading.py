"""What a reader of a training log returns, and the interface of readers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from agent2rl.analysis.findings import LogFormat

FILE_BYTES = 32 << 20
"""How much of a file is read."""
MOST_ROWS = 200_000
"""Limit on rows of a file."""
GREATEST = 1e30
EARLIEST, LATEST = 1e9, 1e11
"""Plausible times, in seconds since the epoch."""


class LogRow(NamedTuple):
    """Metrics that were logged together."""

    step: float
    time: float | None
    """Seconds since the epoch."""
    values: Mapping[str, float | None]
    """By the name in the file; None: not finite."""
    stage: str = ""


@dataclass(frozen=True)
class LogReading:
    rows: tuple[LogRow, ...] = ()
    problem: str = ""
    """Why the file was not read, or not to its end."""


@dataclass(frozen=True)
class LogReader:
    """Reads one format. `read` never raises: what it cannot read is a problem of its reading."""

    format: LogFormat
    matches: Callable[[str], bool]
    """Whether a file with this name may have the format."""
    read: Callable[[bytes], LogReading]


def parse_number(value: object) -> float | None:
    """Return the number; None if it is none, not finite, or too large to compute with."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if abs(number) < GREATEST else None


def parse_time(value: object) -> float | None:
    """Return seconds since the epoch, if the value is plausible."""
    number = parse_number(value)
    return number if number is not None and EARLIEST < number < LATEST else None
