"""Recover a run after its harness crashed: read how far it came, and repair half-written files.

The ledger is authoritative for decisions. The timeline and the list of requests show what happened since, up
to the last seconds. Every repair can be repeated.

The agent's workspace and HOME are not touched. Damage that no crash causes is refused.
"""

import logging
import os
import shutil
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from agent2rl.core.errors import UserError
from agent2rl.core.events import EARLIER_SOURCES, FileSeen, TimelineEvent
from agent2rl.core.grading_records import (
    ContaminationSummary,
    EvalResult,
    EvalScore,
    JudgeUsage,
    Split,
    Submission,
)
from agent2rl.core.llm import LlmExchange
from agent2rl.core.records import (
    Asset,
    Ending,
    Isolation,
    LedgerEntry,
    Limits,
    Record,
    RolloutCounts,
    RunResult,
    RunSpec,
)
from agent2rl.record import ledger
from agent2rl.record.files import (
    canonical_json_line,
    cut_torn_line,
    read_regular_file,
    remove_tree,
    sha256_file,
    sync_directory,
    write_record,
)
from agent2rl.record.heartbeat import HEARTBEAT_SECONDS
from agent2rl.record.paths import RunPaths, SubmissionPaths
from agent2rl.record.reader import read_events, read_results, read_usage
from agent2rl.record.revisions import Revision
from agent2rl.record.run_lock import Heartbeat

logger = logging.getLogger(__name__)

# The state of a run when its harness crashed.

R = TypeVar("R", bound=Record)
Data = Mapping[str, Any]


class AgentEnd(Record):
    """How the agent's time ended."""

    ending: Ending
    reason: str
    rounds: int
    """How often the agent was started."""
    agent_seconds: float
    """Total of all rounds."""
    submission_seconds: float | None = None
    """Part of it in which the harness held a submission. None in runs of earlier versions."""
    gpu_seconds: float | None = None
    """The number of its GPUs times its wall time; None without a GPU."""


@dataclass(frozen=True)
class MeterState:
    """The counts of a world's rollout meter."""

    claimed: Mapping[str, tuple[int, RolloutCounts]] = field(default_factory=dict)
    """By reporter: the number of its last report, and the sum of all its reports."""
    reports: int = 0
    served: RolloutCounts = field(default_factory=RolloutCounts)
    replayed: RolloutCounts = field(default_factory=RolloutCounts)
    refuted: RolloutCounts = field(default_factory=RolloutCounts)


@dataclass(frozen=True)
class ResumeState:
    """What the record of a crashed run contains; empty for a new run."""

    opened_at: float | None = None
    resumed: int = 0
    """How often the run has been resumed."""
    dead_seconds: float = 0.0
    """Time without a harness, until the last start."""
    last_alive: float = 0.0
    """When the crashed harness was last alive, in seconds since the epoch."""
    assets: tuple[Asset, ...] = ()
    limits: Limits | None = None
    isolation: Isolation | None = None
    baselines: Mapping[Split, EvalScore] = field(default_factory=dict)
    started: bool = False
    used_seconds: float = 0.0
    """Used part of the agent's wall time."""
    submission_seconds: float = 0.0
    """Part of it in which the harness held a submission."""
    gpu_seconds: float = 0.0
    """Used GPU time."""
    rounds: int = 0
    """Finished rounds of the agent."""
    agent_end: AgentEnd | None = None
    submissions: Mapping[int, Submission] = field(default_factory=dict)
    """The last record of each submission in the ledger."""
    graded: frozenset[int] = frozenset()
    manifests: Mapping[int, str | None] = field(default_factory=dict)
    """Hashes of the submissions' manifests; None for a submission without one."""
    pinned: frozenset[int] = frozenset()
    """Submissions with a code revision in the ledger."""
    contamination: ContaminationSummary | None = None
    heldout: EvalScore | None = None
    heldout_ablation: str | None = None
    """Name of the folder of the ablation that was graded on the held-out split."""
    train_judge: JudgeUsage | None = None
    played: MeterState = field(default_factory=MeterState)
    exchanges: tuple[LlmExchange, ...] = ()
    files: tuple[FileSeen, ...] = ()
    """Weights and logs seen in the workspace."""
    revisions: int = 0
    events: Mapping[str, int] = field(default_factory=dict)
    """Number of events of each kind on the timeline."""
    _results: Mapping[str, Data] = field(default_factory=dict)

    def read_recorded_results(
        self, paths: RunPaths, where: SubmissionPaths, split: Split
    ) -> EvalResult | None:
        """Return the recorded results of a grading if they are intact, else None."""
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
        """Return which run measured the recorded results and when; None if that is not recorded."""
        return self._results.get(paths.relative_name(where.results_file(split)), {}).get("measured")


def read_resume_state(
    paths: RunPaths, entries: Sequence[LedgerEntry], last_heartbeat: Heartbeat | None
) -> ResumeState:
    """Read the state from an intact ledger; other unreadable parts of the record are skipped."""
    events = read_events(paths, [])
    noted = max([entry.time for entry in entries[-1:]] + [event.time for event in events[-1:]], default=0.0)
    last_alive = max(last_heartbeat.time if last_heartbeat else 0.0, noted)
    of: defaultdict[str, list[Data]] = defaultdict(list)
    for entry in entries:
        of[entry.kind].append(entry.data)
    # Of a submission's several records the last one counts, so the kinds are in the order of its
    # life.
    submissions = [
        Submission.model_validate(one["submission"])
        for kind in ("submitted", "graded", "dropped")
        for one in of[kind]
    ]
    used = _sum_used_time(entries, noted, last_heartbeat)
    return ResumeState(
        opened_at=entries[0].time if entries else None,
        resumed=len(of["resumed"]),
        dead_seconds=sum(one["dead_seconds"] for one in of["resumed"]),
        last_alive=last_alive,
        assets=tuple(Asset.model_validate(one) for given in of["assets"][-1:] for one in given["assets"]),
        limits=Limits.model_validate(of["limits"][-1]) if of["limits"] else None,
        isolation=Isolation.model_validate(of["isolation"][-1]) if of["isolation"] else None,
        baselines={one["split"]: EvalScore.model_validate(one["score"]) for one in of["baseline"]},
        started=bool(of["started"]),
        used_seconds=used.wall_seconds,
        submission_seconds=used.submission_seconds,
        gpu_seconds=used.gpu_seconds,
        rounds=len(of["ended"]),
        agent_end=next(
            (AgentEnd.model_validate(one["over"]) for one in of["ended"] if one.get("over")), None
        ),
        submissions={one.id: one for one in submissions},
        graded=frozenset(one["submission"]["id"] for one in of["graded"]),
        manifests={one["submission"]["id"]: one["manifest_sha256"] for one in of["submitted"]},
        pinned=frozenset(one["submission"] for one in of["revision_of"]),
        contamination=_parse_contamination(of["contamination"][-1]) if of["contamination"] else None,
        heldout=EvalScore.model_validate(of["heldout"][-1]["score"]) if of["heldout"] else None,
        heldout_ablation=of["heldout"][-1].get("ablation") if of["heldout"] else None,
        train_judge=next(iter(_parse_events(events, "train_judge", JudgeUsage)[-1:]), None),
        played=_read_meter_state(events),
        exchanges=tuple(read_usage(paths, [])),
        files=tuple({(one.path, one.what): one for one in _parse_events(events, "file", FileSeen)}.values()),
        revisions=max([one.number for one in _parse_events(events, "revision", Revision)], default=0),
        events=Counter(event.kind for event in events),
        _results={one["file"]: one for one in of["results"]},
    )


@dataclass(frozen=True)
class _UsedTime:
    wall_seconds: float = 0.0
    submission_seconds: float = 0.0
    gpu_seconds: float = 0.0

    @classmethod
    def from_entry(cls, data: Data, wall: str = "used_seconds") -> "_UsedTime":
        """Read the time that an entry states. Entries of earlier versions state only the wall time."""
        return cls(data.get(wall, 0.0), data.get("submission_seconds") or 0.0, data.get("gpu_seconds") or 0.0)


def _sum_used_time(entries: Sequence[LedgerEntry], noted: float, beat: Heartbeat | None) -> _UsedTime:
    """Return the used part of the agent's time: from each start to the last heartbeat after it."""
    used, started = _UsedTime(), None
    for entry in entries:
        data: Data = entry.data
        # A start states what was used before it, so earlier starts need not be added up.
        if entry.kind == "started":
            used, started = _UsedTime.from_entry(data), entry
        elif entry.kind == "resumed":
            used, started = _UsedTime.from_entry(data), None
        elif entry.kind == "ended" and data.get("over"):
            used, started = _UsedTime.from_entry(data["over"], "agent_seconds"), None
    if started is None:
        return used
    seconds = _measure_lifetime(started, noted, beat)
    held = _measure_held_seconds(entries, started, started.time + seconds)
    gpus: Any = started.data.get("gpus", 0)
    return _UsedTime(
        used.wall_seconds + seconds,
        # Submissions have times of day, which somebody may have set. They never exceed the used
        # time.
        used.submission_seconds + min(held, seconds),
        used.gpu_seconds + gpus * seconds,
    )


def _measure_held_seconds(entries: Sequence[LedgerEntry], started: LedgerEntry, until: float) -> float:
    """Return the time since a start in which the harness held at least one submission.

    A submission without a verdict was held until the end. One that was not recorded yet is not known.
    """
    intervals: dict[int, tuple[float, float]] = {}
    for entry in entries[entries.index(started) :]:
        data: Data = entry.data
        if entry.kind == "submitted":
            intervals[data["submission"]["id"]] = data["submission"]["accepted_at"], until
        elif entry.kind == "graded" and data["submission"]["id"] in intervals:
            intervals[data["submission"]["id"]] = data["submission"]["accepted_at"], min(entry.time, until)
    return measure_union_seconds(intervals.values(), started.time)


def measure_union_seconds(intervals: Iterable[tuple[float, float]], since: float) -> float:
    """Return the time since `since` that lies in at least one interval."""
    total, covered = 0.0, since
    for begin, end in sorted(intervals):
        total += max(0.0, end - max(begin, covered))
        covered = max(covered, end)
    return total


def _measure_lifetime(started: LedgerEntry, noted: float, beat: Heartbeat | None) -> float:
    """Measure by the monotonic clock if possible, because the system time may have been changed."""
    began = started.data.get("monotonic")
    if not (beat and beat.monotonic and isinstance(began, float) and beat.monotonic >= began):
        return max(0.0, noted - started.time, beat.time - started.time if beat else 0.0)
    # A record after the last beat shows that the harness lived on, but for one beat at most.
    return beat.monotonic - began + min(max(0.0, noted - beat.time), HEARTBEAT_SECONDS)


def _parse_contamination(summary: Data) -> ContaminationSummary:
    return ContaminationSummary(**{name: summary[name] for name in ContaminationSummary.model_fields})


def _read_meter_state(events: Iterable[TimelineEvent]) -> MeterState:
    claimed: dict[str, tuple[int, RolloutCounts]] = {}
    reports = 0
    sums = {source: RolloutCounts() for source in ("served", "replayed", "refuted")}
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
            source = EARLIER_SOURCES.get(data["source"]) or data["source"]
            sums[source] = sums[source] + new
    return MeterState(claimed, reports, **sums)


def _parse_events(events: Iterable[TimelineEvent], kind: str, form: type[R]) -> list[R]:
    records = []
    for event in events:
        if event.kind == kind:
            with suppress(ValidationError):
                records.append(form.model_validate(event.data))
    return records


# Repair of half-written files. Each step can be repeated.


def repair_line_files(paths: RunPaths) -> tuple[tuple[LedgerEntry, ...], tuple[str, ...]]:
    """Repair files with one record per line; return the ledger's entries and what was repaired."""
    reading, done = ledger.repair_ledger(paths.ledger, paths.ledger_head)
    if reading.fault:
        raise UserError(
            f"The run {paths.run_id} cannot be resumed: {reading.fault}.",
            "A crash does not cause this. Restore the run directory from a copy, or start a new run.",
        )
    for path in (paths.events, paths.usage, paths.network):
        if cut_torn_line(path):
            done += (f"a line of {path.name} that was cut off is gone",)
    if missing := _add_missing_events(paths, reading.entries):
        done += (f"{missing} ledger records that the timeline lacked were added to it",)
    return reading.entries, done


def _add_missing_events(paths: RunPaths, entries: Sequence[LedgerEntry]) -> int:
    """Add ledger records that are missing on the timeline, which is written second; return their number."""
    there = (
        Counter(event.kind for event in read_events(paths, [])) if paths.events.exists() else Counter[str]()
    )
    seen: Counter[str] = Counter()
    added = 0
    with paths.events.open("a", encoding="utf-8") as file:
        for entry in entries:
            seen[entry.kind] += 1
            if seen[entry.kind] > there[entry.kind]:
                file.write(canonical_json_line(ledger.make_timeline_event(entry)))
                added += 1
    return added


def _end_last_line(log: Path) -> None:
    """End the last line of the agent's log, so that the next output starts a new line."""
    with log.open("a+b") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 1))
        if file.read(1) not in (b"", b"\n"):
            file.write(b"\n")


def repair_files(paths: RunPaths, resume_state: ResumeState) -> Iterator[str]:
    """Make the files match the ledger, and yield what was done."""
    logger.debug("Repairing the files of %s", paths.run_id)
    for path in sorted(paths.submissions.glob("*")):
        if path.name not in map(str, resume_state.submissions):
            remove_tree(path)
            yield f"Removed {paths.relative_name(path)}: it was not fully recorded"
    for submission in resume_state.submissions.values():
        where = paths.submission_paths(submission.id)
        where.root.mkdir(parents=True, exist_ok=True)
        if _read_submission(paths, submission.id) != submission:
            write_record(where.record, submission)
            yield f"{paths.relative_name(where.record)} was written"
        if not submission.kept:
            shutil.rmtree(where.model, ignore_errors=True)
    remove_half_written(paths)
    # No agent has been in there yet, so all of it is made again.
    if not resume_state.started:
        for path in (paths.workspace, paths.revisions, paths.scratch):
            remove_tree(path)
        paths.agent_log.unlink(missing_ok=True)
        return
    if not resume_state.agent_end:
        _end_last_line(paths.agent_log)
    for path in paths.scratch.glob("*"):
        if path != paths.agent_scratch:
            remove_tree(path)
    # A lock of git's outlives a crash, and nobody could write a revision any more.
    for lock in paths.revisions.rglob("*.lock"):
        lock.unlink()


def remove_half_written(paths: RunPaths) -> None:
    """Remove temporary files that were never moved to their final place."""
    for folder in (paths.root, paths.baseline.root, *paths.submissions.glob("*")):
        for half in folder.glob(".*.new"):
            half.unlink()


def _read_submission(paths: RunPaths, number: int) -> Submission | None:
    try:
        return Submission.model_validate_json(read_regular_file(paths.submission_paths(number).record))
    except (OSError, ValidationError):
        return None


def read_spec(paths: RunPaths) -> RunSpec:
    try:
        return RunSpec.model_validate_json(read_regular_file(paths.spec))
    except (OSError, ValidationError) as error:
        raise UserError(f"{paths.spec} cannot be read ({type(error).__name__}).") from error


def restore_result(paths: RunPaths) -> RunResult | None:
    """Return the result of a finished run. Move a pending result into place if the ledger has its hash."""
    if not paths.result.exists():
        entries, _ = repair_line_files(paths)
        if not entries or entries[-1].kind != "closed":
            return None
        pending = paths.pending_result
        if not pending.exists() or sha256_file(pending) != entries[-1].data["result_sha256"]:
            raise UserError(
                f"The run {paths.run_id} is finished, but its result was removed or changed.",
                "`agent2rl show` shows the rest of the record.",
            )
        pending.replace(paths.result)
        sync_directory(paths.root)
        remove_tree(paths.scratch)
    try:
        return RunResult.model_validate_json(read_regular_file(paths.result))
    except (OSError, ValidationError) as error:
        raise UserError(f"{paths.result} cannot be read ({type(error).__name__}).") from error
