"""What a run's record tells of the harness that died: how far it came, and how far its counts had come.

The ledger is the truth about what was decided. The timeline and the list of requests tell what was played,
asked and seen since, up to the last seconds.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic import ValidationError

from agent2rl.core.events import FileSeen, TimelineEvent
from agent2rl.core.llm import LlmExchange
from agent2rl.core.records import (
    Asset,
    ContaminationSummary,
    Ending,
    EvalResult,
    EvalScore,
    JudgeUsage,
    LedgerEntry,
    Limits,
    Record,
    RolloutCounts,
    Split,
    Submission,
)
from agent2rl.store.files import sha256_file
from agent2rl.store.heartbeat import BEAT_SECONDS
from agent2rl.store.paths import RunPaths, SubmissionPaths
from agent2rl.store.reader import read_events, read_results, read_usage
from agent2rl.store.revisions import Revision
from agent2rl.store.run_lock import Heartbeat

R = TypeVar("R", bound=Record)
Data = Mapping[str, Any]


class AgentEnd(Record):
    """The agent's time is over, and so it ended."""

    ending: Ending
    reason: str
    rounds: int
    """How often the agent was started."""
    agent_seconds: float
    """Of all its rounds together."""


@dataclass(frozen=True)
class MeterState:
    """What the meter of a world had counted."""

    claimed: Mapping[str, tuple[int, RolloutCounts]] = field(default_factory=dict)
    """By reporter: the number of its last report, and the sum of all."""
    reports: int = 0
    witnessed: RolloutCounts = field(default_factory=RolloutCounts)


@dataclass(frozen=True)
class ResumeState:
    """Nothing, for a run that begins."""

    opened_at: float | None = None
    resumed: int = 0
    """How often this has happened already."""
    dead_seconds: float = 0.0
    """In which no harness was at work, until the last one began."""
    last_alive: float = 0.0
    """The last sign of life of the harness that died, in seconds since the epoch."""
    assets: tuple[Asset, ...] = ()
    limits: Limits | None = None
    baselines: Mapping[Split, EvalScore] = field(default_factory=dict)
    started: bool = False
    used_seconds: float = 0.0
    """Of the agent's time."""
    rounds: int = 0
    """That the agent ended."""
    over: AgentEnd | None = None
    submissions: Mapping[int, Submission] = field(default_factory=dict)
    """As the ledger last told of them."""
    graded: frozenset[int] = frozenset()
    manifests: Mapping[int, str | None] = field(default_factory=dict)
    """The hashes of their manifests; None of those that have none."""
    pinned: frozenset[int] = frozenset()
    """Those whose code's revision is in the ledger."""
    contamination: ContaminationSummary | None = None
    heldout: EvalScore | None = None
    train_judge: JudgeUsage | None = None
    played: MeterState = field(default_factory=MeterState)
    exchanges: tuple[LlmExchange, ...] = ()
    files: tuple[FileSeen, ...] = ()
    """Weights and logs that were seen in the workspace."""
    revisions: int = 0
    events: Mapping[str, int] = field(default_factory=dict)
    """How many of each kind are on the timeline."""
    _results: Mapping[str, Data] = field(default_factory=dict)

    def read_recorded_results(
        self, paths: RunPaths, where: SubmissionPaths, split: Split
    ) -> EvalResult | None:
        """A grading whose answers are on record as they were written; None where there is none."""
        file = where.results_file(split)
        pin = self._results.get(paths.relative_name(file))
        try:
            if pin is None or "how" not in pin or sha256_file(file) != pin["sha256"]:
                return None
            results, missing = read_results(file), pin.get("missing", {})
            return EvalResult.model_validate({"results": results, "missing": missing, "how": pin["how"]})
        except (OSError, ValueError):
            return None

    def find_measurement(self, paths: RunPaths, where: SubmissionPaths, split: Split) -> Data | None:
        """Which run asked for the answers on record, and when; None where that is not noted."""
        return self._results.get(paths.relative_name(where.results_file(split)), {}).get("measured")


def read_resume_state(
    paths: RunPaths, entries: Sequence[LedgerEntry], last_beat: Heartbeat | None
) -> ResumeState:
    """From a ledger that holds; what else of the record cannot be read is passed over."""
    events = read_events(paths, [])
    noted = max([entry.time for entry in entries[-1:]] + [event.time for event in events[-1:]], default=0.0)
    last_alive = max(last_beat.time if last_beat else 0.0, noted)
    of: defaultdict[str, list[Data]] = defaultdict(list)
    for entry in entries:
        of[entry.kind].append(entry.data)
    told = [Submission.model_validate(one["submission"]) for one in of["submitted"] + of["graded"]]
    return ResumeState(
        opened_at=entries[0].time if entries else None,
        resumed=len(of["resumed"]),
        dead_seconds=sum(one["dead_seconds"] for one in of["resumed"]),
        last_alive=last_alive,
        assets=tuple(Asset.model_validate(one) for given in of["assets"][-1:] for one in given["assets"]),
        limits=Limits.model_validate(of["limits"][-1]) if of["limits"] else None,
        baselines={one["split"]: EvalScore.model_validate(one["score"]) for one in of["baseline"]},
        started=bool(of["started"]),
        used_seconds=_sum_used_seconds(entries, noted, last_beat),
        rounds=len(of["ended"]),
        over=next((AgentEnd.model_validate(one["over"]) for one in of["ended"] if one.get("over")), None),
        submissions={one.id: one for one in told},
        graded=frozenset(one["submission"]["id"] for one in of["graded"]),
        manifests={one["submission"]["id"]: one["manifest_sha256"] for one in of["submitted"]},
        pinned=frozenset(one["submission"] for one in of["revision_of"]),
        contamination=_parse_contamination(of["contamination"][-1]) if of["contamination"] else None,
        heldout=EvalScore.model_validate(of["heldout"][-1]["score"]) if of["heldout"] else None,
        train_judge=next(iter(_parse_events(events, "train_judge", JudgeUsage)[-1:]), None),
        played=_read_meter_state(events),
        exchanges=tuple(read_usage(paths, [])),
        files=tuple({(one.path, one.what): one for one in _parse_events(events, "file", FileSeen)}.values()),
        revisions=max([one.number for one in _parse_events(events, "revision", Revision)], default=0),
        events=Counter(event.kind for event in events),
        _results={one["file"]: one for one in of["results"]},
    )


def _sum_used_seconds(entries: Iterable[LedgerEntry], noted: float, beat: Heartbeat | None) -> float:
    """Of the agent's time: from each of its starts to the last sign of life after it."""
    used, started = 0.0, None
    for entry in entries:
        data: Data = entry.data
        if entry.kind == "started":
            used, started = data.get("used_seconds", 0.0), entry
        elif entry.kind == "resumed":
            used, started = data["used_seconds"], None
        elif entry.kind == "ended" and data.get("over"):
            used, started = data["over"]["agent_seconds"], None
    return used if started is None else used + _measure_lifetime(started, noted, beat)


def _measure_lifetime(started: LedgerEntry, noted: float, beat: Heartbeat | None) -> float:
    """By the monotonic clock where it is known: somebody may have set the time meanwhile."""
    began = started.data.get("monotonic")
    if not (beat and beat.monotonic and isinstance(began, float) and beat.monotonic >= began):
        return max(0.0, noted - started.time, beat.time - started.time if beat else 0.0)
    return beat.monotonic - began + min(max(0.0, noted - beat.time), BEAT_SECONDS)


def _parse_contamination(told: Data) -> ContaminationSummary:
    return ContaminationSummary(**{name: told[name] for name in ContaminationSummary.model_fields})


def _read_meter_state(events: Iterable[TimelineEvent]) -> MeterState:
    claimed: dict[str, tuple[int, RolloutCounts]] = {}
    reports, witnessed = 0, RolloutCounts()
    for event in events:
        if event.kind != "rollouts":
            continue
        data: Data = event.data
        new = RolloutCounts(**{name: data[name] for name in RolloutCounts.model_fields})
        if data["source"] == "claimed":
            reports += 1
            before = claimed.get(data["reporter"], (0, RolloutCounts()))[1]
            claimed[data["reporter"]] = (data["sequence"], before + new)
        else:
            witnessed = witnessed + new
    return MeterState(claimed, reports, witnessed)


def _parse_events(events: Iterable[TimelineEvent], kind: str, form: type[R]) -> list[R]:
    found = []
    for event in events:
        if event.kind == kind:
            with suppress(ValidationError):
                found.append(form.model_validate(event.data))
    return found
