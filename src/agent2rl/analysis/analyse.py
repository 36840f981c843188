"""Analyse the record of a run. Pure: the same directory gives the same findings."""

from collections.abc import Sequence
from itertools import pairwise

from agent2rl.analysis import (
    attempt_training,
    claim_check,
    failures,
    gain,
    generalisation,
    logs,
    mode_compliance,
    summary,
)
from agent2rl.analysis.attempt_spans import split_attempts
from agent2rl.analysis.attempts import AttemptSpan
from agent2rl.analysis.failures import AttemptContext
from agent2rl.analysis.findings import (
    AttemptFindings,
    AttemptOutcome,
    EvidenceBook,
    Findings,
    Gain,
    PrintedCurve,
    ProcessMetrics,
    RouteVerdict,
)
from agent2rl.analysis.recorded_run import RecordedRun
from agent2rl.analysis.timeline import AgentTimeline
from agent2rl.analysis.training_logs import read_trainings
from agent2rl.core.events import TimelineEvent
from agent2rl.core.grading_records import EvalScore, Submission
from agent2rl.record.untrusted_files import sanitize_line

# Process metrics: the published ones, and our own.


def measure_run(
    submissions: Sequence[Submission],
    baseline: EvalScore | None,
    timeline: AgentTimeline,
    budget_seconds: float,
) -> ProcessMetrics:
    """Return the process metrics of a run.

    Times are those of verdicts, as in the published code: the earliest that the agent could know them.
    They are None if the agent's start was not recorded.
    """
    timed = timeline.started is not None
    done = [each for each in submissions if each.verdict]
    scored = [(timeline.seconds_at(each.verdict_at), each.score.value, each) for each in done if each.score]
    trained = [(at, value) for at, value, each in scored if each.lineage not in ("copied", "foreign")]
    best = max(trained, key=lambda pair: (pair[1], -pair[0]), default=None)
    above = [at for at, value in trained if baseline and value > baseline.value]
    values = [value for _, value, _ in scored]
    return ProcessMetrics(
        valid_submission_rate=len(scored) / len(done) if done else None,
        first_valid_idx=scored[0][2].id if scored else None,
        first_valid_delay=_round_seconds(scored[0][0]) if scored and timed else None,
        score_trajectory=tuple(each.score.value if each.score else None for each in done),
        time_to_first_improvement=_round_seconds(min(above)) if above and timed else None,
        time_to_best=_round_seconds(best[0]) if best and timed else None,
        monotonic_ratio=_share_true([now > before for before, now in pairwise(values)]),
        copy_model_count=sum(each.lineage == "copied" for each in done),
        time_used_ratio=round(timeline.seconds / budget_seconds, 6) if timeline.started else None,
        last_submit_gap=_round_seconds(timeline.seconds - timeline.seconds_at(submissions[-1].accepted_at))
        if submissions and timed
        else None,
        best_area=compute_best_area(trained, baseline.value, budget_seconds) if baseline and timed else None,
        cpu_busy=_weighted_mean([(sample.cores, sample.seconds) for _, sample in timeline.samples]),
        gpu_busy=_weighted_mean(
            [
                (sum(known) / len(known), sample.seconds)
                for _, sample in timeline.samples
                if (known := [gpu.busy for gpu in sample.gpus if gpu.busy is not None])
            ]
        ),
    )


def compute_best_area(scored: Sequence[tuple[float, float]], baseline: float, seconds: float) -> float:
    """Return the mean gain over the time budget of the best model so far, at first the untouched model."""
    area, best, at = 0.0, baseline, 0.0
    for time, value in sorted(scored):
        # A verdict may come after the end of the budget.
        time = min(max(time, at), seconds)
        area += (best - baseline) * (time - at)
        best, at = max(best, value), time
    return round((area + (best - baseline) * (seconds - at)) / seconds, 6)


def _round_seconds(value: float) -> float:
    return round(max(0.0, value), 3)


def _share_true(flags: Sequence[bool]) -> float | None:
    return sum(flags) / len(flags) if flags else None


def _weighted_mean(samples: Sequence[tuple[float, float]]) -> float | None:
    """Return the mean of values, weighted by seconds."""
    total = sum(seconds for _, seconds in samples)
    return round(sum(value * seconds for value, seconds in samples) / total, 6) if total else None


# Findings on a whole run.

WORKSPACE = "/workspace/"
LONGEST_NOTE, MOST_NOTES = 300, 20


def analyse_run(record: RecordedRun) -> tuple[Findings, tuple[str, ...]]:
    """Return the findings, and notes on what could not be read."""
    book, notes = EvidenceBook(), _list_record_warnings(record.events)
    view = record.view
    spans = split_attempts(view, record.timeline, record.events, notes)
    attempts = _analyse_attempts(record, spans, book)
    best = record.best
    route = next((each.route for each in attempts if best and each.submission == best.id), None)
    metrics = measure_run(view.submissions, view.baseline, record.timeline, view.spec.budget.wall_seconds)
    gained = _compare_best_submission(record)
    submitted = [each.route for each in attempts if each.submission is not None and each.route]
    lineage = best.lineage if best else "unknown"
    compliance = mode_compliance.check_compliance(view.spec.mode, route, lineage, book, submitted=submitted)
    contradictions = (
        claim_check.find_contradictions(record.claims, attempts, view.submissions, book)
        if record.claims
        else ()
    )
    time = record.timeline.split_time()
    return (
        Findings(
            attempts=attempts,
            trainings=read_trainings(view.paths.workspace, record.timeline, attempts, view.submissions),
            metrics=metrics,
            time=time,
            gain=gained,
            generalisation=generalisation.measure_generalisation(
                record.view, record.results, [rollouts for _, rollouts in record.timeline.played]
            ),
            compliance=compliance,
            contradictions=contradictions,
            evidence=book.pieces,
            summary=summary.summarise_run(
                record, attempts, metrics, time, gained, compliance, contradictions
            ),
        ),
        tuple(notes),
    )


def _list_record_warnings(events: Sequence[TimelineEvent]) -> list[str]:
    """Return warnings and faults that the recorder noted while the run was going."""
    warnings = [
        f"during the run: {event.data.get('text')}"
        if event.kind == "warning"
        else f"during the run: an internal error in {event.data.get('where')}"
        for event in events
        if event.kind in ("warning", "fault")
    ]
    return [sanitize_line(each, LONGEST_NOTE) for each in dict.fromkeys(warnings)][:MOST_NOTES]


def _analyse_attempts(
    record: RecordedRun, spans: Sequence[AttemptSpan], book: EvidenceBook
) -> tuple[AttemptFindings, ...]:
    """Analyse attempts in order, since an attempt may continue from weights of an earlier one."""
    attempts: list[AttemptFindings] = []
    earlier: dict[int, RouteVerdict] = {}
    known: dict[str, RouteVerdict] = {}
    best = record.view.baseline.value if record.view.baseline else None
    for span in spans:
        route = (
            attempt_training.attribute_route(span, earlier, book, known=known)
            if _has_training(span)
            else None
        )
        curves = logs.extract_curves(span.printed)
        context = _gather_context(record, span, best, curves)
        attempt = _build_attempt(record, span, best, route).model_copy(
            update={
                "settings": (
                    *attempt_training.find_settings(span, book),
                    *logs.extract_settings(span.printed, book),
                ),
                "curves": curves,
                "failures": failures.diagnose_attempt(span, context, book),
            }
        )
        attempts.append(attempt)
        if route:
            known |= attempt_training.attribute_weights(span, route, book, known=known)
            if span.submission:
                earlier[span.submission.id] = route
                known[span.submission.path.removeprefix(WORKSPACE)] = route
        if attempt.outcome == "improved":
            best = attempt.score
    return tuple(attempts)


def _build_attempt(
    record: RecordedRun, span: AttemptSpan, best: float | None, route: RouteVerdict | None
) -> AttemptFindings:
    submission = span.submission
    score = submission.score.value if submission and submission.score else None
    return AttemptFindings(
        number=span.number,
        began=round(span.began, 3),
        ended=round(span.ended, 3),
        submission=submission.id if submission else None,
        verdict=submission.verdict if submission else None,
        score=score,
        gain=submission.improvement if submission else None,
        lineage=submission.lineage if submission else "unknown",
        outcome=_classify_outcome(record, submission, best),
        revision=span.sources[0].revision if span.sources else None,
        changed=len(span.changed),
        route=route,
        rollouts=span.rollouts,
        training_seconds=round(_sum_training_seconds(record, span), 3),
    )


def _gather_context(
    record: RecordedRun, span: AttemptSpan, best: float | None, curves: tuple[PrintedCurve, ...]
) -> AttemptContext:
    view, submission = record.view, span.submission
    feedback = record.results.get("feedback", {})
    mine = (submission.same_as or submission.id) if submission else None
    baseline = view.baseline.value if view.baseline else None
    wall = view.spec.budget.wall_seconds
    return AttemptContext(
        baseline=baseline,
        best_before=best if best != baseline else None,
        curves=curves,
        baseline_results=tuple(feedback.get(0, ())),
        results=tuple(feedback.get(mine, ())) if mine else (),
        exchanges=tuple(each for at, each in record.exchanges if span.began <= at < span.ended),
        ending=view.result.ending if span.last and view.result else None,
        left_seconds=max(0.0, wall - span.ended),
        wall_seconds=wall,
    )


def _classify_outcome(
    record: RecordedRun, submission: Submission | None, best: float | None
) -> AttemptOutcome:
    if submission is None:
        return "not-submitted"
    if submission.verdict is None:
        return "waiting"
    if submission.verdict != "scored" or submission.score is None:
        return submission.verdict if submission.verdict != "scored" else "failed"
    if submission.lineage in ("copied", "foreign"):
        return submission.lineage
    baseline = record.view.baseline
    if best is not None and submission.score.value > best:
        return "improved"
    return "worse" if baseline and submission.score.value < baseline.value else "no-gain"


def _has_training(span: AttemptSpan) -> bool:
    """Whether the attempt may have a training: something was submitted, saved or run."""
    return span.submission is not None or bool(span.weights) or bool(span.processes)


def _sum_training_seconds(record: RecordedRun, span: AttemptSpan) -> float:
    return sum(
        min(stretch.ended, span.ended) - max(stretch.began, span.began)
        for stretch in record.timeline.stretches
        if stretch.kind == "training" and stretch.ended > span.began and stretch.began < span.ended
    )


def _compare_best_submission(record: RecordedRun) -> Gain | None:
    best, result = record.best, record.view.result
    if best is None:
        return None
    heldout, feedback = record.results.get("heldout", {}), record.results.get("feedback", {})
    if 0 in heldout and best.id in heldout:
        recorded = result.heldout if result else None
        gap = result.optimism_gap if result else None
        return gain.compare_examples(
            "heldout", record.read_reference_results("heldout"), heldout[best.id], recorded, gap
        )
    split = "test" if record.view.spec.protocol == "paper" else "feedback"
    after = feedback.get(best.same_as or best.id, [])
    return gain.compare_examples(split, record.read_reference_results("feedback"), after, None, None)
