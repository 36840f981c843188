"""What a report says first: one line, one sentence, key figures, and what a reader must be warned of."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from agent2rl.analysis.findings import Gain
from agent2rl.core.grading_records import ContaminationSummary, EvalScore, Interval
from agent2rl.core.records import Ending
from agent2rl.report import formatting, tables
from agent2rl.report.report_data import ReportData

Tone = Literal["good", "bad", "warn", "plain"]

ENDINGS: dict[Ending, str] = {
    "completed": "The agent ended by itself.",
    "deadline": "The agent worked until its time was up.",
    "agent-failed": "The agent ended with an error.",
    "out-of-memory": "The agent ran out of memory.",
    "too-many-processes": "The agent started too many processes.",
    "disk-full": "The agent filled its disk.",
    "budget-exhausted": "The agent's tokens or dollars ran out.",
    "login-failed": "The driver's provider refused the key.",
    "rate-limited": "The driver's provider let no more requests through.",
    "driver-failed": "The driver failed until the agent gave up.",
    "interrupted": "Somebody stopped the run.",
    "failed": "The harness could not run it.",
}
SPLITS = {"feedback": "feedback", "heldout": "held-out", "test": "test"}


@dataclass(frozen=True)
class RankedGain:
    """What the run is ranked by."""

    gain: float
    ci: Interval | None


@dataclass(frozen=True)
class HeadlineTile:
    label: str
    value: str
    note: str = ""
    tone: Tone = "plain"


@dataclass(frozen=True)
class HeadlineFlag:
    """A warning, and the section that says more."""

    tone: Tone
    text: str
    section: str = "integrity"


def build_title(shown: ReportData) -> str:
    """The outcome in a few words."""
    return _build_outcome_title(shown) + (", contaminated" if shown.view.contaminated else "")


def _build_outcome_title(shown: ReportData) -> str:
    view, task = shown.view, formatting.shorten_name(shown.view.spec.task)
    ranked = _find_ranked_gain(shown)
    if ranked:
        return f"{formatting.format_points(ranked.gain)} points on {task}"
    if view.state == "running":
        return f"Still running on {task}"
    if view.state == "crashed":
        return f"Broken off on {task}"
    if view.submissions:
        return f"No score on {task}"
    return f"Nothing submitted on {task}"


def build_sentence(shown: ReportData) -> str:
    """What was run, what came of it, whether that is real, and how it ended."""
    verdict = [*_describe_gain(shown.findings.gain)]
    if shown.view.contaminated:
        verdict.append("The run is contaminated: evaluation data was found in its workspace.")
    return " ".join(
        [f"{_describe_setup(shown)} {_describe_outcome(shown)}", *verdict, _describe_ending(shown)]
    )


def _describe_setup(shown: ReportData) -> str:
    spec = shown.view.spec
    agent, task, model = (formatting.shorten_name(name) for name in (spec.agent, spec.task, spec.model))
    driver = f", driven by {formatting.shorten_name(spec.driver)}," if spec.driver else ""
    mode = "" if spec.mode == "free" else f" in mode {spec.mode}"
    worked = (
        f"worked {formatting.format_duration(time)} on"
        if (time := _measure_agent_time(shown))
        else "worked on"
    )
    return f"The agent {agent}{driver} {worked} {task} with the model {model}{mode}."


def _describe_outcome(shown: ReportData) -> str:
    view, ranked, pair = shown.view, _find_ranked_gain(shown), find_before_and_after(shown)
    if ranked and pair:
        before, after = pair
        return (
            f"Its best submission scored {tables.format_score(after)} on the {SPLITS[after.split]} examples, "
            f"where the untouched model has {tables.format_score(before)}{_describe_ablation(shown)}: "
            f"{formatting.format_points(ranked.gain)} points{_format_signed_interval(ranked.ci)}."
        )
    scored = [one for one in view.submissions if one.score]
    scores = [one.score.value for one in scored if one.score and one.lineage not in ("copied", "foreign")]
    if scored:
        base = f"; the untouched model has {tables.format_score(view.baseline)}" if view.baseline else ""
        best = f"at best {max(scores):.2f}" if scores else "none of them trained from the base model"
        return f"{tables.pluralize(len(scored), 'submission')} scored, {best}{base}."
    base = f" The untouched model has {tables.format_score(view.baseline)}." if view.baseline else ""
    if view.submissions:
        return f"None of {tables.pluralize(len(view.submissions), 'submission')} has a score.{base}"
    return f"Nothing was submitted.{base}"


def _describe_ablation(shown: ReportData) -> str:
    """What does not count of the gain, where the submission differs in more than weights."""
    result = shown.view.result
    ablated = result.ablated_heldout or (result.best.ablated if result.best else None) if result else None
    return (
        f" ({tables.format_score(ablated)} with the submission's chat format and tokens)" if ablated else ""
    )


def _describe_gain(gain: Gain | None) -> Iterator[str]:
    if gain is None:
        return
    chance = formatting.format_p_value(gain.p_value)
    if gain.real is None:
        yield f"No split that chose nothing was graded, so choosing may have flattered this ({chance})."
    elif gain.real:
        yield f"The gain is real: the interval excludes 0 ({chance}, paired)."
    elif gain.comparison.ci.high < 0:
        yield f"The loss is real: the interval excludes 0 ({chance}, paired)."
    elif gain.comparison.ci.low > 0:
        yield f"That may be chance: too few examples changed to tell ({chance})."
    else:
        yield f"That may be chance: the interval holds 0 ({chance})."


def _describe_ending(shown: ReportData) -> str:
    if shown.view.result:
        return ENDINGS[shown.view.result.ending]
    if shown.view.state == "running":
        return "The run is still going."
    return "The run broke off: no harness is at work on it, and it has no result."


def build_tiles(shown: ReportData) -> list[HeadlineTile]:
    """Only what is known."""
    view, gain, found = shown.view, shown.findings.gain, []
    if view.baseline:
        found.append(
            HeadlineTile("Untouched model", f"{view.baseline.value:.2f}", _describe_score(view.baseline))
        )
    best = view.result.best if view.result else None
    if best and best.score:
        found.append(
            HeadlineTile(
                f"Best, submission {best.id}", f"{best.score.value:.2f}", _describe_score(best.score)
            )
        )
    if view.result and view.result.best_heldout:
        heldout = view.result.best_heldout
        found.append(HeadlineTile("Best, held out", f"{heldout.value:.2f}", _describe_score(heldout)))
    ranked = _find_ranked_gain(shown)
    if ranked:
        real = gain.real if gain else None
        lost = bool(gain) and real is False and ranked.ci is not None and ranked.ci.high < 0
        tone: Tone = "good" if real and not view.contaminated else "bad" if lost else "plain"
        said = "real" if real or lost else "may be chance" if real is False else "not tested apart"
        found.append(
            HeadlineTile(
                "Gain",
                formatting.format_points(ranked.gain),
                f"{_format_signed_interval(ranked.ci).strip()}\n{said}",
                tone,
            )
        )
    gap = view.result.optimism_gap if view.result else None
    if gap is not None:
        found.append(
            HeadlineTile("Optimism gap", formatting.format_points(gap), "feedback gain\nless held-out gain")
        )
    scored = sum(one.score is not None for one in view.submissions)
    found.append(HeadlineTile("Submissions", str(len(view.submissions)), f"{scored} scored"))
    time, budget = _measure_agent_time(shown), view.spec.budget.wall_seconds
    if time:
        used = f"{formatting.format_share(time / budget)} of {formatting.format_duration(budget)}"
        found.append(HeadlineTile("Agent's time", formatting.format_duration(time), used))
    usage = view.result.usage if view.result else None
    if usage:
        cost = "cost not known" if usage.usd is None else f"{usage.usd:.2f} USD"
        found.append(HeadlineTile("Driver's tokens", _format_count(usage.tokens.total), cost))
    return found


def build_flags(shown: ReportData) -> list[HeadlineFlag]:
    view, found = shown.view, []
    if view.state == "running":
        found.append(
            HeadlineFlag("plain", "The run is still going: this is what was recorded so far.", "timeline")
        )
    if view.state == "crashed":
        found.append(
            HeadlineFlag("warn", "The run broke off without a result: what it recorded is shown.", "timeline")
        )
    if view.result and view.result.reason:
        found.append(
            HeadlineFlag("plain" if view.result.ended_well else "warn", view.result.reason, "timeline")
        )
    if view.chain.fault:
        found.append(HeadlineFlag("bad", f"The record does not hold: {view.chain.fault}."))
    if shown.findings.compliance.verdict == "broken":
        found.append(HeadlineFlag("bad", f"The mode was not kept. {shown.findings.compliance.message}"))
    checked = get_contamination(shown)
    if checked and checked.contaminated:
        found.append(
            HeadlineFlag(
                "bad",
                "This run is contaminated, so leaderboards and campaign statistics leave it out. "
                f"Evaluation data lies in what the agent left: {describe_spotted_data(checked)}.",
            )
        )
    elif checked and checked.contaminated is None:
        reason = (checked.reason or "the workspace was not searched").rstrip(".")
        found.append(HeadlineFlag("warn", f"Whether this run is contaminated is unknown: {reason}."))
    if view.result and view.result.isolation and not view.result.isolation.isolates:
        found.append(HeadlineFlag("warn", f"The sandbox {view.result.isolation.sandbox} isolates nothing."))
    if shown.findings.contradictions:
        count = tables.pluralize(len(shown.findings.contradictions), "claim")
        found.append(HeadlineFlag("warn", f"The record contradicts {count} of the agent.", "story"))
    damaged = collect_notes(shown)
    if damaged:
        found.append(HeadlineFlag("warn", f"The record is not whole: {'; '.join(damaged[:3])}."))
    return found


def collect_notes(shown: ReportData) -> list[str]:
    """What could not be read, or was not recorded."""
    return list(dict.fromkeys((*shown.view.notes, *shown.notes)))


def get_contamination(shown: ReportData) -> ContaminationSummary | None:
    return shown.view.contamination_summary


def describe_spotted_data(found: ContaminationSummary) -> str:
    """Without the verdict, which stands beside it."""
    return tables.describe_contamination(found).removeprefix("FOUND: ")


def find_before_and_after(shown: ReportData) -> tuple[EvalScore, EvalScore] | None:
    """The untouched model and the best submission, on the split that ranks."""
    result = shown.view.result
    if result and result.baseline_heldout and result.best_heldout:
        return result.baseline_heldout, result.best_heldout
    if result and result.baseline and result.best and result.best.score:
        return result.baseline, result.best.score
    return None


def _measure_agent_time(shown: ReportData) -> float | None:
    """That the agent had; without a result, that was recorded of it."""
    if shown.view.result and shown.view.result.clock:
        return shown.view.result.clock.agent
    return max((each.ended for each in shown.timeline.spans), default=None)


def _find_ranked_gain(shown: ReportData) -> RankedGain | None:
    result, gain = shown.view.result, shown.findings.gain
    if gain:
        return RankedGain(gain.comparison.improvement, gain.comparison.ci)
    if result and result.heldout:
        return RankedGain(result.heldout.improvement, result.heldout.ci)
    if result and result.improvement is not None:
        return RankedGain(result.improvement, None)
    return None


def _format_signed_interval(ci: Interval | None) -> str:
    return f" [{ci.low:+.1f}, {ci.high:+.1f}]".replace("-", "−") if ci else ""


def _describe_score(score: EvalScore) -> str:
    split = SPLITS.get(score.split, score.split)
    return f"{tables.format_interval(score.ci)}\n{split}, {tables.pluralize(score.n, 'example')}"


def _format_count(count: int) -> str:
    for size, unit in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return str(count)
