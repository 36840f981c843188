"""What a span's end and its driver LLM say of it: providers that failed, time that ran out, giving up."""

from collections import Counter
from collections.abc import Iterator

from agent2rl.analysis.attempts import AttemptSpan, RecordedProcess
from agent2rl.analysis.evidence import EvidenceBook
from agent2rl.analysis.failures.attempt_context import ENOUGH, AttemptContext, build_failure, shorten_text
from agent2rl.analysis.failures.logged_errors import LoggedError
from agent2rl.analysis.findings import Failure, FailureKind
from agent2rl.core.records import Ending

LEFT = 0.25
"""The share of the time from which on an end is early."""
FAILED = ("provider-error", "stalled", "unreachable", "cut")
PROVIDER: dict[Ending, str] = {
    "login-failed": "The driver LLM's provider refused the key.",
    "rate-limited": "The driver LLM's provider let no more requests through.",
    "driver-failed": "The driver LLM failed or fell silent.",
    "budget-exhausted": "The driver LLM's tokens or dollars were used up.",
}
BROKEN: dict[Ending, tuple[FailureKind, str]] = {
    "out-of-memory": ("out-of-memory", "The agent's processes were ended at the limit of memory."),
    "too-many-processes": ("code-error", "The agent's processes reached the limit of their number."),
    "disk-full": ("code-error", "The agent filled the disk that it may use."),
}


def diagnose_provider(span: AttemptSpan, seen: AttemptContext, book: EvidenceBook) -> Iterator[Failure]:
    graded = span.submission is not None and span.submission.verdict == "scored"
    if span.last and seen.ending in PROVIDER:
        cited = book.add_evidence("event", "the end", seen.ending)
        sure = 0.5 if graded else 0.95 if seen.ending != "budget-exhausted" else 0.85
        yield build_failure("provider-failure", PROVIDER[seen.ending], sure, cited)
        return
    failed = [each for each in seen.exchanges if each.outcome in FAILED]
    lost = sum(each.stalled_seconds for each in seen.exchanges)
    share = len(failed) / len(seen.exchanges) if seen.exchanges else 0.0
    length = max(span.ended - span.began, 1e-9)
    if (len(failed) >= 3 and share >= 0.5) or (failed and lost >= 0.5 * length):
        why = Counter(each.message[:100] or each.outcome for each in failed).most_common(1)[0][0]
        said = f"{len(failed)} of {len(seen.exchanges)} requests to the driver LLM failed"
        cited = book.add_evidence("usage", "usage.jsonl", f"{said}, {lost:.0f} s were lost: {why}")
        sure = 0.45 if graded else min(0.9, 0.5 + 0.4 * max(share, min(1.0, lost / length)))
        yield build_failure("provider-failure", f"{said}: {shorten_text(why)}", round(sure, 3), cited)


def diagnose_ending(
    span: AttemptSpan, seen: AttemptContext, broke: list[LoggedError], book: EvidenceBook
) -> Iterator[Failure]:
    """What the agent's end says of its last attempt."""
    if not span.last or seen.ending is None:
        return
    open_ended = span.submission is None or span.submission.verdict is None
    cited = book.add_evidence("event", "the end", f"{seen.ending}, after {span.ended:.0f} s", span.ended)
    if seen.ending in BROKEN and open_ended:
        kind, said = BROKEN[seen.ending]
        yield build_failure(kind, said, 0.97, cited)
    elif seen.ending == "agent-failed" and open_ended and not any(each.after == "end" for each in broke):
        yield build_failure("code-error", "The agent's own program ended with an error.", 0.6, cited)
    elif seen.ending == "deadline" and open_ended:
        yield _explain_timeout(span, seen, cited, book)
    elif seen.ending == "completed":
        yield from _detect_giving_up(span, seen, cited)


def _explain_timeout(span: AttemptSpan, seen: AttemptContext, cited: str, book: EvidenceBook) -> Failure:
    if span.submission is not None:
        return build_failure("timeout", "The time ended before it was graded.", 0.7, cited)
    alive = [each for each in span.processes if _is_busy_at_end(each, span.ended)]
    signs = [
        book.add_evidence("event", f"process {each.pid}", each.command[:300], each.began)
        for each in alive[:2]
    ]
    if seen.curves:
        curve = seen.curves[0]
        signs.append(
            book.add_evidence("log", curve.where, f"{curve.name} up to step {curve.points[-1][0]:g}")
        )
    sure = 0.9 if alive and seen.curves else 0.8 if signs else 0.6
    doing = "while it trained" if signs else "and nothing was submitted"
    return build_failure("timeout", f"The time ended {doing}.", sure, cited, *signs)


def _is_busy_at_end(process: RecordedProcess, end: float) -> bool:
    """Alive at the end, and at work."""
    lived = (end if process.ended is None else process.ended) - process.began
    alive = process.ended is None or process.ended >= end - 10
    return alive and process.cpu_seconds >= max(5.0, 0.3 * lived)


def _detect_giving_up(span: AttemptSpan, seen: AttemptContext, cited: str) -> Iterator[Failure]:
    better = seen.best_before is not None and (seen.baseline is None or seen.best_before > seen.baseline)
    if seen.left_seconds is None or not seen.wall_seconds or better:
        return
    share = min(1.0, seen.left_seconds / seen.wall_seconds)
    if share >= LEFT:
        sure = round((0.4 if span.submission else 0.5) + 0.4 * share, 3)
        if span.submission:
            sure = min(sure, ENOUGH - 0.01)
        said = f"The agent ended by itself with {100 * share:.0f}% of its time left, and nothing better."
        yield build_failure("gave-up", said, sure, cited)
