"""Read the events of a run by kind.

Times are seconds of the agent's time: seconds since its start while a harness was running. Downtime does not
count.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Literal, Self, TypeVar, get_args

from pydantic import ValidationError

from agent2rl.analysis.attempts import RecordedProcess, SavedWeights
from agent2rl.analysis.findings import TimeSplit
from agent2rl.core.base_record import Record
from agent2rl.core.events import (
    DriverRequest,
    FileSeen,
    ProcessEnd,
    ProcessStart,
    ResourceSample,
    TimelineEvent,
)
from agent2rl.core.records import LedgerEntry, Rollouts
from agent2rl.record.reader import parse_rollouts
from agent2rl.record.revisions import Revision

# Conversion to the agent's time.


@dataclass(frozen=True)
class AgentTime:
    starts: tuple[tuple[float, float], ...]
    """Time of each start of the agent (the first, then each resume), and the agent time used before it."""

    @classmethod
    def from_record(cls, record: Iterable[TimelineEvent] | Iterable[LedgerEntry]) -> Self:
        """Read the starts from the timeline or the ledger."""
        starts = []
        for event in record:
            used = event.data.get("used_seconds", 0.0)
            if event.kind == "started" and isinstance(used, int | float):
                starts.append((event.time, float(used)))
        return cls(tuple(starts))

    def seconds_at(self, time: float) -> float:
        """Convert a time to agent time; negative before the first start.

        Times during downtime map to the moment at which the agent was started again.
        """
        place = sum(began <= time for began, _ in self.starts)
        began, used = self.starts[max(0, place - 1)]
        end = self.starts[place][1] if 0 < place < len(self.starts) else float("inf")
        return min(used + (time - began), end)

    def find_life_end(self, time: float) -> float | None:
        """Return the agent time at which the agent stopped after `time`; None after the last start."""
        place = sum(began <= time for began, _ in self.starts)
        return self.starts[place][1] if 0 < place < len(self.starts) else None


# The timeline.

BUSY_CORES, BUSY_GPU = 0.5, 0.1
"""Load from which on the agent computes. Programs that only wait and write stay below."""
CODING_SECONDS = 30.0
"""An agent acts between two requests to its driver. A longer gap without computation is waiting."""
CHANGE_SECONDS = 2.0
"""Time before a revision that counts as changing code."""

Activity = Literal["training", "grading", "stalled", "thinking", "coding", "idle"]
"""The fields of `findings.TimeSplit`."""
TimeRange = tuple[float, float]
"""Start and end."""
R = TypeVar("R", bound=Record)


@dataclass(frozen=True)
class ActivityStretch:
    """A period in which the agent did one thing."""

    kind: Activity
    began: float
    ended: float


@dataclass(frozen=True)
class AgentTimeline:
    started: float | None
    """Seconds since the epoch; None if the agent never started."""
    seconds: float
    """Agent time until its end, or as far as the record goes."""
    time: AgentTime | None = None
    """None: the agent was started once."""
    samples: tuple[tuple[float, ResourceSample], ...] = ()
    processes: tuple[RecordedProcess, ...] = ()
    files: tuple[tuple[float, FileSeen], ...] = ()
    """Changes of weights and logs."""
    played: tuple[tuple[float, Rollouts], ...] = ()
    """Increments of the rollout counts."""
    requests: tuple[tuple[float, DriverRequest], ...] = ()
    """By start time."""
    revisions: tuple[tuple[float, Revision], ...] = ()
    graded: tuple[TimeRange, ...] = ()
    """Periods from a submission to its verdict."""

    def seconds_at(self, time: float) -> float:
        """Convert seconds since the epoch to agent time."""
        return self.time.seconds_at(time) if self.time else time - (self.started or 0.0)

    @cached_property
    def weights(self) -> tuple[SavedWeights, ...]:
        return tuple(
            SavedWeights(seen.path, at, seen.bytes) for at, seen in self.files if seen.what == "weights"
        )

    @cached_property
    def logs(self) -> tuple[tuple[float, FileSeen], ...]:
        return tuple((at, seen) for at, seen in self.files if seen.what == "log")

    @cached_property
    def stretches(self) -> tuple[ActivityStretch, ...]:
        """What the agent did at each moment: the first activity of this list that fits."""
        claims: list[tuple[Activity, list[TimeRange]]] = [
            ("training", self._find_training()),
            ("grading", list(self.graded)),
            ("stalled", self._find_stalls()),
            ("thinking", [(at, at + request.seconds) for at, request in self.requests]),
            ("coding", self._find_coding()),
        ]
        return _lay_intervals(claims, self.seconds)

    def split_time(self) -> TimeSplit | None:
        """Return how the time was spent; None if processes were not recorded, as in early versions."""
        if self.started is None or not self.samples:
            return None
        sums: dict[str, float] = dict.fromkeys(get_args(Activity), 0.0)
        for stretch in self.stretches:
            sums[stretch.kind] += stretch.ended - stretch.began
        return TimeSplit(**{what: round(seconds, 3) for what, seconds in sums.items()})

    def _find_training(self) -> list[TimeRange]:
        """Return periods of computation. During grading, a busy GPU is the grader's."""
        periods = []
        for at, sample in self.samples:
            period = (at - sample.seconds, at)
            uses_gpu = any((each.busy or 0.0) >= BUSY_GPU for each in sample.gpus) and not _overlaps_any(
                period, self.graded
            )
            if sample.cores >= BUSY_CORES or uses_gpu:
                periods.append(period)
        return periods

    def _find_stalls(self) -> list[TimeRange]:
        """Return periods of failed requests, with the wait before each retry."""
        periods = []
        for at, request in self.requests:
            if request.stalled_seconds:
                failed = request.outcome != "answered"
                end = at + request.seconds if failed else at
                periods.append((end - request.stalled_seconds, end))
        return periods

    def _find_coding(self) -> list[TimeRange]:
        periods = [(at - CHANGE_SECONDS, at) for at, _ in self.revisions]
        requests = [(at, at + request.seconds) for at, request in self.requests]
        for (_, end), (begin, _) in pairwise(requests):
            if 0 < begin - end <= CODING_SECONDS:
                periods.append((end, begin))
        return periods


def read_timeline(events: Sequence[TimelineEvent]) -> AgentTimeline:
    """Build the timeline from events. Malformed events are skipped."""
    time = AgentTime.from_record(events)
    if not time.starts:
        return AgentTimeline(None, 0.0)
    began = time.starts[0][0]
    return AgentTimeline(
        started=began,
        seconds=max(0.0, time.seconds_at(_find_end(events))),
        time=time,
        samples=tuple(
            (time.seconds_at(event.time), sample)
            for event, sample in _parse_events(events, "sample", ResourceSample)
        ),
        processes=_pair_processes(events, time),
        files=tuple(
            (time.seconds_at(event.time), seen)
            for event, seen in _parse_events(events, "file", FileSeen)
            if event.time >= began
        ),
        played=tuple(_read_rollouts(events, time)),
        requests=tuple(
            sorted(
                (
                    (time.seconds_at(request.began), request)
                    for _, request in _parse_events(events, "request", DriverRequest)
                ),
                key=lambda pair: pair[0],
            )
        ),
        revisions=tuple(
            (time.seconds_at(event.time), each) for event, each in _parse_events(events, "revision", Revision)
        ),
        graded=tuple(_read_gradings(events, time)),
    )


def _find_end(events: Sequence[TimelineEvent]) -> float:
    """Return when the agent ended, or the last recorded time if it was started again since."""
    turns = [event for event in events if event.kind in ("started", "continued", "ended")]
    has_ended = turns[-1].kind == "ended"
    return turns[-1].time if has_ended else max(event.time for event in events)


def _parse_events(
    events: Iterable[TimelineEvent], kind: str, form: type[R]
) -> Iterable[tuple[TimelineEvent, R]]:
    for event in events:
        if event.kind == kind:
            try:
                yield event, form.model_validate(event.data)
            except ValidationError:
                continue


def _pair_processes(events: Sequence[TimelineEvent], time: AgentTime) -> tuple[RecordedProcess, ...]:
    ends = {
        (each.pid, each.began): (event.time, each)
        for event, each in _parse_events(events, "left", ProcessEnd)
    }
    processes: dict[tuple[int, float], RecordedProcess] = {}
    for _, began in _parse_events(events, "began", ProcessStart):
        key = (began.pid, began.began)
        ended_at, end = ends.get(key, (None, None))
        processes[key] = RecordedProcess(
            pid=began.pid,
            command=began.command,
            began=time.seconds_at(began.began),
            ended=time.seconds_at(ended_at) if ended_at is not None else time.find_life_end(began.began),
            cpu_seconds=end.cpu_seconds if end else 0.0,
            peak_bytes=end.peak_bytes if end else 0,
        )
    return tuple(processes.values())


def _read_rollouts(events: Iterable[TimelineEvent], time: AgentTime) -> Iterable[tuple[float, Rollouts]]:
    for event in events:
        if new := parse_rollouts(event):
            yield time.seconds_at(event.time), new


def _read_gradings(events: Iterable[TimelineEvent], time: AgentTime) -> Iterable[TimeRange]:
    waiting: dict[int, float] = {}
    for event in events:
        if event.kind in ("submitted", "graded"):
            submission = event.data.get("submission")
            number = submission.get("id") if isinstance(submission, dict) else None
            if not isinstance(number, int):
                continue
            if event.kind == "submitted":
                waiting[number] = event.time
            elif number in waiting:
                yield time.seconds_at(waiting.pop(number)), time.seconds_at(event.time)


def _overlaps_any(piece: TimeRange, others: Iterable[TimeRange]) -> bool:
    return any(began < piece[1] and ended > piece[0] for began, ended in others)


def _lay_intervals(
    claims: Sequence[tuple[Activity, list[TimeRange]]], end: float
) -> tuple[ActivityStretch, ...]:
    """Fill the time from 0 to `end` with activities. Earlier claims take precedence; the rest is idle."""
    changes: list[tuple[float, int, int]] = []
    for rank, (_, pieces) in enumerate(claims):
        for began, ended in pieces:
            low, high = max(0.0, began), min(end, ended)
            if high > low:
                changes += [(low, rank, 1), (high, rank, -1)]
    open_now = [0] * len(claims)
    stretches: list[ActivityStretch] = []
    at = 0.0
    for time, rank, step in [*sorted(changes), (end, 0, 0)]:
        if time > at:
            active = [claim for (claim, _), count in zip(claims, open_now, strict=True) if count]
            activity: Activity = active[0] if active else "idle"
            if stretches and stretches[-1].kind == activity:
                stretches[-1] = ActivityStretch(activity, stretches[-1].began, time)
            else:
                stretches.append(ActivityStretch(activity, at, time))
            at = time
        open_now[rank] += step
    return tuple(stretches)
