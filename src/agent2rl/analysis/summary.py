"""What happened, in sentences made by rule from the findings. Each claim names its evidence."""

import re
from collections.abc import Iterable, Sequence
from pathlib import PurePath

from agent2rl.analysis.findings import (
    Attempt,
    Cited,
    Compliance,
    Contradiction,
    Gain,
    Metrics,
    TimeSplit,
)
from agent2rl.analysis.recorded import Recorded
from agent2rl.core.records import Interval

CITATION = re.compile(r"\[(\s*E\d[^\]]*)\]")
MOST_ATTEMPTS = 12
"""Told one by one; of more, the best and the last."""
OUTCOMES = {
    "improved": "the best so far",
    "no-gain": "no better than before",
    "worse": "worse than the untouched model",
    "copied": "the base model itself",
    "foreign": "not trained from the base model",
    "rejected": "rejected",
    "failed": "could not be graded",
    "expired": "was not graded in time",
    "not-submitted": "nothing was submitted",
    "waiting": "not graded yet",
}


def tell(
    record: Recorded,
    attempts: Sequence[Attempt],
    metrics: Metrics,
    time: TimeSplit | None,
    gain: Gain | None,
    compliance: Compliance,
    contradictions: Sequence[Contradiction],
) -> str:
    """Paragraphs: the run, the gain, each attempt, the time, what does not fit."""
    paragraphs = [
        _run(record, metrics),
        _gain(record, gain, attempts),
        " ".join(map(_attempt, _told(attempts))),
        _time(record, time),
        _doubts(compliance, contradictions),
    ]
    return "\n\n".join(paragraph for paragraph in paragraphs if paragraph)


def _run(record: Recorded, metrics: Metrics) -> str:
    spec, view = record.view.spec, record.view
    agent, model = _name(spec.agent), _name(spec.model)
    who = agent if spec.driver is None else f"{agent} driven by {spec.driver}"
    minutes = f"{_minutes(record.timeline.seconds)} of {_minutes(spec.budget.wall_seconds)}"
    said = f"{who} worked on {_name(spec.task)} with {model} in the mode {spec.mode} for {minutes}"
    count = len(view.submissions)
    scored = sum(each.verdict == "scored" for each in view.submissions)
    if not count:
        said += " and submitted nothing."
    else:
        said += f" and made {_many(count, 'submission')}; {scored} {'has' if scored == 1 else 'have'} a score"
        delay = metrics.first_valid_delay
        said += f", the first after {_minutes(delay)}." if delay is not None else "."
    if view.result:
        return f"{said} It ended: {view.result.ending}."
    return f"{said} The run {'is still going' if view.state == 'running' else 'broke off without a result'}."


def _gain(record: Recorded, gain: Gain | None, attempts: Sequence[Attempt]) -> str:
    baseline, best = record.view.baseline, record.best
    if baseline is None:
        return "The untouched model has no score, so there is nothing to compare with."
    said = f"The untouched model scores {baseline.value:.2f} {_interval(baseline.ci)}."
    if best is None or best.score is None:
        return f"{said} Nothing that was trained from it has a score."
    route = next((each.route for each in attempts if each.submission == best.id), None)
    by = f", by {route.name}{_cite(route.evidence[:3])}" if route and route.routes != ("unknown",) else ""
    said += f" The best is submission {best.id} with {best.score.value:.2f} {_interval(best.score.ci)}{by}."
    if gain is None:
        return said
    change = f"{gain.comparison.improvement:+.2f} points {_interval(gain.comparison.ci)}"
    split = "held-out" if gain.split == "heldout" else gain.split
    said += f" On the {split} split that is {change} on the same {gain.n} examples: "
    said += f"{gain.better} got better, {gain.worse} worse (p = {gain.p_value:.2g}). "
    if gain.real is None:
        return said + "That split chose it, so the gain is flattered by the choice."
    lost = gain.comparison.ci.high < 0
    chance = "The loss is real" if lost else "The gain cannot be told from chance"
    said += "The gain is real" if gain.real else chance
    if gain.optimism_gap is None:
        return f"{said}."
    promised = gain.comparison.improvement + gain.optimism_gap
    return f"{said}; the feedback split, which chose it, said {promised:+.2f}."


def _told(attempts: Sequence[Attempt]) -> Sequence[Attempt]:
    if len(attempts) <= MOST_ATTEMPTS:
        return attempts
    kept = {each.number for each in attempts if each.outcome == "improved"}
    ranked = sorted(attempts, key=lambda each: (each.number not in kept, -each.number))
    return sorted(ranked[:MOST_ATTEMPTS], key=lambda each: each.number)


def _attempt(attempt: Attempt) -> str:
    how = attempt.route.name if attempt.route else "no training"
    said = f"Attempt {attempt.number} ({how}"
    if attempt.route and attempt.route.confidence < 0.6 and attempt.route.routes != ("unknown",):
        said += ", uncertain"
    said += f"): {OUTCOMES[attempt.outcome]}"
    said += f", {attempt.score:.2f}" if attempt.score is not None else ""
    said += f" ({attempt.gain:+.2f})" if attempt.gain is not None else ""
    if attempt.failures and attempt.outcome != "improved":
        first = attempt.failures[0]
        said += f"; {_quoted(first.message.rstrip('.'))}{_cite(first.evidence[:3])}"
    return said + "."


def _time(record: Recorded, time: TimeSplit | None) -> str:
    whole = record.timeline.seconds
    if time is None or whole <= 0:
        return ""
    parts = [(name, seconds) for name, seconds in time.model_dump().items() if seconds / whole >= 0.005]
    parts.sort(key=lambda part: -part[1])
    return f"Its time: {', '.join(f'{name} {seconds / whole:.0%}' for name, seconds in parts)}."


def _doubts(compliance: Compliance, contradictions: Sequence[Contradiction]) -> str:
    said = []
    if compliance.verdict in ("broken", "unknown"):
        said.append(f"{compliance.message.rstrip('.')}{_cite(compliance.evidence[:3])}.")
    if contradictions:
        said.append(
            f"The agent's own account differs from the record in {_many(len(contradictions), 'place')}."
        )
    return " ".join(said)


def _quoted(message: str) -> str:
    """It may hold words of the agent's, which cite nothing."""
    return CITATION.sub(r"(\1)", " ".join(message.split()))


def _cite(evidence: Cited | Iterable[str]) -> str:
    names = list(evidence)
    return f" [{', '.join(names)}]" if names else ""


def _interval(ci: Interval) -> str:
    return f"[{ci.low:.1f}, {ci.high:.1f}]"


def _name(plugin: str) -> str:
    """Of what is named by a path, the path's end."""
    head, mark, argument = plugin.partition(":")
    if mark and "/" in argument:
        return f"{head}:{PurePath(argument).name}"
    return PurePath(plugin).name if plugin.startswith("/") else plugin


def _minutes(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
