"""Tables about one run as rows of text, for terminals and pages."""

from agent2rl.core.audit_records import FLAG_NAMES, Audit
from agent2rl.core.grading_records import (
    ContaminationSummary,
    EvalScore,
    HeldoutComparison,
    Interval,
    JudgeUsage,
    PanelResult,
    SiblingDistance,
    Submission,
    describe_kept_weights,
)
from agent2rl.core.llm import LlmUsage
from agent2rl.core.network import NetworkUsage
from agent2rl.core.records import (
    Budget,
    Clock,
    ExpertHelp,
    Isolation,
    PythonLock,
    RolloutCounts,
    Rollouts,
    RunResult,
    RunSpec,
    TimeBreakdown,
)
from agent2rl.core.reproduction import Reproduction
from agent2rl.core.units import strip_path
from agent2rl.record.reader import RunView

Rows = list[tuple[str, ...]]

FINDING_COLUMNS = ("file", "example", "part", "words", "share", "matched text")
LEFT_OUT_COLUMNS = ("reason not read", "files", "bytes")
KIND_COLUMNS = ("kind", "untouched", "best")
SUBMISSION_COLUMNS = ("#", "model", "verdict", "score", "95% interval", "gain", "grading")
MOST_HOSTS, MOST_PACKAGES = 5, 20
"""How many hosts and packages a row lists."""


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
        rows.append(("python", describe_python(view.agent_python)))
    if view.state == "crashed" and not view.chain.fault:
        rows.append(("to continue", f"agent2rl resume {view.paths.run_id}"))
    if spec.protocol == "paper":
        rows.append(("protocol", describe_protocol(spec)))
    if spec.prompts:
        rows.append(("prompts", f"{spec.prompts.name}: supplied by the user instead of the task's"))
    if spec.search:
        recorded = f", recorded in {spec.record_searches}" if spec.record_searches else ""
        rows.append(("search", spec.search + recorded))
    if spec.judge:
        rows.append(("judge", spec.judge))
    if spec.expert != "full":
        rows.append(("expert", describe_expert_help(spec.expert)))
    if spec.clock != "all":
        rows.append(("clock", describe_clock(spec.clock)))
    if spec.network != "none":
        rows.append(("network", describe_network_policy(spec.network)))
    if view.baseline:
        rows.append(("baseline", format_score(view.baseline)))
    if view.result:
        rows += _build_result_rows(view.result, view.spec.budget)
    elif rollouts:
        rows += build_rollout_rows(rollouts)
        rows.append(("environment steps", describe_step_budget(rollouts, spec.budget)))
    if view.audit:
        rows.append(("audit", describe_audit(view.audit)))
    if view.submissions:
        rows.append(("weights kept", describe_kept_weights(view.submissions)))
    if view.warning:
        rows.append(("WARNING", view.warning))
    rows += [
        (f"submission {number} again", describe_reproduction(each))
        for number, each in sorted(view.latest_reproductions.items())
    ]
    rows += _build_sampling_rows(view)
    rows += _build_judging_rows(view)
    if view.chain.fault:
        rows.append(("record", f"INTEGRITY CHECK FAILED: {view.chain.fault}"))
    rows += [("note", note) for note in view.notes]
    return rows


def describe_audit(audit: Audit) -> str:
    """Say what an audit raised, or why it was not done. It changes no score."""
    by_votes = [flag for flag in audit.flags if flag.votes]
    raised = [f"{FLAG_NAMES[flag.kind]} ({flag.votes} of {audit.votes} votes)" for flag in by_votes]
    raised += [f"{FLAG_NAMES[flag.kind]} (by rule)" for flag in audit.flags if not flag.votes]
    parts = [f"Raised: {', '.join(raised)}"] if raised else []
    if not audit.done:
        parts.insert(0, f"Not audited by {audit.judge}: {audit.reason.rstrip('.')}")
        return ". ".join(parts) + "."
    parts = parts or ["Nothing was raised by a majority"]
    minority = ", ".join(f"{FLAG_NAMES[flag.kind]} ({flag.votes})" for flag in audit.minority)
    parts += [f"By fewer votes: {minority}"] if minority else []
    unread = [each.name for each in audit.documents if each.read < each.characters]
    parts += [f"Not read in full: {', '.join(unread[:5])}"] if unread else []
    return f"{'. '.join(parts)}. {audit.valid_votes} of {audit.votes} votes of {audit.judge} are valid."


def describe_sibling(distance: SiblingDistance) -> str:
    """Name a sibling of the base model with a submission's distances to it."""
    shares = (("matrices alike", distance.matched), ("of its change", distance.share))
    figures = [f"{value:.0%} {name}" for name, value in shares if value is not None]
    numbers = (("cosine", distance.cosine), ("norms", distance.norms), ("apart", distance.apart))
    figures += [f"{name} {value:.2f}" for name, value in numbers if value is not None]
    return f"{distance.name} ({', '.join(figures)})"


def describe_protocol(spec: RunSpec) -> str:
    if spec.protocol == "paper":
        return f"paper, profile {spec.profile}" if spec.profile else "paper (its split alone)"
    return spec.protocol


def describe_expert_help(level: ExpertHelp) -> str:
    if level == "full":
        return "plays any training game"
    return "none" if level == "none" else f"{level:,} demonstrations"


def describe_python(python: PythonLock) -> str:
    packages = [f"{name} {version}" for name, version in python.training_packages.items()]
    parts = [python.version, *packages, pluralize(len(python.packages), "package")]
    return f"{', '.join(parts)}, lock {python.sha256[:12]}"


def describe_clock(clock: Clock) -> str:
    if clock == "training":
        return "training: the time of submissions does not count"
    return "all: wall time"


def describe_network_policy(policy: str) -> str:
    meanings = {
        "packages": "the registries of PyPI, npm, conda and Debian",
        "allow": "these hosts alone",
        "open": "public hosts, without model hubs that are not named",
    }
    meaning = meanings.get(policy.partition(":")[0])
    return f"{policy}: {meaning}" if meaning else policy


def build_network_rows(usage: NetworkUsage) -> Rows:
    """Return what the agent downloaded, and what it installed."""
    rows: Rows = [("network use", describe_network_usage(usage))]
    if usage.packages:
        more = len(usage.packages) - MOST_PACKAGES
        listed = ", ".join(usage.packages[:MOST_PACKAGES]) + (f" and {more} more" if more > 0 else "")
        rows.append(("installed", listed))
    return rows


def describe_network_usage(usage: NetworkUsage) -> str:
    hosts = [f"{each.host} ({format_bytes(each.received_bytes)})" for each in usage.hosts[:MOST_HOSTS]]
    others = len(usage.hosts) - len(hosts) + usage.other_hosts
    hosts += [pluralize(others, "other host")] if others else []
    text = f"downloaded {format_bytes(usage.received_bytes)}{' from ' if hosts else ''}{', '.join(hosts)}"
    text += f"; sent {format_bytes(usage.sent_bytes)}; {pluralize(usage.requests, 'request')}"
    problems = {"refused": usage.refused, "failed": usage.failed, "not recorded": usage.unrecorded}
    return ", ".join([text, *(f"{count:,} {name}" for name, count in problems.items() if count)])


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
    rows += [(f"also {each.task}", describe_panel_result(each)) for each in result.also]
    if result.isolation and result.isolation.level != "full":
        rows.append(("isolation", describe_isolation(result.isolation)))
    if result.contamination:
        rows.append(("contamination", describe_contamination(result.contamination)))
    if result.contaminated:
        rows.append(("contaminated", "YES: leaderboards and campaign statistics leave this run out"))
    if result.rollouts:
        rows += build_rollout_rows(result.rollouts)
        rows.append(("environment steps", describe_step_budget(result.rollouts, budget)))
    if result.train_judge:
        rows.append(("train judge", describe_judge_use(result.train_judge)))
    if result.usage:
        rows.append(("driver usage", describe_usage(result.usage)))
    if result.judge_usage:
        rows.append(("judge usage", describe_usage(result.judge_usage)))
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
    rows: Rows = [("claimed", f"{describe_rollouts(rollouts.claimed)}, in the agent's own processes")]
    if rollouts.replayed.episodes:
        replayed = describe_rollouts(rollouts.replayed)
        rows.append(("witnessed", f"{replayed}, replayed by the harness"))
    if rollouts.refuted.episodes:
        refuted = describe_rollouts(rollouts.refuted)
        rows.append(("REFUTED", f"{refuted}, claimed; replays have other results"))
    rows.append(("witnessed", f"{describe_rollouts(rollouts.served)}, in the served world"))
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


def describe_judge_use(use: JudgeUsage) -> str:
    counts = {"failed": use.failed, "refused": use.refused}
    problems = [f"{count:,} {outcome}" for outcome, count in counts.items() if count]
    return ", ".join([f"{use.questions:,} of {use.limit:,} questions to {use.judge}", *problems])


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
            rows.append((name, f"{' → '.join(values)} ({scores[-1].split}; does not rank)"))
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


def describe_isolation(isolation: Isolation) -> str:
    """Describe in one line what the sandbox of a run did and did not promise."""
    if isolation.level == "none":
        return f"NONE: the sandbox {isolation.sandbox!r} isolates nothing"
    kept = (
        f"{isolation.sandbox}: {pluralize(len(isolation.promises) - len(isolation.not_kept), 'promise')} kept"
    )
    if isolation.level == "full":
        return kept
    return f"PARTIAL: {kept}; not kept: {'; '.join(promise.name for promise in isolation.not_kept)}"


def describe_contamination(summary: ContaminationSummary) -> str:
    """Describe the search in one line. Files that were not searched are never called clean."""
    if not summary.done:
        return f"NOT CHECKED: {summary.reason}"
    examples = ", ".join(
        f"{pluralize(count, f'{split} example')}" for split, count in summary.flagged.items() if count
    )
    text = (
        f"FOUND: {examples} in {summary.flagged_files} of {pluralize(summary.files, 'file')}"
        if examples
        else f"none found in {pluralize(summary.files, 'file')}"
    )
    if not summary.left_out_files:
        return text
    unread = f"{pluralize(summary.left_out_files, 'file')}, {format_bytes(summary.left_out_bytes)}"
    return f"{text}; not read: {unread}"


def describe_rollouts(counts: RolloutCounts) -> str:
    return (
        f"{pluralize(counts.episodes, 'episode')}, {pluralize(counts.steps, 'step')}, {counts.successes} won"
    )


def describe_step_budget(rollouts: Rollouts, budget: Budget) -> str:
    played, limit = rollouts.played.steps, budget.environment_steps
    left = rollouts.count_steps_left(limit)
    return f"{played:,} played, " + ("unlimited" if left is None else f"{left:,} left of {limit:,}")


def describe_usage(usage: LlmUsage) -> str:
    """Describe requests, tokens and cost of an LLM. An unknown price is never shown as free."""
    tokens = usage.tokens
    cost = "cost unknown" if usage.usd is None else f"{usage.usd:.2f} USD"
    text = f"{pluralize(usage.requests, 'request')}, {tokens.input:,} tokens in ({tokens.cached:,} cached), "
    text += f"{tokens.output:,} out ({tokens.reasoning:,} reasoning), {cost}"
    if usage.failed or usage.refused:
        text += f"; {usage.failed} failed, {usage.refused} refused, {usage.stalled_seconds:.0f} s stalled"
    return text


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


def pluralize(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def format_bytes(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def list_messages(view: RunView) -> Rows:
    """Return the messages that the agent got with its verdicts."""
    return [(str(submission.id), submission.message) for submission in view.submissions if submission.message]


PANEL_COLUMNS = ("task", "untouched", "best", "change")


def build_panel_rows(result: RunResult | None) -> Rows:
    """Return what training cost elsewhere; a missing score has its reason in place of the change."""
    return [
        (
            PANEL_NAMES.get(each.task, strip_path(each.task)),
            format_score(each.baseline) if each.baseline else "–",
            format_score(each.best) if each.best else "–",
            _format_change(each.change) if each.change else each.reason or "–",
        )
        for each in (result.also if result else ())
    ]


PANEL_NAMES = {"train": "its own training examples"}


def describe_panel_result(each: PanelResult) -> str:
    """Return the scores on another task in one line."""
    known = [format_score(score) for score in (each.baseline, each.best) if score]
    change = [_format_change(each.change)] if each.change else []
    reason = [f"not graded: {each.reason}"] if each.reason else []
    return ", ".join(filter(None, (" → ".join(known), *change, *reason)))


def _format_change(change: HeldoutComparison) -> str:
    return f"{change.improvement:+.2f} {format_interval(change.ci)}"


def describe_reproduction(each: Reproduction) -> str:
    """Return the answer and both figures in one line."""
    figures = ""
    if each.original and each.retrained and each.difference:
        split = "held-out" if each.split == "heldout" else each.split
        difference = f"{each.difference.improvement:+.2f} {format_interval(each.difference.ci)}"
        figures = (
            f": {format_score(each.original)} originally, {format_score(each.retrained)} "
            f"retrained ({split}), difference {difference}"
        )
        figures += ", the same weights" if each.same_weights else ""
    reason = f" ({each.reason})" if each.reason and figures else f": {each.reason}" if each.reason else ""
    return f"{each.answer}{figures}{reason}"


def format_score(score: EvalScore) -> str:
    missing = f", {pluralize(score.missing, 'example')} missing" if score.missing else ""
    return f"{score.value:.2f} {format_interval(score.ci)}{missing}"


def format_interval(ci: Interval) -> str:
    return f"[{ci.low:.1f}, {ci.high:.1f}]"
