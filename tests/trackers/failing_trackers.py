"""Trackers that do not work as they should, and one whose package nobody has."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from agent2rl.core.tracker import FinalSummary, MetricsRow, RunMirror, TrackedRun, Tracker


@dataclass(frozen=True)
class FailingTracker:
    refuses: bool = False
    hangs: bool = False
    needs: str | None = None
    where: str = "nowhere"

    @contextmanager
    def open(self, run: TrackedRun) -> Iterator[RunMirror]:  # noqa: ARG002
        print("what a package says of itself")
        if self.refuses:
            raise ConnectionError("cannot reach\nhttp://me:secret@tracker.example/api")
        yield self

    def send(self, rows: Sequence[MetricsRow]) -> None:  # noqa: ARG002
        if self.hangs:
            time.sleep(3600)

    def finish(self, last: FinalSummary) -> None:
        pass


UNREACHABLE: Tracker = FailingTracker(refuses=True)
HANGING: Tracker = FailingTracker(hangs=True)
NOT_INSTALLED: Tracker = FailingTracker(needs="nobody_has_this")
