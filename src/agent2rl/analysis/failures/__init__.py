"""Why an attempt brought nothing: every reason that the record speaks for, the likeliest first.

The rules are in docs/design/failures.md, with what they cannot see.
"""

import re
from collections.abc import Iterator

from agent2rl.analysis.attempts import Span
from agent2rl.analysis.evidence import Book
from agent2rl.analysis.failures.diverged import diverged, risen, unvaried
from agent2rl.analysis.failures.endings import ended, provider
from agent2rl.analysis.failures.outputs import drift
from agent2rl.analysis.failures.seen import ENOUGH, failure, short
from agent2rl.analysis.failures.seen import Seen as Seen
from agent2rl.analysis.failures.setbacks import Setback, setbacks
from agent2rl.analysis.failures.trends import trend
from agent2rl.analysis.findings import Failure, FailureKind
from agent2rl.core.records import Submission

ORDER: tuple[FailureKind, ...] = (
    *("provider-failure", "copied", "out-of-memory", "code-error", "diverged", "timeout", "rejected"),
    *("evaluation-failure", "format-drift", "reward-hacking", "rollout-logic", "gave-up", "no-gain"),
)
"""Of reasons that are equally likely."""
BEHIND = 0.8
"""No cause is surer than this where the grading itself said what was wrong."""
EPISODES = 20
MANY_STEPS = 5000
NOT_FINITE = re.compile(r"\bnan\b|finite|\binf\b", re.IGNORECASE)


def diagnose(span: Span, seen: Seen, book: Book) -> tuple[Failure, ...]:
    """The likeliest first; of an attempt that improved only what broke on the way."""
    broke = setbacks(span, book)
    if improved(span.submission, seen):
        return tuple(each.failure for each in broke if each.after != "caught")
    submission = span.submission
    graded = list(_graded(submission, book)) if submission else []
    found = [
        *_weighed(broke, span),
        *diverged(seen.curves, book),
        *_hacked(span, seen, book),
        *_rollouts(span, seen, book),
        *_drifted(submission, seen, book),
        *provider(span, seen, book),
        *ended(span, seen, broke, book),
    ]
    if submission and submission.verdict != "failed" and graded:
        most = 0.97 if NOT_FINITE.search(submission.message) else BEHIND
        found = [each.model_copy(update={"confidence": min(each.confidence, most)}) for each in found]
    found += graded
    if not any(each.confidence >= ENOUGH for each in found):
        found += _rest(span, seen, book)
    return tuple(sorted(found, key=lambda each: (-each.confidence, ORDER.index(each.kind))))


def improved(submission: Submission | None, seen: Seen) -> bool:
    """Over the untouched model and all before, by the grading itself."""
    if submission is None or submission.score is None or submission.lineage in ("copied", "foreign"):
        return False
    known = [score for score in (seen.baseline, seen.best_before) if score is not None]
    return submission.score.value > max(known, default=-1.0)


def _weighed(broke: list[Setback], span: Span) -> Iterator[Failure]:
    """An error weighs less where something was graded after it."""
    graded = span.submission is not None and span.submission.verdict == "scored"
    for each in broke:
        share = 0.45 if graded and each.after == "end" else 1.0
        yield each.failure.model_copy(update={"confidence": round(share * each.failure.confidence, 3)})


def _graded(submission: Submission, book: Book) -> Iterator[Failure]:
    """What the grading said."""
    where, at = f"submission {submission.id}", None
    if submission.lineage == "copied":
        cited = book.note("submission", where, "its weights are the base model's", at)
        yield failure("copied", "The base model itself was submitted.", 0.95, cited)
    elif submission.same_as is not None:
        said = f"It is the same as submission {submission.same_as}."
        yield failure("copied", said, 0.9, book.note("submission", where, said, at))
    if submission.verdict == "rejected":
        cited = book.note("submission", where, f"rejected: {submission.message}", at)
        yield failure("rejected", f"It was rejected: {short(submission.message)}", 0.95, cited)
    elif submission.verdict == "failed":
        cited = book.note("submission", where, f"failed: {submission.message}", at)
        yield failure("evaluation-failure", f"Its grading failed: {short(submission.message)}", 0.9, cited)


def _hacked(span: Span, seen: Seen, book: Book) -> Iterator[Failure]:
    """Its own reward rose, and what it stands for did not."""
    score = span.submission.score if span.submission else None
    rose = risen(seen.curves)
    if rose is None or score is None or seen.baseline is None or span.submission is None:
        return
    curve, course = rose
    half = (score.ci.high - score.ci.low) / 2
    if score.value < seen.baseline - half:
        sure = 0.85
    elif score.value <= seen.baseline:
        sure = 0.65
    elif seen.best_before is not None and score.value < seen.best_before - half:
        sure = 0.4
    else:
        return
    sure -= 0.15 if curve.name != "reward" else 0.0
    course_said = f"{curve.name} rose from {course.before:.4g} to {course.after:.4g}"
    against = f"graded {score.value:.1f}, the untouched model {seen.baseline:.1f}"
    yield failure(
        "reward-hacking",
        f"The training's {course_said}, and the score did not: {against}.",
        sure,
        book.note("log", curve.where, course_said),
        book.note("submission", f"submission {span.submission.id}", against),
    )


def _rollouts(span: Span, seen: Seen, book: Book) -> Iterator[Failure]:
    """Played, and nothing that could be learnt from came of it."""
    played = span.rollouts.claimed + span.rollouts.witnessed
    said = f"{played.episodes} episodes, {played.steps} steps, {played.successes} successes"
    where = f"attempt {span.number}, rollouts"
    if played.episodes >= EPISODES:
        if played.steps <= played.episodes:
            cited = book.note("event", where, said)
            yield failure("rollout-logic", f"Episodes end at once: {said}.", 0.8, cited)
        elif played.successes == 0:
            sure = 0.7 if played.episodes >= 5 * EPISODES else 0.55
            yield failure(
                "rollout-logic", f"No episode was won: {said}.", sure, book.note("event", where, said)
            )
    if flat := unvaried(seen.curves):
        told = f"{flat.name} is {flat.points[0][1]:g} at all {len(flat.points)} points"
        cited = book.note("log", flat.where, told)
        yield failure("rollout-logic", f"There was nothing to learn from: {told}.", 0.7, cited)
    elif played.steps >= MANY_STEPS and played.successes:
        courses = [one for each in seen.curves if each.name == "reward" and (one := trend(each))]
        if courses and not any(one.rises for one in courses):
            cited = book.note("event", where, said)
            yield failure("rollout-logic", f"Much was played and the reward stayed: {said}.", 0.4, cited)


def _drifted(submission: Submission | None, seen: Seen, book: Book) -> Iterator[Failure]:
    found = drift(seen.baseline_results, seen.results) if submission else None
    if found is None or submission is None:
        return
    against = "" if found.before is None else f", {100 * found.before:.0f}% before"
    sure = 0.6 if found.before is None else min(0.9, 0.55 + 0.5 * (found.after - found.before))
    cited = [
        book.note(
            "result", f"submission {submission.id}, example {each.id}", each.output.strip() or "(empty)"
        )
        for each in found.examples
    ]
    said = f"Outputs lost their form: {100 * found.after:.0f}% {found.what}{against}."
    yield failure("format-drift", said, round(sure, 3), *cited)


def _rest(span: Span, seen: Seen, book: Book) -> Iterator[Failure]:
    """Nothing else is known."""
    submission = span.submission
    if submission is None:
        if span.last and seen.ending is not None:
            cited = book.note("event", "the end", f"{seen.ending}, after {span.ended:.0f} s", span.ended)
            yield failure("no-gain", "Nothing was submitted.", ENOUGH, cited)
        return
    if submission.score is None:
        return  # it still waits
    score = submission.score
    known = {"the untouched model": seen.baseline, "the best before": seen.best_before}
    against = ", ".join(f"{name} {value:.1f}" for name, value in known.items() if value is not None)
    said = f"It scores {score.value:.1f}" + (f", {against}" if against else "")
    said += "; its weights are not the base model's" if submission.lineage == "foreign" else ""
    cited = book.note("submission", f"submission {submission.id}", said)
    yield failure("no-gain", f"{said}.", ENOUGH, cited)
