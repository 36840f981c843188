"""From the record of a run to what can be said of it. Pure: the same directory gives the same findings."""

from collections.abc import Sequence

from agent2rl.analysis import (
    claim_check,
    code_settings,
    failures,
    gain,
    logs,
    mode_compliance,
    process_metrics,
    route_attribution,
    summary,
)
from agent2rl.analysis.attempt_spans import split_attempts
from agent2rl.analysis.attempts import AttemptSpan
from agent2rl.analysis.evidence import EvidenceBook
from agent2rl.analysis.failures import AttemptContext
from agent2rl.analysis.findings import (
    AttemptFindings,
    AttemptOutcome,
    Findings,
    Gain,
    PrintedCurve,
    RouteVerdict,
)
from agent2rl.analysis.recorded_run import RecordedRun
from agent2rl.core.events import TimelineEvent
from agent2rl.core.records import Submission
from agent2rl.store.untrusted_files import sanitize_line

WORKSPACE = "/workspace/"
LONGEST_NOTE, MOST_NOTES = 300, 20


def analyse_run(record: RecordedRun) -> tuple[Findings, tuple[str, ...]]:
    """The findings, and notes on what could not be read for them."""
    book, notes = EvidenceBook(), _list_record_warnings(record.events)
    view = record.view
    cut = split_attempts(view, record.timeline, record.events, notes)
    attempts = _analyse_attempts(record, cut, book)
    best = record.best
    route = next((each.route for each in attempts if best and each.submission == best.id), None)
    measured = process_metrics.measure_run(
        view.submissions, view.baseline, record.timeline, view.spec.budget.wall_seconds
    )
    compared = _compare_best_submission(record)
    submitted = [each.route for each in attempts if each.submission is not None and each.route]
    lineage = best.lineage if best else "unknown"
    kept = mode_compliance.check_compliance(view.spec.mode, route, lineage, book, submitted=submitted)
    denied = (
        claim_check.find_contradictions(record.claims, attempts, view.submissions, book)
        if record.claims
        else ()
    )
    time = record.timeline.split_time()
    return (
        Findings(
            attempts=attempts,
            metrics=measured,
            time=time,
            gain=compared,
            compliance=kept,
            contradictions=denied,
            evidence=book.pieces,
            summary=summary.summarise_run(record, attempts, measured, time, compared, kept, denied),
        ),
        tuple(notes),
    )


def _list_record_warnings(events: Sequence[TimelineEvent]) -> list[str]:
    """What the record says of itself: that something went wrong with it, or that there was more."""
    said = [
        f"while it ran: {event.data.get('text')}"
        if event.kind == "warning"
        else f"while it ran: a fault in {event.data.get('where')}"
        for event in events
        if event.kind in ("warning", "fault")
    ]
    return [sanitize_line(each, LONGEST_NOTE) for each in dict.fromkeys(said)][:MOST_NOTES]


def _analyse_attempts(
    record: RecordedRun, cut: Sequence[AttemptSpan], book: EvidenceBook
) -> tuple[AttemptFindings, ...]:
    """In their order: what an attempt goes on from, an earlier one left."""
    found: list[AttemptFindings] = []
    earlier: dict[int, RouteVerdict] = {}
    known: dict[str, RouteVerdict] = {}
    best = record.view.baseline.value if record.view.baseline else None
    for span in cut:
        route = (
            route_attribution.attribute_route(span, earlier, book, known=known)
            if _has_training(span)
            else None
        )
        curves = logs.extract_curves(span.printed)
        seen = _gather_context(record, span, best, curves)
        attempt = _build_attempt(record, span, best, route).model_copy(
            update={
                "settings": (
                    *code_settings.find_settings(span, book),
                    *logs.extract_settings(span.printed, book),
                ),
                "curves": curves,
                "failures": failures.diagnose_attempt(span, seen, book),
            }
        )
        found.append(attempt)
        if route:
            known |= {each.path: route for each in span.weights}
            if span.submission:
                earlier[span.submission.id] = route
                known[span.submission.path.removeprefix(WORKSPACE)] = route
        if attempt.outcome == "improved":
            best = attempt.score
    return tuple(found)


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
    """Whether there is a training to attribute: something was submitted, or computed."""
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
