"""Trackers: services and stores that show runs beside other experiments. They mirror, and decide nothing.

The run directory stays the truth. Whatever a tracker is told, it may be told again, from the beginning and by
another process: it keeps one copy of each run and one of each point.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

Status = Literal["finished", "failed", "stopped"]
Scalar = str | int | float | bool


@dataclass(frozen=True)
class TrackedRun:
    """A run, as a tracker first hears of it. All names are plain: letters, digits, `.`, `_`, `-`, `/`."""

    id: str
    """The same for the same run, always: no second run may come of it."""
    group: str
    """The campaign, or the task."""
    began_at: float
    """Seconds since the epoch."""
    config: Mapping[str, Scalar]
    tags: Mapping[str, str]


@dataclass(frozen=True)
class MetricsRow:
    """Numbers of one moment; unknown ones are not in it."""

    axis: str
    """What `step` counts: `submission`, or the steps of one training."""
    step: int
    at: float
    """Seconds since the epoch."""
    values: Mapping[str, float]


@dataclass(frozen=True)
class FinalSummary:
    """What is known of a run once nobody is at work on it."""

    status: Status
    ended_at: float
    tags: Mapping[str, str]
    numbers: Mapping[str, float]
    files: Mapping[str, Path] = field(default_factory=dict)
    """By their names in the run directory."""


class RunMirror(Protocol):
    """One run in a tracker. Whatever goes wrong is raised: whoever mirrors tells it, and tries again."""

    @property
    def where(self) -> str:
        """Where people look at it."""

    def send(self, rows: Sequence[MetricsRow]) -> None:
        """All rows so far, in an order that later calls keep; those that it has are left alone."""

    def finish(self, last: FinalSummary) -> None:
        """What there is to say at the end, in place of what was said before."""


class Tracker(Protocol):
    @property
    def needs(self) -> str | None:
        """The package without which it cannot work, and the extra of agent2rl that brings it."""

    def open(self, run: TrackedRun) -> AbstractContextManager[RunMirror]:
        """The run's one mirror, found or made. When it is closed, what was sent is there."""
