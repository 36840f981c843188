"""A run as rows of numbers: one for the untouched model, one for each verdict, one for each training step.

The order is that in which they came about, so that the rows of a run that goes on begin as they did before.
Curves come last, when no more verdicts can: the report finds them.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import get_args

from pydantic import ValidationError
from pydantic_core import from_json

from agent2rl.analysis.campaigns.spending import RunSpending, SpendingMeter
from agent2rl.analysis.findings import AttemptFindings, Findings, PrintedCurve
from agent2rl.analysis.recorded_run import RecordedRun
from agent2rl.core.records import EvalScore, Submission, Verdict
from agent2rl.core.tracker import MetricsRow
from agent2rl.store.paths import RunPaths
from agent2rl.tracking.tracker_names import sanitize_name

SUBMISSION = "submission"
MOST_CURVES = 200
MOST_STEPS = 1 << 31


def make_rows(record: RecordedRun) -> list[MetricsRow]:
    """All that there are by now."""
    return [*_make_baseline_rows(record), *_make_verdict_rows(record), *_make_curve_rows(record)]


def count_verdicts(submissions: Sequence[Submission]) -> int:
    """How many there are: where there are no more than before, there is nothing new to tell."""
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
    """By the ledger's time of each verdict; by the submission's own account where the ledger is damaged."""
    noted: dict[int, float] = {}
    for entry in record.view.chain.entries:
        said = entry.data.get("submission") if entry.kind == "graded" else None
        if isinstance(said, dict) and isinstance(number := said.get("id"), int):
            noted.setdefault(number, entry.time)
    found = [
        (noted.get(each.id, _estimate_verdict_time(each)), each)
        for each in record.view.submissions
        if each.verdict is not None
    ]
    return sorted(found, key=lambda pair: (pair[0], pair[1].id))


def _estimate_verdict_time(submission: Submission) -> float:
    waits = (submission.freeze_seconds, submission.queue_seconds, submission.grading_seconds)
    return submission.accepted_at + sum(seconds or 0.0 for seconds in waits)


def _flatten_score(name: str, score: EvalScore) -> dict[str, float]:
    return {f"{name}/score": score.value, f"{name}/low": score.ci.low, f"{name}/high": score.ci.high}


def _flatten_spending(spent: RunSpending, seconds: float) -> dict[str, float]:
    found = {
        "wall_seconds": round(max(0.0, seconds), 3),
        "tokens": spent.tokens,
        "usd": spent.usd,
        "gpu_seconds": spent.gpu_seconds,
        "environment_steps": spent.environment_steps,
    }
    return {f"spent/{name}": float(value) for name, value in found.items() if value is not None}


def _make_curve_rows(record: RecordedRun) -> Iterator[MetricsRow]:
    started = record.timeline.started or 0.0
    left = MOST_CURVES
    for attempt in _read_report_attempts(record.view.paths) if record.view.result else ():
        at = started + attempt.ended
        for name, curve in list(_name_curves(attempt))[:left]:
            left -= 1
            for step, value in _list_curve_points(curve):
                yield MetricsRow(f"{name}_step", step, at, {name: value})


def _read_report_attempts(paths: RunPaths) -> tuple[AttemptFindings, ...]:
    """Those of the report, where there is one that this version can read."""
    try:
        return Findings.model_validate(from_json(paths.report_json.read_bytes())["findings"]).attempts
    except (OSError, ValueError, KeyError, TypeError, ValidationError):
        return ()


def _name_curves(attempt: AttemptFindings) -> Iterator[tuple[str, PrintedCurve]]:
    """attempt-2/loss; a second curve of that name is attempt-2/loss-2."""
    seen: Counter[str] = Counter()
    for curve in attempt.curves:
        name = sanitize_name(curve.name, "curve")
        seen[name] += 1
        number = f"-{seen[name]}" if seen[name] > 1 else ""
        yield f"attempt-{attempt.number}/{name}{number}", curve


def _list_curve_points(curve: PrintedCurve) -> Iterator[tuple[int, float]]:
    """By the training's own steps where these can be steps, else counted; only what is a number."""
    own = [step for step, _ in curve.points]
    fit = all(float(step).is_integer() and 0 <= step < MOST_STEPS for step in own)
    fit = fit and len(set(own)) == len(own)
    for place, (step, value) in enumerate(curve.points):
        if value is not None and math.isfinite(value):
            yield (int(step) if fit else place), value
