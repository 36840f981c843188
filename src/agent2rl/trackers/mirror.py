"""Builds what trackers are sent for a run: metadata, metrics and files."""

import logging
import math
import re
import stat
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import get_args

from pydantic import JsonValue, ValidationError
from pydantic_core import from_json

from agent2rl import registry
from agent2rl.analysis.campaigns.run_digest import RunSpending, SpendingMeter
from agent2rl.analysis.findings import AttemptFindings, Findings, PrintedCurve
from agent2rl.analysis.recorded_run import RecordedRun, read_recorded_run
from agent2rl.core.errors import Agent2RLError, UserError
from agent2rl.core.grading_records import EvalScore, Submission, Verdict
from agent2rl.core.records import RunResult, RunSpec
from agent2rl.core.tracker import FinalSummary, MetricsRow, RunMirror, Scalar, Status, TrackedRun, Tracker
from agent2rl.record.paths import RunPaths
from agent2rl.record.reader import RunView, read_run
from agent2rl.record.untrusted_files import sanitize_line

logger = logging.getLogger(__name__)

# Names that every tracker accepts, from untrusted texts; and reasons of failures.

LONGEST = 100
LONGEST_REASON = 400


def sanitize_name(text: str, otherwise: str = "unnamed") -> str:
    """Return a name of letters, digits, `.`, `_` and `-`, never `.` or `..`, that all trackers accept."""
    return re.sub(r"[^A-Za-z0-9._-]+", "_", text).strip("._")[:LONGEST].strip("._") or otherwise


def describe_failure(error: Exception) -> str:
    """Say in one line why a tracker failed, without the login that a URL in it may contain."""
    reason = str(error) if isinstance(error, Agent2RLError) else f"{type(error).__name__}: {error}"
    return _redact_login(sanitize_line(" ".join(reason.split()), LONGEST_REASON))


def _redact_login(text: str) -> str:
    return re.sub(r"(?<=://)[^/\s]*@", "***@", text)


# Metrics: a row for the untouched model, for each verdict and for each training step.

SUBMISSION = "submission"
MOST_CURVES = 200
MOST_STEPS = 1 << 31


def make_rows(record: RecordedRun) -> list[MetricsRow]:
    """Return all rows that exist by now."""
    return [*_make_baseline_rows(record), *_make_verdict_rows(record), *_make_curve_rows(record)]


def count_verdicts(submissions: Sequence[Submission]) -> int:
    """Count the verdicts: without new ones there is nothing new to send."""
    return sum(each.verdict is not None for each in submissions)


def _make_baseline_rows(record: RecordedRun) -> Iterator[MetricsRow]:
    entries = [each for each in record.view.chain.entries if each.kind == "baseline"]
    if record.view.baseline and entries:
        yield MetricsRow(SUBMISSION, 0, entries[0].time, _flatten_score("baseline", record.view.baseline))


def _make_verdict_rows(record: RecordedRun) -> Iterator[MetricsRow]:
    meter, started = SpendingMeter(record), record.timeline.started or 0.0
    counts: Counter[str] = Counter()
    best: float | None = None
    for at, each in _sort_by_verdict_time(record):
        counts[str(each.verdict)] += 1
        values = {f"verdicts/{name}": float(counts[name]) for name in get_args(Verdict)}
        values |= _flatten_spending(meter.measure_at(at - started), record.timeline.seconds_at(at))
        if each.score:
            values |= _flatten_score("feedback", each.score)
            if each.improvement is not None:
                values["feedback/improvement"] = each.improvement
            if each.lineage not in ("copied", "foreign"):
                best = max(each.score.value, each.score.value if best is None else best)
        if best is not None:
            values["feedback/best"] = best
        yield MetricsRow(SUBMISSION, each.id, at, values)


def _sort_by_verdict_time(record: RecordedRun) -> list[tuple[float, Submission]]:
    """Sort by the verdict's time in the ledger, or by the submission's own times if the ledger is damaged."""
    times: dict[int, float] = {}
    for entry in record.view.chain.entries:
        fields = entry.data.get("submission") if entry.kind == "graded" else None
        if isinstance(fields, dict) and isinstance(number := fields.get("id"), int):
            times.setdefault(number, entry.time)
    verdicts = [
        (times.get(each.id, _estimate_verdict_time(each)), each)
        for each in record.view.submissions
        if each.verdict is not None
    ]
    return sorted(verdicts, key=lambda pair: (pair[0], pair[1].id))


def _estimate_verdict_time(submission: Submission) -> float:
    waits = (submission.freeze_seconds, submission.queue_seconds, submission.grading_seconds)
    return submission.accepted_at + sum(seconds or 0.0 for seconds in waits)


def _flatten_score(name: str, score: EvalScore) -> dict[str, float]:
    return {f"{name}/score": score.value, f"{name}/low": score.ci.low, f"{name}/high": score.ci.high}


def _flatten_spending(spent: RunSpending, seconds: float) -> dict[str, float]:
    amounts = {
        "wall_seconds": round(max(0.0, seconds), 3),
        "tokens": spent.tokens,
        "usd": spent.usd,
        "gpu_seconds": spent.gpu_seconds,
        "environment_steps": spent.environment_steps,
    }
    return {f"spent/{name}": float(value) for name, value in amounts.items() if value is not None}


def _make_curve_rows(record: RecordedRun) -> Iterator[MetricsRow]:
    started = record.timeline.started or 0.0
    curves_left = MOST_CURVES
    for attempt in _read_report_attempts(record.view.paths) if record.view.result else ():
        at = started + attempt.ended
        for name, curve in list(_name_curves(attempt))[:curves_left]:
            curves_left -= 1
            for step, value in _list_curve_points(curve):
                yield MetricsRow(f"{name}_step", step, at, {name: value})


def _read_report_attempts(paths: RunPaths) -> tuple[AttemptFindings, ...]:
    """Return the attempts of the report, if there is one that this version can read."""
    try:
        return Findings.model_validate(from_json(paths.report_json.read_bytes())["findings"]).attempts
    except (OSError, ValueError, KeyError, TypeError, ValidationError):
        return ()


def _name_curves(attempt: AttemptFindings) -> Iterator[tuple[str, PrintedCurve]]:
    """Name the curves like attempt-2/loss; a second curve of that name is attempt-2/loss-2."""
    seen: Counter[str] = Counter()
    for curve in attempt.curves:
        name = sanitize_name(curve.name, "curve")
        seen[name] += 1
        number = f"-{seen[name]}" if seen[name] > 1 else ""
        yield f"attempt-{attempt.number}/{name}{number}", curve


def _list_curve_points(curve: PrintedCurve) -> Iterator[tuple[int, float]]:
    """Yield finite points, by the training's own steps if these are valid, else numbered."""
    own = [step for step, _ in curve.points]
    valid = all(float(step).is_integer() and 0 <= step < MOST_STEPS for step in own)
    valid = valid and len(set(own)) == len(own)
    for place, (step, value) in enumerate(curve.points):
        if value is not None and math.isfinite(value):
            yield (int(step) if valid else place), value


# Metadata: how a run was set up and how it ended.

LONGEST_VALUE = 500
LONGEST_GROUP = 200


def describe_run(view: RunView, group: str | None = None) -> TrackedRun:
    entries = view.chain.entries
    began = entries[0].time if entries else view.result.started_at if view.result else None
    return TrackedRun(
        id=sanitize_name(view.paths.run_id),
        group=sanitize_line(group or view.spec.task, LONGEST_GROUP),
        began_at=view.paths.spec.stat().st_mtime if began is None else began,
        config=dict(_flatten_config(view.spec.model_dump(mode="json"))),
        tags=_make_tags(view.spec),
    )


def describe_end(view: RunView) -> FinalSummary:
    result, entries = view.result, view.chain.entries
    ended = result.ended_at if result else entries[-1].time if entries else view.paths.spec.stat().st_mtime
    details = {"reason": sanitize_line(result.reason, LONGEST_VALUE)} if result and result.reason else {}
    details |= {"contaminated": "yes"} if view.contaminated else {}
    return FinalSummary(
        status=_classify_status(result),
        ended_at=ended,
        tags={"ending": result.ending if result else view.state, **details},
        numbers=_collect_final_numbers(result) if result else {},
        files=dict(_list_uploaded_files(view.paths)),
    )


def _flatten_config(value: JsonValue, name: str = "") -> Iterator[tuple[str, Scalar]]:
    """Flatten to names like budget.wall_seconds; unset values are left out."""
    if isinstance(value, dict):
        for key, below in value.items():
            yield from _flatten_config(below, f"{name}.{sanitize_name(key)}" if name else sanitize_name(key))
    elif isinstance(value, list):
        for place, below in enumerate(value):
            yield from _flatten_config(below, f"{name}.{place}")
    elif value is not None:
        yield name, sanitize_line(value, LONGEST_VALUE) if isinstance(value, str) else value


def _make_tags(spec: RunSpec) -> Mapping[str, str]:
    tags = {name: getattr(spec, name) for name in ("task", "agent", "driver", "model", "mode", "protocol")}
    if spec.task in registry.list_names("tasks"):  # do not import a third party's task just for a tag
        with suppress(Exception):
            tags["level"] = registry.find_task(spec.task).level
    return {
        name: sanitize_line(str(value), LONGEST_VALUE) for name, value in tags.items() if value is not None
    }


def _classify_status(result: RunResult | None) -> Status:
    if result is None or result.ending == "interrupted":
        return "stopped"
    return "finished" if result.ended_well else "failed"


def _collect_final_numbers(result: RunResult) -> dict[str, float]:
    """Return the final numbers on the ranking split. Unknown ones are left out: no number means failure."""
    before = result.baseline_heldout if result.best_heldout else result.baseline
    after = result.best_heldout or (result.best.score if result.best else None)
    compared = result.heldout
    usage, clock = result.usage, result.clock
    numbers: dict[str, float | None] = {
        "final/score": result.score,
        **(_make_interval_numbers("final/score", after) if result.score is not None else {}),
        "final/baseline": before.value if before else None,
        "final/improvement": result.improvement,
        "final/improvement_low": compared.ci.low if compared else None,
        "final/improvement_high": compared.ci.high if compared else None,
        "final/optimism_gap": result.optimism_gap,
        "final/submissions": result.submissions,
        "final/scored": result.scored,
        "final/wall_seconds": clock.agent if clock else None,
        "final/tokens": usage.tokens.total if usage else None,
        "final/usd": usage.usd if usage else None,
    }
    return {name: float(value) for name, value in numbers.items() if value is not None}


def _make_interval_numbers(name: str, score: EvalScore | None) -> dict[str, float | None]:
    return {f"{name}_low": score.ci.low, f"{name}_high": score.ci.high} if score else {}


def _list_uploaded_files(paths: RunPaths) -> Iterator[tuple[str, Path]]:
    """Yield plain files only, so that a symlink in an untrusted directory cannot lead out of it."""
    candidates = [paths.spec, paths.result, paths.ledger]
    if _has_file_type(paths.report, stat.S_ISDIR):
        candidates += [paths.report_json, paths.report_text, paths.report_page]
        candidates += sorted(paths.figures.iterdir()) if _has_file_type(paths.figures, stat.S_ISDIR) else []
    for path in candidates:
        if _has_file_type(path, stat.S_ISREG) and re.fullmatch(r"[\w.-]+", path.name):
            yield paths.relative_name(path), path


def _has_file_type(path: Path, kind: Callable[[int], bool]) -> bool:
    with suppress(OSError):
        return kind(path.lstat().st_mode)
    return False


# Sending a run to a tracker.


def require_tracker(name: str) -> Tracker:
    """Return the tracker; raise UserError if its package is missing."""
    tracker = registry.find_tracker(name)
    if tracker.needs and find_spec(tracker.needs) is None:
        raise UserError(
            f"Tracking with {name} needs the package {tracker.needs}, which is not installed.",
            f"Install it: pip install 'agent2rl[{tracker.needs}]'.",
        )
    return tracker


def mirror_run(paths: RunPaths, tracker: Tracker, group: str | None = None) -> str:
    """Send the current state of a run and return where to view it."""
    with tracker.open(describe_run(read_run(paths), group)) as mirror:
        send_run_state(paths, mirror)
        return mirror.where


def send_run_state(paths: RunPaths, mirror: RunMirror) -> None:
    record = read_recorded_run(paths)
    rows = make_rows(record)
    logger.debug("run %s: %d rows, %s", paths.run_id, len(rows), record.view.state)
    mirror.send(rows)
    if record.view.state != "running":
        mirror.finish(describe_end(record.view))
