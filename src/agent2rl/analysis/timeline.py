"""The events of a run, sorted by what they tell. Times are seconds of the agent's time (`alive`)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Literal, TypeVar, get_args

from pydantic import ValidationError

from agent2rl.analysis.alive import AgentTime
from agent2rl.analysis.attempts import Ran, Weights
from agent2rl.analysis.findings import TimeSplit
from agent2rl.core.events import Asked, Began, Event, FileSeen, Gone, Sample
from agent2rl.core.record import Record
from agent2rl.core.records import Counts, Rollouts
from agent2rl.store.revisions import Revision

BUSY_CORES, BUSY_GPU = 0.5, 0.1
"""From here on something is computed: what a program that only waits and writes does not reach."""
CODING_SECONDS = 30.0
"""Between two questions to its driver an agent acts; what takes longer, and computes nothing, is waiting."""
CHANGE_SECONDS = 2.0
"""Before a revision is taken, its change is made."""

Doing = Literal["training", "grading", "stalled", "thinking", "coding", "idle"]
"""The fields of `findings.TimeSplit`."""
Piece = tuple[float, float]
"""From, to."""
R = TypeVar("R", bound=Record)


@dataclass(frozen=True)
class Stretch:
    """A time in which an agent did one thing."""

    kind: Doing
    began: float
    ended: float


@dataclass(frozen=True)
class Timeline:
    started: float | None
    """Seconds since the epoch; None where the agent never started."""
    seconds: float
    """The agent's time: to its end, or as far as the record goes."""
    time: AgentTime | None = None
    """None: the agent was started once."""
    samples: tuple[tuple[float, Sample], ...] = ()
    processes: tuple[Ran, ...] = ()
    files: tuple[tuple[float, FileSeen], ...] = ()
    """Weights and logs, whenever they changed."""
    played: tuple[tuple[float, Rollouts], ...] = ()
    """Each with what is new since the one before."""
    requests: tuple[tuple[float, Asked], ...] = ()
    """By their beginning."""
    revisions: tuple[tuple[float, Revision], ...] = ()
    graded: tuple[Piece, ...] = ()
    """From a submission to its verdict."""

    def at(self, time: float) -> float:
        """A time, in seconds since the epoch, as the agent's time."""
        return self.time.at(time) if self.time else time - (self.started or 0.0)

    @cached_property
    def weights(self) -> tuple[Weights, ...]:
        return tuple(Weights(seen.path, at, seen.bytes) for at, seen in self.files if seen.what == "weights")

    @cached_property
    def logs(self) -> tuple[tuple[float, FileSeen], ...]:
        return tuple((at, seen) for at, seen in self.files if seen.what == "log")

    @cached_property
    def stretches(self) -> tuple[Stretch, ...]:
        """What the agent did from moment to moment; each moment is the first of these that fits."""
        claims: list[tuple[Doing, list[Piece]]] = [
            ("training", self._training()),
            ("grading", list(self.graded)),
            ("stalled", self._stalled()),
            ("thinking", [(at, at + asked.seconds) for at, asked in self.requests]),
            ("coding", self._coding()),
        ]
        return _laid(claims, self.seconds)

    def split(self) -> TimeSplit | None:
        """None where nobody saw what the agent's processes did, as in records of earlier versions."""
        if self.started is None or not self.samples:
            return None
        sums: dict[str, float] = dict.fromkeys(get_args(Doing), 0.0)
        for stretch in self.stretches:
            sums[stretch.kind] += stretch.ended - stretch.began
        return TimeSplit(**{what: round(seconds, 3) for what, seconds in sums.items()})

    def _training(self) -> list[Piece]:
        """A GPU is the grader's while something is graded."""
        found = []
        for at, sample in self.samples:
            piece = (at - sample.seconds, at)
            gpu = any((each.busy or 0.0) >= BUSY_GPU for each in sample.gpus) and not _overlaps(
                piece, self.graded
            )
            if sample.cores >= BUSY_CORES or gpu:
                found.append(piece)
        return found

    def _stalled(self) -> list[Piece]:
        """A request that failed, and the wait before the same was asked again."""
        found = []
        for at, asked in self.requests:
            if asked.stalled_seconds:
                failed = asked.outcome != "answered"
                end = at + asked.seconds if failed else at
                found.append((end - asked.stalled_seconds, end))
        return found

    def _coding(self) -> list[Piece]:
        found = [(at - CHANGE_SECONDS, at) for at, _ in self.revisions]
        ends = [(at, at + asked.seconds) for at, asked in self.requests]
        for (_, end), (begin, _) in pairwise(ends):
            if 0 < begin - end <= CODING_SECONDS:
                found.append((end, begin))
        return found


def read(events: Sequence[Event]) -> Timeline:
    """From what the recorder noted. What has another form than it should is passed over."""
    time = AgentTime.of(events)
    if not time.starts:
        return Timeline(None, 0.0)
    began = time.starts[0][0]
    return Timeline(
        started=began,
        seconds=max(0.0, time.at(_end(events))),
        time=time,
        samples=tuple((time.at(event.time), sample) for event, sample in _of(events, "sample", Sample)),
        processes=_processes(events, time),
        files=tuple(
            (time.at(event.time), seen)
            for event, seen in _of(events, "file", FileSeen)
            if event.time >= began
        ),
        played=tuple(_played(events, time)),
        requests=tuple(
            sorted(
                ((time.at(asked.began), asked) for _, asked in _of(events, "request", Asked)),
                key=lambda pair: pair[0],
            )
        ),
        revisions=tuple((time.at(event.time), each) for event, each in _of(events, "revision", Revision)),
        graded=tuple(_graded(events, time)),
    )


def _end(events: Sequence[Event]) -> float:
    """When the agent ended for the last time, or as far as the record goes where it was started again."""
    turns = [event for event in events if event.kind in ("started", "continued", "ended")]
    over = turns[-1].kind == "ended"
    return turns[-1].time if over else max(event.time for event in events)


def _of(events: Iterable[Event], kind: str, form: type[R]) -> Iterable[tuple[Event, R]]:
    for event in events:
        if event.kind == kind:
            try:
                yield event, form.model_validate(event.data)
            except ValidationError:
                continue


def _processes(events: Sequence[Event], time: AgentTime) -> tuple[Ran, ...]:
    gone = {(each.pid, each.began): (event.time, each) for event, each in _of(events, "left", Gone)}
    found: dict[tuple[int, float], Ran] = {}
    for _, began in _of(events, "began", Began):
        name = (began.pid, began.began)
        gone_at, end = gone.get(name, (None, None))
        found[name] = Ran(
            pid=began.pid,
            command=began.command,
            began=time.at(began.began),
            ended=time.at(gone_at) if gone_at is not None else time.end(began.began),
            cpu_seconds=end.cpu_seconds if end else 0.0,
            peak_bytes=end.peak_bytes if end else 0,
        )
    return tuple(found.values())


def _played(events: Iterable[Event], time: AgentTime) -> Iterable[tuple[float, Rollouts]]:
    for event in events:
        if event.kind != "rollouts":
            continue
        names = set(Counts.model_fields)
        counts = {name: value for name, value in event.data.items() if name in names}
        try:
            new = Counts.model_validate(counts)
        except ValidationError:
            continue
        claimed = event.data.get("source") == "claimed"
        yield time.at(event.time), Rollouts(claimed=new) if claimed else Rollouts(witnessed=new)


def _graded(events: Iterable[Event], time: AgentTime) -> Iterable[Piece]:
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
                yield time.at(waiting.pop(number)), time.at(event.time)


def _overlaps(piece: Piece, others: Iterable[Piece]) -> bool:
    return any(began < piece[1] and ended > piece[0] for began, ended in others)


def _laid(claims: Sequence[tuple[Doing, list[Piece]]], end: float) -> tuple[Stretch, ...]:
    """Lay claims over the time from 0 to `end`: an earlier one goes before a later one, idle is the rest."""
    changes: list[tuple[float, int, int]] = []
    for rank, (_, pieces) in enumerate(claims):
        for began, ended in pieces:
            low, high = max(0.0, began), min(end, ended)
            if high > low:
                changes += [(low, rank, 1), (high, rank, -1)]
    open_now = [0] * len(claims)
    found: list[Stretch] = []
    at = 0.0
    for time, rank, step in [*sorted(changes), (end, 0, 0)]:
        if time > at:
            fits = [claim for (claim, _), count in zip(claims, open_now, strict=True) if count]
            what: Doing = fits[0] if fits else "idle"
            if found and found[-1].kind == what:
                found[-1] = Stretch(what, found[-1].began, time)
            else:
                found.append(Stretch(what, at, time))
            at = time
        open_now[rank] += step
    return tuple(found)
