"""What happened, in sentences made by rule from the findings. Each claim names its evidence."""

import re
from collections.abc import Iterable, Sequence
from pathlib import PurePath

from agent2rl.analysis.findings import (
    AttemptFindings,
    Compliance,
    Contradiction,
    EvidenceIds,
    Gain,
    ProcessMetrics,
    TimeSplit,
)
from agent2rl.analysis.recorded_run import RecordedRun
from agent2rl.core.grading_records import Interval

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


def summarise_run(
    record: RecordedRun,
    attempts: Sequence[AttemptFindings],
    metrics: ProcessMetrics,
    time: TimeSplit | None,
    gain: Gain | None,
    compliance: Compliance,
    contradictions: Sequence[Contradiction],
) -> str:
    """Paragraphs: the run, the gain, each attempt, the time, what does not fit."""
    paragraphs = [
        _describe_run(record, metrics),
        _describe_gain(record, gain, attempts),
        " ".join(map(_describe_attempt, _select_attempts(attempts))),
        _describe_time(record, time),
        _describe_doubts(compliance, contradictions),
    ]
    return "\n\n".join(paragraph for paragraph in paragraphs if paragraph)


def _describe_run(record: RecordedRun, metrics: ProcessMetrics) -> str:
    spec, view = record.view.spec, record.view
    agent, model = _short_name(spec.agent), _short_name(spec.model)
    who = agent if spec.driver is None else f"{agent} driven by {spec.driver}"
    minutes = f"{_format_duration(record.timeline.seconds)} of {_format_duration(spec.budget.wall_seconds)}"
    said = f"{who} worked on {_short_name(spec.task)} with {model} in the mode {spec.mode} for {minutes}"
    count = len(view.submissions)
    scored = sum(each.verdict == "scored" for each in view.submissions)
    if not count:
        said += " and submitted nothing."
    else:
        have = "has" if scored == 1 else "have"
        said += f" and made {_pluralise(count, 'submission')}; {scored} {have} a score"
        delay = metrics.first_valid_delay
        said += f", the first after {_format_duration(delay)}." if delay is not None else "."
    if view.result:
        return f"{said} It ended: {view.result.ending}."
    return f"{said} The run {'is still going' if view.state == 'running' else 'broke off without a result'}."


def _describe_gain(record: RecordedRun, gain: Gain | None, attempts: Sequence[AttemptFindings]) -> str:
    baseline, best = record.view.baseline, record.best
    if baseline is None:
        return "The untouched model has no score, so there is nothing to compare with."
    said = f"The untouched model scores {baseline.value:.2f} {_format_interval(baseline.ci)}."
    if best is None or best.score is None:
        return f"{said} Nothing that was trained from it has a score."
    route = next((each.route for each in attempts if each.submission == best.id), None)
    by = (
        f", by {route.name}{_format_citation(route.evidence[:3])}"
        if route and route.routes != ("unknown",)
        else ""
    )
    interval = _format_interval(best.score.ci)
    said += f" The best is submission {best.id} with {best.score.value:.2f} {interval}{by}."
    if gain is None:
        return said
    change = f"{gain.comparison.improvement:+.2f} points {_format_interval(gain.comparison.ci)}"
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


def _select_attempts(attempts: Sequence[AttemptFindings]) -> Sequence[AttemptFindings]:
    if len(attempts) <= MOST_ATTEMPTS:
        return attempts
    kept = {each.number for each in attempts if each.outcome == "improved"}
    ranked = sorted(attempts, key=lambda each: (each.number not in kept, -each.number))
    return sorted(ranked[:MOST_ATTEMPTS], key=lambda each: each.number)


def _describe_attempt(attempt: AttemptFindings) -> str:
    how = attempt.route.name if attempt.route else "no training"
    said = f"Attempt {attempt.number} ({how}"
    if attempt.route and attempt.route.confidence < 0.6 and attempt.route.routes != ("unknown",):
        said += ", uncertain"
    said += f"): {OUTCOMES[attempt.outcome]}"
    said += f", {attempt.score:.2f}" if attempt.score is not None else ""
    said += f" ({attempt.gain:+.2f})" if attempt.gain is not None else ""
    if attempt.failures and attempt.outcome != "improved":
        first = attempt.failures[0]
        said += f"; {_escape_citations(first.message.rstrip('.'))}{_format_citation(first.evidence[:3])}"
    return said + "."


def _describe_time(record: RecordedRun, time: TimeSplit | None) -> str:
    whole = record.timeline.seconds
    if time is None or whole <= 0:
        return ""
    parts = [(name, seconds) for name, seconds in time.model_dump().items() if seconds / whole >= 0.005]
    parts.sort(key=lambda part: -part[1])
    return f"Its time: {', '.join(f'{name} {seconds / whole:.0%}' for name, seconds in parts)}."


def _describe_doubts(compliance: Compliance, contradictions: Sequence[Contradiction]) -> str:
    said = []
    if compliance.verdict in ("broken", "unknown"):
        said.append(f"{compliance.message.rstrip('.')}{_format_citation(compliance.evidence[:3])}.")
    if contradictions:
        said.append(
            f"The agent's own account differs from the record in {_pluralise(len(contradictions), 'place')}."
        )
    return " ".join(said)


def _escape_citations(message: str) -> str:
    """It may hold words of the agent's, which cite nothing."""
    return CITATION.sub(r"(\1)", " ".join(message.split()))


def _format_citation(evidence: EvidenceIds | Iterable[str]) -> str:
    names = list(evidence)
    return f" [{', '.join(names)}]" if names else ""


def _format_interval(ci: Interval) -> str:
    return f"[{ci.low:.1f}, {ci.high:.1f}]"


def _short_name(plugin: str) -> str:
    """Of what is named by a path, the path's end."""
    head, mark, argument = plugin.partition(":")
    if mark and "/" in argument:
        return f"{head}:{PurePath(argument).name}"
    return PurePath(plugin).name if plugin.startswith("/") else plugin


def _format_duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _pluralise(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
