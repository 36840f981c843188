"""Diagnose why an attempt brought no gain: every reason with evidence in the record, the likeliest first.

docs/design/failures.md has the rules and what they cannot see.
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from agent2rl.analysis.attempts import AttemptSpan, RecordedProcess
from agent2rl.analysis.failures.degradation import (
    find_divergence,
    find_drift,
    find_flat_reward,
    find_risen_reward,
    measure_trend,
)
from agent2rl.analysis.failures.logged_errors import LoggedError, find_logged_errors
from agent2rl.analysis.findings import EvidenceBook, Failure, FailureKind, PrintedCurve
from agent2rl.core.grading_records import ExampleResult, Submission
from agent2rl.core.llm import LlmExchange
from agent2rl.core.records import Ending

# Input and output of a diagnosis.

ENOUGH = 0.5
"""A reason with this confidence suffices; no fallback reason is added."""


@dataclass(frozen=True)
class AttemptContext:
    """What is known of an attempt beyond its span. Scores are in percent."""

    baseline: float | None = None
    best_before: float | None = None
    """The best score of earlier submissions."""
    curves: tuple[PrintedCurve, ...] = ()
    baseline_results: tuple[ExampleResult, ...] = ()
    """Results of the untouched model on the feedback examples; empty if not known."""
    results: tuple[ExampleResult, ...] = ()
    """Results of this submission on the same examples."""
    exchanges: tuple[LlmExchange, ...] = ()
    """Exchanges with the driver LLM in this span."""
    ending: Ending | None = None
    """How the agent ended, in the last span; None if it continues or if that is not known."""
    left_seconds: float | None = None
    """Time budget that is left at the end of this span."""
    wall_seconds: float | None = None
    """The whole time budget."""


def build_failure(kind: FailureKind, message: str, confidence: float, *evidence: str) -> Failure:
    return Failure(kind=kind, message=message, confidence=confidence, evidence=evidence)


def shorten_text(text: str) -> str:
    first = " ".join(text.split())
    return first if len(first) <= 200 else first[:199] + "…"


# Reasons at the end of a span: the provider failed, time ran out, the agent gave up.

LEFT = 0.25
"""An end with at least this share of the time left is early."""
FAILED = ("provider-error", "stalled", "unreachable", "cut")
PROVIDER: dict[Ending, str] = {
    "login-failed": "The provider of the driver LLM refused the API key.",
    "rate-limited": "The provider of the driver LLM rate-limited the agent.",
    "driver-failed": "The driver LLM failed or stopped responding.",
    "budget-exhausted": "The budget of tokens, dollars or GPU time was used up.",
}
BROKEN: dict[Ending, tuple[FailureKind, str]] = {
    "out-of-memory": ("out-of-memory", "The agent's processes were killed at the memory limit."),
    "too-many-processes": ("code-error", "The agent's processes reached the process limit."),
    "disk-full": ("code-error", "The agent filled its disk quota."),
}


def diagnose_provider(span: AttemptSpan, context: AttemptContext, book: EvidenceBook) -> Iterator[Failure]:
    graded = span.submission is not None and span.submission.verdict == "scored"
    if span.last and context.ending in PROVIDER:
        cited = book.add_evidence("event", "the end", context.ending)
        confidence = 0.5 if graded else 0.95 if context.ending != "budget-exhausted" else 0.85
        yield build_failure("provider-failure", PROVIDER[context.ending], confidence, cited)
        return
    failed = [each for each in context.exchanges if each.outcome in FAILED]
    lost = sum(each.stalled_seconds for each in context.exchanges)
    share = len(failed) / len(context.exchanges) if context.exchanges else 0.0
    length = max(span.ended - span.began, 1e-9)
    if (len(failed) >= 3 and share >= 0.5) or (failed and lost >= 0.5 * length):
        why = Counter(each.message[:100] or each.outcome for each in failed).most_common(1)[0][0]
        said = f"{len(failed)} of {len(context.exchanges)} requests to the driver LLM failed"
        cited = book.add_evidence("usage", "usage.jsonl", f"{said}, {lost:.0f} s were lost: {why}")
        confidence = 0.45 if graded else min(0.9, 0.5 + 0.4 * max(share, min(1.0, lost / length)))
        yield build_failure("provider-failure", f"{said}: {shorten_text(why)}", round(confidence, 3), cited)


def diagnose_ending(
    span: AttemptSpan, context: AttemptContext, errors: list[LoggedError], book: EvidenceBook
) -> Iterator[Failure]:
    """Yield reasons that follow from how the agent ended."""
    if not span.last or context.ending is None:
        return
    open_ended = span.submission is None or span.submission.verdict is None
    cited = book.add_evidence("event", "the end", f"{context.ending}, after {span.ended:.0f} s", span.ended)
    if context.ending in BROKEN and open_ended:
        kind, said = BROKEN[context.ending]
        yield build_failure(kind, said, 0.97, cited)
    elif context.ending == "agent-failed" and open_ended and not any(each.after == "end" for each in errors):
        yield build_failure("code-error", "The agent's own program exited with an error.", 0.6, cited)
    elif context.ending == "deadline" and open_ended:
        yield _explain_timeout(span, context, cited, book)
    elif context.ending == "completed":
        yield from _detect_giving_up(span, context, cited)


def _explain_timeout(span: AttemptSpan, context: AttemptContext, cited: str, book: EvidenceBook) -> Failure:
    if span.submission is not None:
        return build_failure("timeout", "Time ran out before it was graded.", 0.7, cited)
    alive = [each for each in span.processes if _is_busy_at_end(each, span.ended)]
    signs = [
        book.add_evidence("event", f"process {each.pid}", each.command[:300], each.began)
        for each in alive[:2]
    ]
    if context.curves:
        curve = context.curves[0]
        signs.append(
            book.add_evidence("log", curve.where, f"{curve.name} up to step {curve.points[-1][0]:g}")
        )
    confidence = 0.9 if alive and context.curves else 0.8 if signs else 0.6
    doing = "during training" if signs else "and nothing was submitted"
    return build_failure("timeout", f"Time ran out {doing}.", confidence, cited, *signs)


def _is_busy_at_end(process: RecordedProcess, end: float) -> bool:
    """Whether a process was alive and busy at the end."""
    lived = (end if process.ended is None else process.ended) - process.began
    alive = process.ended is None or process.ended >= end - 10
    return alive and process.cpu_seconds >= max(5.0, 0.3 * lived)


def _detect_giving_up(span: AttemptSpan, context: AttemptContext, cited: str) -> Iterator[Failure]:
    better = context.best_before is not None and (
        context.baseline is None or context.best_before > context.baseline
    )
    if context.left_seconds is None or not context.wall_seconds or better:
        return
    share = min(1.0, context.left_seconds / context.wall_seconds)
    if share >= LEFT:
        confidence = round((0.4 if span.submission else 0.5) + 0.4 * share, 3)
        if span.submission:
            confidence = min(confidence, ENOUGH - 0.01)
        said = f"The agent exited with {100 * share:.0f}% of its time left and no improvement."
        yield build_failure("gave-up", said, confidence, cited)


ORDER: tuple[FailureKind, ...] = (
    *("provider-failure", "copied", "out-of-memory", "code-error", "diverged", "timeout", "rejected"),
    *("evaluation-failure", "format-drift", "reward-hacking", "rollout-logic", "gave-up", "no-gain"),
)
"""Order of reasons with the same confidence."""
BEHIND = 0.8
"""Limit on the confidence of other reasons if the grading itself says what was wrong."""
EPISODES = 20
MANY_STEPS = 5000
NOT_FINITE = re.compile(r"\bnan\b|finite|\binf\b", re.IGNORECASE)


def diagnose_attempt(span: AttemptSpan, context: AttemptContext, book: EvidenceBook) -> tuple[Failure, ...]:
    """Return reasons, the likeliest first. For an improvement, return only errors on the way."""
    errors = find_logged_errors(span, book)
    if is_improvement(span.submission, context):
        return tuple(each.failure for each in errors if each.after != "caught")
    submission = span.submission
    graded = list(_explain_verdict(submission, book)) if submission else []
    found = [
        *_weigh_errors(errors, span),
        *find_divergence(context.curves, book),
        *_detect_reward_hacking(span, context, book),
        *_check_rollouts(span, context, book),
        *_detect_format_drift(submission, context, book),
        *diagnose_provider(span, context, book),
        *diagnose_ending(span, context, errors, book),
    ]
    if submission and submission.verdict != "failed" and graded:
        most = 0.97 if NOT_FINITE.search(submission.message) else BEHIND
        found = [each.model_copy(update={"confidence": min(each.confidence, most)}) for each in found]
    found += graded
    if not any(each.confidence >= ENOUGH for each in found):
        found += _explain_no_gain(span, context, book)
    return tuple(sorted(found, key=lambda each: (-each.confidence, ORDER.index(each.kind))))


def is_improvement(submission: Submission | None, context: AttemptContext) -> bool:
    """Whether a submission was graded better than the untouched model and all earlier submissions."""
    if submission is None or submission.score is None or submission.lineage in ("copied", "foreign"):
        return False
    known = [score for score in (context.baseline, context.best_before) if score is not None]
    return submission.score.value > max(known, default=-1.0)


def _weigh_errors(errors: list[LoggedError], span: AttemptSpan) -> Iterator[Failure]:
    """Yield errors. An error counts less if a submission was graded after it."""
    graded = span.submission is not None and span.submission.verdict == "scored"
    for each in errors:
        share = 0.45 if graded and each.after == "end" else 1.0
        yield each.failure.model_copy(update={"confidence": round(share * each.failure.confidence, 3)})


def _explain_verdict(submission: Submission, book: EvidenceBook) -> Iterator[Failure]:
    """Yield reasons that the grading gave."""
    where, at = f"submission {submission.id}", None
    if submission.lineage == "copied":
        cited = book.add_evidence("submission", where, "its weights are the base model's", at)
        yield build_failure("copied", "The base model itself was submitted.", 0.95, cited)
    elif submission.same_as is not None:
        said = f"It is identical to submission {submission.same_as}."
        yield build_failure("copied", said, 0.9, book.add_evidence("submission", where, said, at))
    if submission.verdict == "rejected":
        cited = book.add_evidence("submission", where, f"rejected: {submission.message}", at)
        yield build_failure("rejected", f"It was rejected: {shorten_text(submission.message)}", 0.95, cited)
    elif submission.verdict == "failed":
        cited = book.add_evidence("submission", where, f"failed: {submission.message}", at)
        yield build_failure(
            "evaluation-failure", f"Its grading failed: {shorten_text(submission.message)}", 0.9, cited
        )


def _detect_reward_hacking(
    span: AttemptSpan, context: AttemptContext, book: EvidenceBook
) -> Iterator[Failure]:
    """Yield a reason if the training reward rose but the score did not."""
    score = span.submission.score if span.submission else None
    rose = find_risen_reward(context.curves)
    if rose is None or score is None or context.baseline is None or span.submission is None:
        return
    curve, course = rose
    half = (score.ci.high - score.ci.low) / 2
    if score.value < context.baseline - half:
        confidence = 0.85
    elif score.value <= context.baseline:
        confidence = 0.65
    elif context.best_before is not None and score.value < context.best_before - half:
        confidence = 0.4
    else:
        return
    confidence -= 0.15 if curve.name != "reward" else 0.0
    change = f"{curve.name} rose from {course.before:.4g} to {course.after:.4g}"
    against = f"graded {score.value:.2f}, the untouched model {context.baseline:.2f}"
    yield build_failure(
        "reward-hacking",
        f"The training {change}, but the score did not rise: {against}.",
        confidence,
        book.add_evidence("log", curve.where, change),
        book.add_evidence("submission", f"submission {span.submission.id}", against),
    )


def _check_rollouts(span: AttemptSpan, context: AttemptContext, book: EvidenceBook) -> Iterator[Failure]:
    """Yield reasons why nothing could be learnt from the rollouts."""
    played = span.rollouts.played
    said = f"{played.episodes} episodes, {played.steps} steps, {played.successes} successes"
    where = f"attempt {span.number}, rollouts"
    if played.episodes >= EPISODES:
        if played.steps <= played.episodes:
            cited = book.add_evidence("event", where, said)
            yield build_failure("rollout-logic", f"Episodes end immediately: {said}.", 0.8, cited)
        elif played.successes == 0:
            confidence = 0.7 if played.episodes >= 5 * EPISODES else 0.55
            yield build_failure(
                "rollout-logic",
                f"No episode was won: {said}.",
                confidence,
                book.add_evidence("event", where, said),
            )
    if flat := find_flat_reward(context.curves):
        text = f"{flat.name} is {flat.points[0][1]:g} at all {len(flat.points)} points"
        cited = book.add_evidence("log", flat.where, text)
        yield build_failure("rollout-logic", f"There was no learning signal: {text}.", 0.7, cited)
    elif played.steps >= MANY_STEPS and played.successes:
        courses = [one for each in context.curves if each.name == "reward" and (one := measure_trend(each))]
        if courses and not any(one.rises for one in courses):
            cited = book.add_evidence("event", where, said)
            yield build_failure(
                "rollout-logic",
                f"Many rollouts were played, but the reward did not rise: {said}.",
                0.4,
                cited,
            )


def _detect_format_drift(
    submission: Submission | None, context: AttemptContext, book: EvidenceBook
) -> Iterator[Failure]:
    found = find_drift(context.baseline_results, context.results) if submission else None
    if found is None or submission is None:
        return
    against = "" if found.before is None else f", {100 * found.before:.0f}% before"
    confidence = 0.6 if found.before is None else min(0.9, 0.55 + 0.5 * (found.after - found.before))
    cited = [
        book.add_evidence(
            "result", f"submission {submission.id}, example {each.id}", each.output.strip() or "(empty)"
        )
        for each in found.examples
    ]
    said = f"Outputs lost their format: {100 * found.after:.0f}% {found.what}{against}."
    yield build_failure("format-drift", said, round(confidence, 3), *cited)


def _explain_no_gain(span: AttemptSpan, context: AttemptContext, book: EvidenceBook) -> Iterator[Failure]:
    """Yield the fallback reason."""
    submission = span.submission
    if submission is None:
        if span.last and context.ending is not None:
            cited = book.add_evidence(
                "event", "the end", f"{context.ending}, after {span.ended:.0f} s", span.ended
            )
            yield build_failure("no-gain", "Nothing was submitted.", ENOUGH, cited)
        return
    if submission.score is None:
        return  # not graded yet
    score = submission.score
    known = {"the untouched model": context.baseline, "the best before": context.best_before}
    against = ", ".join(f"{name} {value:.2f}" for name, value in known.items() if value is not None)
    said = f"It scores {score.value:.2f}" + (f", {against}" if against else "")
    said += "; its weights are not the base model's" if submission.lineage == "foreign" else ""
    cited = book.add_evidence("submission", f"submission {submission.id}", said)
    yield build_failure("no-gain", f"{said}.", ENOUGH, cited)
