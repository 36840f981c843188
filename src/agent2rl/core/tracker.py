"""Trackers: experiment tracking services that mirror runs. They decide nothing.

The run directory stays the source of truth. A tracker may get the same data again, from the start and from
another process: it must keep one copy of each run and of each point.
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
    """A run as first sent to a tracker. Names are plain: letters, digits, `.`, `_`, `-`, `/`."""

    id: str
    """Always the same for the same run, so that no second run is created."""
    group: str
    """The campaign, or the task."""
    began_at: float
    """Seconds since the epoch."""
    config: Mapping[str, Scalar]
    tags: Mapping[str, str]


@dataclass(frozen=True)
class MetricsRow:
    """Metrics at one moment; unknown ones are left out."""

    axis: str
    """What `step` counts: `submission`, or the steps of one training."""
    step: int
    at: float
    """Seconds since the epoch."""
    values: Mapping[str, float]


@dataclass(frozen=True)
class FinalSummary:
    """Final facts of a run that is over."""

    status: Status
    ended_at: float
    tags: Mapping[str, str]
    numbers: Mapping[str, float]
    files: Mapping[str, Path] = field(default_factory=dict)
    """Name in the run directory → path."""


class RunMirror(Protocol):
    """One run in a tracker. Methods raise on failure; the caller reports it and retries."""

    @property
    def where(self) -> str:
        """URL or path where people can view the run."""

    def send(self, rows: Sequence[MetricsRow]) -> None:
        """Send all rows so far, in an order that later calls keep; skip those that were sent before."""

    def finish(self, last: FinalSummary) -> None:
        """Send the final summary; it replaces an earlier one."""


class Tracker(Protocol):
    @property
    def needs(self) -> str | None:
        """The package that it needs, and the extra of agent2rl that installs it."""

    def open(self, run: TrackedRun) -> AbstractContextManager[RunMirror]:
        """Find or create the run's one mirror. Once it is closed, everything that was sent is stored."""
