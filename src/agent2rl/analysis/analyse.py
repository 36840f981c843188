"""From the record of a run to what can be said of it. Pure: the same directory gives the same findings."""

from collections.abc import Sequence

from agent2rl.analysis import claims, compliance, failures, gain, logs, metrics, routes, settings, summary
from agent2rl.analysis.attempts import Span
from agent2rl.analysis.evidence import Book
from agent2rl.analysis.failures import Seen
from agent2rl.analysis.findings import Attempt, Curve, Findings, Gain, Outcome, RouteVerdict
from agent2rl.analysis.recorded import Recorded
from agent2rl.analysis.spans import spans
from agent2rl.core.events import Event
from agent2rl.core.records import Submission
from agent2rl.store.left import plain

WORKSPACE = "/workspace/"
LONGEST_NOTE, MOST_NOTES = 300, 20


def analyse(record: Recorded) -> tuple[Findings, tuple[str, ...]]:
    """The findings, and notes on what could not be read for them."""
    book, notes = Book(), _gaps(record.events)
    view = record.view
    cut = spans(view, record.timeline, record.events, notes)
    attempts = _attempts(record, cut, book)
    best = record.best
    route = next((each.route for each in attempts if best and each.submission == best.id), None)
    measured = metrics.measure(
        view.submissions, view.baseline, record.timeline, view.spec.budget.wall_seconds
    )
    compared = _gain(record)
    submitted = [each.route for each in attempts if each.submission is not None and each.route]
    lineage = best.lineage if best else "unknown"
    kept = compliance.check(view.spec.mode, route, lineage, book, submitted=submitted)
    denied = claims.contradictions(record.claims, attempts, view.submissions, book) if record.claims else ()
    time = record.timeline.split()
    return (
        Findings(
            attempts=attempts,
            metrics=measured,
            time=time,
            gain=compared,
            compliance=kept,
            contradictions=denied,
            evidence=book.pieces,
            summary=summary.tell(record, attempts, measured, time, compared, kept, denied),
        ),
        tuple(notes),
    )


def _gaps(events: Sequence[Event]) -> list[str]:
    """What the record says of itself: that something went wrong with it, or that there was more."""
    said = [
        f"while it ran: {event.data.get('text')}"
        if event.kind == "warning"
        else f"while it ran: a fault in {event.data.get('where')}"
        for event in events
        if event.kind in ("warning", "fault")
    ]
    return [plain(each, LONGEST_NOTE) for each in dict.fromkeys(said)][:MOST_NOTES]


def _attempts(record: Recorded, cut: Sequence[Span], book: Book) -> tuple[Attempt, ...]:
    """In their order: what an attempt goes on from, an earlier one left."""
    found: list[Attempt] = []
    earlier: dict[int, RouteVerdict] = {}
    known: dict[str, RouteVerdict] = {}
    best = record.view.baseline.value if record.view.baseline else None
    for span in cut:
        route = routes.attribute(span, earlier, book, known=known) if _trained(span) else None
        curves = logs.curves(span.printed)
        seen = _seen(record, span, best, curves)
        attempt = _attempt(record, span, best, route).model_copy(
            update={
                "settings": (*settings.found(span, book), *logs.settings(span.printed, book)),
                "curves": curves,
                "failures": failures.diagnose(span, seen, book),
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


def _attempt(record: Recorded, span: Span, best: float | None, route: RouteVerdict | None) -> Attempt:
    submission = span.submission
    score = submission.score.value if submission and submission.score else None
    return Attempt(
        number=span.number,
        began=round(span.began, 3),
        ended=round(span.ended, 3),
        submission=submission.id if submission else None,
        verdict=submission.verdict if submission else None,
        score=score,
        gain=submission.improvement if submission else None,
        lineage=submission.lineage if submission else "unknown",
        outcome=_outcome(record, submission, best),
        revision=span.sources[0].revision if span.sources else None,
        changed=len(span.changed),
        route=route,
        rollouts=span.rollouts,
        training_seconds=round(_training_seconds(record, span), 3),
    )


def _seen(record: Recorded, span: Span, best: float | None, curves: tuple[Curve, ...]) -> Seen:
    view, submission = record.view, span.submission
    feedback = record.results.get("feedback", {})
    mine = (submission.same_as or submission.id) if submission else None
    baseline = view.baseline.value if view.baseline else None
    wall = view.spec.budget.wall_seconds
    return Seen(
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


def _outcome(record: Recorded, submission: Submission | None, best: float | None) -> Outcome:
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


def _trained(span: Span) -> bool:
    """Whether there is a training to attribute: something was submitted, or computed."""
    return span.submission is not None or bool(span.weights) or bool(span.processes)


def _training_seconds(record: Recorded, span: Span) -> float:
    return sum(
        min(stretch.ended, span.ended) - max(stretch.began, span.began)
        for stretch in record.timeline.stretches
        if stretch.kind == "training" and stretch.ended > span.began and stretch.began < span.ended
    )


def _gain(record: Recorded) -> Gain | None:
    best, result = record.best, record.view.result
    if best is None:
        return None
    heldout, feedback = record.results.get("heldout", {}), record.results.get("feedback", {})
    if 0 in heldout and best.id in heldout:
        recorded = result.heldout if result else None
        gap = result.optimism_gap if result else None
        return gain.gain("heldout", record.reference("heldout"), heldout[best.id], recorded, gap)
    split = "test" if record.view.spec.protocol == "paper" else "feedback"
    after = feedback.get(best.same_as or best.id, [])
    return gain.gain(split, record.reference("feedback"), after, None, None)
