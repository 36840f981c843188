"""Tables about one run as rows of text, for terminals and pages."""

from agent2rl.core.grading_records import EvalScore, Submission, describe_kept_weights
from agent2rl.core.network import NetworkUsage
from agent2rl.core.records import Budget, Rollouts, RunResult, TimeBreakdown
from agent2rl.core.units import strip_path
from agent2rl.record.reader import RunView
from agent2rl.report import descriptions
from agent2rl.report.formatting import format_bytes, format_interval, format_score, pluralize

Rows = list[tuple[str, ...]]

FINDING_COLUMNS = ("file", "example", "part", "words", "share", "matched text")
LEFT_OUT_COLUMNS = ("reason not read", "files", "bytes")
KIND_COLUMNS = ("kind", "untouched", "best")
SUBMISSION_COLUMNS = ("#", "model", "verdict", "score", "95% interval", "gain", "grading")
MOST_PACKAGES = 20
"""How many packages a row lists."""


def build_headline_rows(view: RunView, rollouts: Rollouts | None = None) -> Rows:
    """Return what was run and what the result is.

    `rollouts` are those so far of a run without a result.
    """
    spec = view.spec
    rows: Rows = [
        ("run", view.paths.run_id),
        ("task", spec.task),
        ("agent", f"{spec.agent} ({spec.mode})"),
        *([("driver", spec.driver)] if spec.driver else []),
        ("model", f"{spec.model} on {spec.engine.partition(':')[0]}"),
        ("state", view.state),
    ]
    if spec.agent_python and view.agent_python:
        rows.append(("python", descriptions.describe_python(view.agent_python)))
    if view.state == "crashed" and not view.chain.fault:
        rows.append(("to continue", f"agent2rl resume {view.paths.run_id}"))
    if spec.protocol == "paper":
        rows.append(("protocol", descriptions.describe_protocol(spec)))
    if spec.prompts:
        rows.append(("prompts", f"{spec.prompts.name}: supplied by the user instead of the task's"))
    if spec.search:
        recorded = f", recorded in {spec.record_searches}" if spec.record_searches else ""
        rows.append(("search", spec.search + recorded))
    if spec.judge:
        rows.append(("judge", spec.judge))
    if spec.expert != "full":
        rows.append(("expert", descriptions.describe_expert_help(spec.expert)))
    if spec.clock != "all":
        rows.append(("clock", descriptions.describe_clock(spec.clock)))
    if spec.network != "none":
        rows.append(("network", descriptions.describe_network_policy(spec.network)))
    if view.baseline:
        rows.append(("baseline", format_score(view.baseline)))
    if view.result:
        rows += _build_result_rows(view.result, view.spec.budget)
    elif rollouts:
        rows += build_rollout_rows(rollouts)
        rows.append(("environment steps", descriptions.describe_step_budget(rollouts, spec.budget)))
    if view.audit:
        rows.append(("audit", descriptions.describe_audit(view.audit)))
    if view.submissions:
        rows.append(("weights kept", describe_kept_weights(view.submissions)))
    if view.warning:
        rows.append(("WARNING", view.warning))
    rows += [
        (f"submission {number} again", descriptions.describe_reproduction(each))
        for number, each in sorted(view.latest_reproductions.items())
    ]
    rows += _build_sampling_rows(view)
    rows += _build_judging_rows(view)
    if view.chain.fault:
        rows.append(("record", f"INTEGRITY CHECK FAILED: {view.chain.fault}"))
    rows += [("note", note) for note in view.notes]
    return rows


def build_network_rows(usage: NetworkUsage) -> Rows:
    """Return what the agent downloaded, and what it installed."""
    rows: Rows = [("network use", descriptions.describe_network_usage(usage))]
    if usage.packages:
        more = len(usage.packages) - MOST_PACKAGES
        listed = ", ".join(usage.packages[:MOST_PACKAGES]) + (f" and {more} more" if more > 0 else "")
        rows.append(("installed", listed))
    return rows


def _build_result_rows(result: RunResult, budget: Budget) -> Rows:
    rows: Rows = [("ending", f"{result.ending}. {result.reason}" if result.reason else result.ending)]
    if result.best and result.best.score:
        rows.append(("best", f"submission {result.best.id}: {format_score(result.best.score)}"))
    if result.baseline_heldout and result.best_heldout and result.heldout:
        rows.append(
            ("held-out", f"{format_score(result.baseline_heldout)} → {format_score(result.best_heldout)}")
        )
        if result.ablated_heldout:
            rows.append(("base weights with its other files", format_score(result.ablated_heldout)))
        gain = f"{result.heldout.improvement:+.2f} {format_interval(result.heldout.ci)}"
        rows.append(("improvement", f"{gain}, optimism gap {result.optimism_gap:+.2f}"))
    elif result.score is not None and result.improvement is not None:
        rows.append(
            ("improvement", f"{result.improvement:+.2f} on the test set that also chose it (paper protocol)")
        )
    elif result.best:
        rows.append(("score", "none: the best submission was not graded on the held-out split"))
    elif result.scored:
        rows.append(("score", "none: only the base model itself was submitted"))
    else:
        rows.append(("score", "none: no submission was scored"))
    rows += [(f"also {each.task}", descriptions.describe_panel_result(each)) for each in result.also]
    if result.isolation and result.isolation.level != "full":
        rows.append(("isolation", descriptions.describe_isolation(result.isolation)))
    if result.contamination:
        rows.append(("contamination", descriptions.describe_contamination(result.contamination)))
    if result.contaminated:
        rows.append(("contaminated", "YES: leaderboards and campaign statistics leave this run out"))
    if result.rollouts:
        rows += build_rollout_rows(result.rollouts)
        rows.append(("environment steps", descriptions.describe_step_budget(result.rollouts, budget)))
    if result.train_judge:
        rows.append(("train judge", descriptions.describe_judge_use(result.train_judge)))
    if result.usage:
        rows.append(("driver usage", descriptions.describe_usage(result.usage)))
    if result.judge_usage:
        rows.append(("judge usage", descriptions.describe_usage(result.judge_usage)))
    if result.network:
        rows += build_network_rows(result.network)
    if result.rounds > 1:
        rows.append(("started", f"{result.rounds} times: it exited early and was told to continue"))
    if result.resumed:
        downtime = f"{result.dead_seconds:.0f} s of downtime not counted"
        rows.append(("resumed", f"{pluralize(result.resumed, 'time')}, after a harness crash: {downtime}"))
    if result.clock:
        rows += _build_time_rows(result.clock, budget)
    return rows


def _build_time_rows(clock: TimeBreakdown, budget: Budget) -> Rows:
    training = "" if clock.training is None else f" (training {clock.training:.1f} s)"
    text = f"agent {clock.agent:.1f} s{training}, queue {clock.queue:.1f} s, grading {clock.grading:.1f} s"
    rows: Rows = [("time", text)]
    if clock.gpu is not None:
        limit = "" if budget.gpu_seconds is None else f" of {budget.gpu_seconds / 3600:.4g}"
        rows.append(("GPU time", f"{clock.gpu / 3600:.4g}{limit} GPU hours"))
    return rows


def build_rollout_rows(rollouts: Rollouts) -> Rows:
    """Return what was played in the task's world, and how far the harness saw it itself."""
    rows: Rows = [
        ("claimed", f"{descriptions.describe_rollouts(rollouts.claimed)}, in the agent's own processes")
    ]
    if rollouts.replayed.episodes:
        replayed = descriptions.describe_rollouts(rollouts.replayed)
        rows.append(("replayed", f"{replayed}, with the same result"))
    if rollouts.refuted.episodes:
        refuted = descriptions.describe_rollouts(rollouts.refuted)
        rows.append(("REFUTED", f"{refuted}, replayed with another result"))
    rows.append(("served", f"{descriptions.describe_rollouts(rollouts.served)}, in the harness's world"))
    return rows


def _build_judging_rows(view: RunView) -> Rows:
    """Return how a win rate was judged, and the win rates of constant answers: a judge can be fooled."""
    how = next((score.how for score in reversed(_find_before_and_after(view)) if score), {})
    win_rates = how.get("constants")
    if not isinstance(win_rates, dict):
        return []
    shares = [f"{name} {value}" for name, value in win_rates.items() if name != "examples"]
    return [
        ("scored by", f"{how.get('score')}, {how.get('judge')}"),
        ("constants", f"{', '.join(shares)} (win rates on {win_rates.get('examples')} examples)"),
    ]


def build_kind_rows(view: RunView) -> Rows:
    """Return the scores before and after of each kind of example, for tasks that have kinds."""
    before, after = _find_before_and_after(view)
    names = {name for score in (before, after) if score for name in score.groups}
    return [(name, _format_group(before, name), _format_group(after, name)) for name in sorted(names)]


def _format_group(score: EvalScore | None, name: str) -> str:
    return f"{score.groups[name]:.2f}" if score and name in score.groups else ""


def _find_before_and_after(view: RunView) -> tuple[EvalScore | None, EvalScore | None]:
    """Return the scores of the untouched model and the best submission, on the ranking split if graded."""
    if view.result and view.result.best_heldout:
        return view.result.baseline_heldout, view.result.best_heldout
    return view.baseline, view.result.best.score if view.result and view.result.best else None


def _build_sampling_rows(view: RunView) -> Rows:
    """Return unusual sampling settings and further metrics: of all samples together, and of the task."""
    scores = [score for score in _find_before_and_after(view) if score]
    ways = list(dict.fromkeys(_describe_sampling(score) for score in scores))
    rows: Rows = [("sampling", " → ".join(way or "default" for way in ways))] if any(ways) else []
    for name in scores[-1].metrics if scores else ():
        if "@" not in name or name.endswith(f"@{scores[-1].how.get('samples')}"):
            values = [f"{score.metrics[name]:.2f}" for score in scores if name in score.metrics]
            rows.append((name, f"{' → '.join(values)} ({scores[-1].split}; does not affect the ranking)"))
    return rows


def _describe_sampling(score: EvalScore) -> str:
    """Describe how answers were sampled; empty for the default, one greedy chat answer."""
    how, parts = score.how, []
    if how.get("prompting") == "plain":
        parts.append(f"plain text after {how['shots']} shots" if how.get("shots") else "plain text")
    if how.get("samples", 1) != 1:
        parts.append(f"{how['samples']} samples at temperature {how.get('temperature')}")
    elif how.get("temperature"):
        parts.append(f"one sample at temperature {how['temperature']}")
    return ", ".join(parts)


def build_submission_rows(view: RunView) -> Rows:
    best = view.result.best.id if view.result and view.result.best else None
    return [_build_submission_row(submission, submission.id == best) for submission in view.submissions]


def _build_submission_row(submission: Submission, best: bool) -> tuple[str, ...]:
    score, gain, seconds = submission.score, submission.improvement, submission.grading_seconds
    return (
        f"{submission.id}{' *' if best else ''}",
        submission.path.removeprefix("/workspace/"),
        submission.verdict or "waiting",
        f"{score.value:.2f}" if score else "",
        format_interval(score.ci) if score else "",
        f"{gain:+.2f}" if gain is not None else "",
        f"{seconds:.1f} s" if seconds is not None else "",
    )


def build_finding_rows(view: RunView) -> Rows:
    findings = view.contamination.findings if view.contamination else ()
    return [
        (
            finding.file,
            f"{finding.example} ({finding.split})",
            finding.part,
            str(finding.words),
            f"{finding.share:.0%}",
            finding.text,
        )
        for finding in findings
    ]


def build_left_out_rows(view: RunView) -> Rows:
    left_out = view.contamination.left_out if view.contamination else ()
    return [(group.reason, str(group.files), format_bytes(group.bytes)) for group in left_out]


def list_messages(view: RunView) -> Rows:
    """Return the messages that the agent got with its verdicts."""
    return [(str(submission.id), submission.message) for submission in view.submissions if submission.message]


PANEL_COLUMNS = ("task", "untouched", "best", "change")


def build_panel_rows(result: RunResult | None) -> Rows:
    """Return the effect of training on other tasks; a missing score has its reason in place of the change."""
    return [
        (
            PANEL_NAMES.get(each.task, strip_path(each.task)),
            format_score(each.baseline) if each.baseline else "–",
            format_score(each.best) if each.best else "–",
            descriptions.describe_change(each.change) if each.change else each.reason or "–",
        )
        for each in (result.also if result else ())
    ]


PANEL_NAMES = {"train": "its own training examples"}
