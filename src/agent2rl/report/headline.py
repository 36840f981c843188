"""The top of a report: title, one-sentence summary, key figures and warnings."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from agent2rl.analysis.findings import Gain
from agent2rl.core.grading_records import ContaminationSummary, EvalScore, Interval
from agent2rl.core.records import Ending
from agent2rl.report import descriptions, formatting
from agent2rl.report.report_data import ReportData

Tone = Literal["good", "bad", "warn", "plain"]

ENDINGS: dict[Ending, str] = {
    "completed": "The agent exited by itself.",
    "deadline": "The agent used all of its time.",
    "agent-failed": "The agent exited with an error.",
    "out-of-memory": "The agent ran out of memory.",
    "too-many-processes": "The agent started too many processes.",
    "disk-full": "The agent filled its disk.",
    "budget-exhausted": "The budget of tokens, dollars or GPU time ran out.",
    "login-failed": "The driver's provider rejected the API key.",
    "rate-limited": "The driver's provider rate-limited the requests.",
    "driver-failed": "The driver kept failing until the agent gave up.",
    "interrupted": "The run was interrupted.",
    "failed": "The harness failed, or the agent could not begin.",
}
SPLITS = {"feedback": "feedback", "heldout": "held-out", "test": "test"}


@dataclass(frozen=True)
class RankedGain:
    """The gain that leaderboards rank the run by."""

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
    """A warning, and the section with the details."""

    tone: Tone
    text: str
    section: str = "integrity"


def build_title(data: ReportData) -> str:
    """Return the outcome in a few words."""
    return _build_outcome_title(data) + (", contaminated" if data.view.contaminated else "")


def _build_outcome_title(data: ReportData) -> str:
    view, task = data.view, formatting.shorten_name(data.view.spec.task)
    ranked = _find_ranked_gain(data)
    if ranked:
        return f"{formatting.format_points(ranked.gain)} points on {task}"
    if view.state == "running":
        return f"Still running on {task}"
    if view.state == "crashed":
        return f"Crashed on {task}"
    if view.submissions:
        return f"No score on {task}"
    return f"Nothing submitted on {task}"


def build_sentence(data: ReportData) -> str:
    """Say what was run, what score it reached, whether the gain is real, and how it ended."""
    verdict = [*_describe_gain(data.findings.gain)]
    if data.view.contaminated:
        verdict.append("The run is contaminated: evaluation data was found in its workspace.")
    return " ".join([f"{_describe_setup(data)} {_describe_outcome(data)}", *verdict, _describe_ending(data)])


def _describe_setup(data: ReportData) -> str:
    spec = data.view.spec
    agent, task, model = (formatting.shorten_name(name) for name in (spec.agent, spec.task, spec.model))
    driver = f", driven by {formatting.shorten_name(spec.driver.partition('@')[0])}," if spec.driver else ""
    mode = "" if spec.mode == "free" else f" in mode {spec.mode}"
    network = "" if spec.network == "none" else f", with the network policy {spec.network}"
    verb = (
        f"worked {formatting.format_duration(time)} on"
        if (time := _measure_agent_time(data))
        else "worked on"
    )
    return f"The agent {agent}{driver} {verb} {task} with the model {model}{mode}{network}."


def _describe_outcome(data: ReportData) -> str:
    view, ranked, pair = data.view, _find_ranked_gain(data), find_before_and_after(data)
    if ranked and pair:
        before, after = pair
        return (
            f"Its best submission scored {formatting.format_score(after)} on the {SPLITS[after.split]} "
            f"examples, where the untouched model scores {formatting.format_score(before)}"
            f"{_describe_ablation(data)}: "
            f"{formatting.format_points(ranked.gain)} points{_format_signed_interval(ranked.ci)}."
        )
    scored = [submission for submission in view.submissions if submission.score]
    scores = [one.score.value for one in scored if one.score and one.lineage not in ("copied", "foreign")]
    if scored:
        base = (
            f"; the untouched model scores {formatting.format_score(view.baseline)}" if view.baseline else ""
        )
        best = f"at best {max(scores):.2f}" if scores else "none of them was trained from the base model"
        return f"{formatting.pluralize(len(scored), 'submission')} scored, {best}{base}."
    base = f" The untouched model scores {formatting.format_score(view.baseline)}." if view.baseline else ""
    if view.submissions:
        return f"{formatting.pluralize(len(view.submissions), 'submission')}, none of them scored.{base}"
    return f"Nothing was submitted.{base}"


def _describe_ablation(data: ReportData) -> str:
    """Describe the part of the gain that does not count: what other files than the weights contribute."""
    result = data.view.result
    ablated = result.ablated_heldout or (result.best.ablated if result.best else None) if result else None
    return (
        f" ({formatting.format_score(ablated)} with the submission's chat format and tokens)"
        if ablated
        else ""
    )


def _describe_gain(gain: Gain | None) -> Iterator[str]:
    if gain is None:
        return
    chance = formatting.format_p_value(gain.p_value)
    if gain.real is None:
        yield f"The gain may be optimistic: it is measured on the split that chose the submission ({chance})."
    elif gain.real:
        yield f"The gain is real: the interval excludes 0 ({chance}, paired)."
    elif gain.comparison.ci.high < 0:
        yield f"The loss is real: the interval excludes 0 ({chance}, paired)."
    elif gain.comparison.ci.low > 0:
        yield f"This may be chance: too few examples changed to tell ({chance})."
    else:
        yield f"This may be chance: the interval includes 0 ({chance})."


def _describe_ending(data: ReportData) -> str:
    if data.view.result:
        return ENDINGS[data.view.result.ending]
    if data.view.state == "running":
        return "The run is still in progress."
    return "The run crashed: it has no result, and no harness is working on it."


def build_tiles(data: ReportData) -> list[HeadlineTile]:
    """Return the key figures; unknown ones are left out."""
    view, gain, tiles = data.view, data.findings.gain, list[HeadlineTile]()
    if view.baseline:
        tiles.append(
            HeadlineTile("Untouched model", f"{view.baseline.value:.2f}", _describe_score(view.baseline))
        )
    best = view.result.best if view.result else None
    if best and best.score:
        tiles.append(
            HeadlineTile(
                f"Best, submission {best.id}", f"{best.score.value:.2f}", _describe_score(best.score)
            )
        )
    if view.result and view.result.best_heldout:
        heldout = view.result.best_heldout
        tiles.append(HeadlineTile("Best, held out", f"{heldout.value:.2f}", _describe_score(heldout)))
    ranked = _find_ranked_gain(data)
    if ranked:
        real = gain.real if gain else None
        lost = bool(gain) and real is False and ranked.ci is not None and ranked.ci.high < 0
        tone: Tone = "good" if real and not view.contaminated else "bad" if lost else "plain"
        note = "real" if real or lost else "may be chance" if real is False else "no separate test"
        tiles.append(
            HeadlineTile(
                "Gain",
                formatting.format_points(ranked.gain),
                f"{_format_signed_interval(ranked.ci).strip()}\n{note}",
                tone,
            )
        )
    gap = view.result.optimism_gap if view.result else None
    if gap is not None:
        tiles.append(
            HeadlineTile("Optimism gap", formatting.format_points(gap), "feedback gain minus\nheld-out gain")
        )
    scored = sum(one.score is not None for one in view.submissions)
    tiles.append(HeadlineTile("Submissions", str(len(view.submissions)), f"{scored} scored"))
    time, budget = _measure_agent_time(data), view.spec.budget.wall_seconds
    if time:
        used = f"{formatting.format_share(time / budget)} of {formatting.format_duration(budget)}"
        tiles.append(HeadlineTile("Agent time", formatting.format_duration(time), used))
    usage = view.result.usage if view.result else None
    if usage:
        cost = "cost unknown" if usage.usd is None else f"{usage.usd:.2f} USD"
        tiles.append(HeadlineTile("Driver tokens", _format_count(usage.tokens.total), cost))
    return tiles


def build_flags(data: ReportData) -> list[HeadlineFlag]:
    view, flags = data.view, list[HeadlineFlag]()
    if view.state == "running":
        flags.append(
            HeadlineFlag("plain", "The run is still in progress: this is the record so far.", "timeline")
        )
    if view.state == "crashed":
        flags.append(
            HeadlineFlag("warn", "The run crashed without a result: this is what it recorded.", "timeline")
        )
    if view.result and view.result.reason:
        flags.append(
            HeadlineFlag("plain" if view.result.ended_well else "warn", view.result.reason, "timeline")
        )
    if view.chain.fault:
        flags.append(HeadlineFlag("bad", f"The record failed its integrity check: {view.chain.fault}."))
    if data.findings.compliance.verdict == "broken":
        flags.append(HeadlineFlag("bad", f"The run violated its mode. {data.findings.compliance.message}"))
    if view.warning:
        flags.append(HeadlineFlag("bad", view.warning))
    checked = get_contamination(data)
    if checked and checked.contaminated:
        flags.append(
            HeadlineFlag(
                "bad",
                "This run is contaminated, so leaderboards and campaign statistics leave it out. "
                f"Evaluation data was found in the workspace: {describe_spotted_data(checked)}.",
            )
        )
    elif checked and checked.contaminated is None:
        reason = (checked.reason or "the workspace was not searched").rstrip(".")
        flags.append(HeadlineFlag("warn", f"It is unknown whether this run is contaminated: {reason}."))
    if view.result and view.result.isolation and not view.result.isolation.isolates:
        flags.append(HeadlineFlag("warn", f"The sandbox {view.result.isolation.sandbox} isolates nothing."))
    elif view.result and view.result.isolation and view.result.isolation.not_kept:
        many = formatting.pluralize(len(view.result.isolation.not_kept), "promise")
        name = view.result.isolation.sandbox
        flags.append(HeadlineFlag("warn", f"The sandbox {name} isolates in part: {many} not kept."))
    network = view.result.network if view.result else None
    if network and network.model_hubs:
        hosts = ", ".join(each.host for each in network.model_hubs)
        flags.append(HeadlineFlag("bad", f"The agent downloaded from a model hub: {hosts}."))
    if network and network.record_fault:
        flags.append(HeadlineFlag("bad", "The record of the agent's requests is not whole."))
    again = view.best_reproduction
    if again and again.answer == "not reproduced":
        text = descriptions.describe_reproduction(again)
        flags.append(HeadlineFlag("bad", f"The best submission, trained again from its code: {text}."))
    if view.audit and view.audit.flags:
        flags.append(HeadlineFlag("bad", f"{descriptions.describe_audit(view.audit)}"))
    if data.findings.contradictions:
        count = formatting.pluralize(len(data.findings.contradictions), "claim")
        flags.append(HeadlineFlag("warn", f"The record contradicts {count} by the agent.", "story"))
    damaged = collect_notes(data)
    if damaged:
        flags.append(HeadlineFlag("warn", f"The record is incomplete: {'; '.join(damaged[:3])}."))
    return flags


def collect_notes(data: ReportData) -> list[str]:
    """List what could not be read or was not recorded."""
    return list(dict.fromkeys((*data.view.notes, *data.notes)))


def get_contamination(data: ReportData) -> ContaminationSummary | None:
    return data.view.contamination_summary


def describe_spotted_data(summary: ContaminationSummary) -> str:
    """Describe the contamination without the verdict, which is shown next to it."""
    return descriptions.describe_contamination(summary).removeprefix("FOUND: ")


def find_before_and_after(data: ReportData) -> tuple[EvalScore, EvalScore] | None:
    """Return the scores of the untouched model and the best submission on the ranking split."""
    result = data.view.result
    if result and result.baseline_heldout and result.best_heldout:
        return result.baseline_heldout, result.best_heldout
    if result and result.baseline and result.best and result.best.score:
        return result.baseline, result.best.score
    return None


def _measure_agent_time(data: ReportData) -> float | None:
    """Return the agent's seconds; without a result, those that were recorded."""
    if data.view.result and data.view.result.clock:
        return data.view.result.clock.agent
    return max((each.ended for each in data.timeline.spans), default=None)


def _find_ranked_gain(data: ReportData) -> RankedGain | None:
    result, gain = data.view.result, data.findings.gain
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
    return f"{formatting.format_interval(score.ci)}\n{split}, {formatting.pluralize(score.n, 'example')}"


def _format_count(count: int) -> str:
    for size, unit in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return str(count)
