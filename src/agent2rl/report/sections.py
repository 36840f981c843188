"""Sections that all report formats share, as rows: configuration, process metrics, time split, checks."""

from collections import Counter
from dataclasses import dataclass

from agent2rl.analysis.findings import EvidenceIds, MetricName, ProcessMetrics, TimeSplit, TrainingCurves
from agent2rl.core.grading_records import describe_kept_weights
from agent2rl.report import descriptions, formatting, headline
from agent2rl.report.formatting import DOING
from agent2rl.report.headline import Tone
from agent2rl.report.report_data import Activity, ReportData

# Configuration of a run.

Rows = list[tuple[str, str]]


def build_setup_rows(data: ReportData) -> Rows:
    """Return the settings that determine a run. Only the last part of local paths is shown."""
    spec, budget = data.view.spec, data.view.spec.budget
    rows: Rows = [
        ("task", formatting.shorten_name(spec.task)),
        ("agent", formatting.shorten_name(spec.agent)),
        ("driver", formatting.shorten_name(spec.driver or "none")),
        ("model", formatting.shorten_name(spec.model)),
        ("engine", spec.engine.partition(":")[0]),
        ("sandbox", data.view.used_sandbox),
        ("mode", spec.mode),
        ("protocol", descriptions.describe_protocol(spec)),
        ("time", formatting.format_duration(budget.wall_seconds)),
        *([] if spec.clock == "all" else [("clock", descriptions.describe_clock(spec.clock))]),
        ("network", descriptions.describe_network_policy(spec.network)),
    ]
    limits = {
        "submissions": budget.submissions,
        "environment steps": budget.environment_steps,
        "tokens": budget.tokens,
        "dollars": budget.usd,
        "GPU hours": budget.gpu_seconds and budget.gpu_seconds / 3600,
    }
    rows += [
        (f"max {name}", formatting.format_number(limit))
        for name, limit in limits.items()
        if limit is not None
    ]
    rows += [("seed", str(spec.seed)), ("answers per example", str(spec.samples))]
    optional = {
        "temperature": spec.temperature,
        "prompts": spec.prompts.name if spec.prompts else None,
        "search": spec.search,
        "judge": spec.judge,
        "training judge": spec.train_judge,
        "expert": None if spec.expert == "full" else descriptions.describe_expert_help(spec.expert),
    }
    if versions := data.view.instructions_versions:
        rows.append(("instructions", f"version {', then '.join(map(str, versions))}"))
    if python := data.view.agent_python:
        rows.append(("agent's Python", descriptions.describe_python(python)))
    if data.view.submissions:
        rows.append(("weights kept", describe_kept_weights(data.view.submissions)))
    rows += [
        (name, formatting.shorten_name(str(value))) for name, value in optional.items() if value is not None
    ]
    result = data.view.result
    if result and result.resumed:
        dead = f"{formatting.format_duration(result.dead_seconds)} of downtime not counted"
        rows.append(
            ("resumed after a harness crash", f"{formatting.pluralize(result.resumed, 'time')}, {dead}")
        )
    if result:
        rows += [(f"sha256 of {asset.name}", asset.sha256) for asset in result.assets]
    return rows


# Process metrics and time split.

MEANINGS = {
    "valid_submission_rate": "share of submissions that have a score",
    "first_valid_idx": "number of the first submission with a score",
    "first_valid_delay": "time from the start to the first submission with a score",
    "score_trajectory": "scores in order; a dash for a submission without one",
    "time_to_first_improvement": "time from the start to the first score above the untouched model's",
    "time_to_best": "time from the start to the best score",
    "monotonic_ratio": "share of steps from one score to the next that go up",
    "copy_model_count": "submissions that are copies of the base model",
    "time_used_ratio": "share of the time budget used",
    "last_submit_gap": "time from the last submission to the end",
    "best_area": "mean gain of the best so far over the whole budget, in points",
    "cpu_busy": "busy cores on average",
    "gpu_busy": "share of GPU time in use",
}
SECONDS = {"first_valid_delay", "time_to_first_improvement", "time_to_best", "last_submit_gap"}
SHARES = {"valid_submission_rate", "monotonic_ratio", "time_used_ratio", "gpu_busy"}
UNKNOWN = "–"


def build_metric_rows(metrics: ProcessMetrics) -> list[tuple[str, str, str]]:
    """Return name, value and meaning of each metric; unknown is a dash, never a zero."""
    return [
        (name, _format_metric(name, getattr(metrics, name)), meaning) for name, meaning in MEANINGS.items()
    ]


def _format_metric(name: str, value: float | tuple[float | None, ...] | None) -> str:
    if value is None or value == ():
        return UNKNOWN
    if isinstance(value, tuple):
        return ", ".join(UNKNOWN if each is None else f"{each:.2f}" for each in value)
    if name in SECONDS:
        return formatting.format_duration(value)
    if name == "best_area":
        return formatting.format_points(value)
    return formatting.format_share(value) if name in SHARES else formatting.format_number(value)


def build_activity_rows(time: TimeSplit | None) -> list[tuple[Activity, str, str]]:
    """Return how the agent spent its time: activity, duration and share."""
    if time is None:
        return []
    spent = {name: float(getattr(time, name)) for name in DOING}
    total = sum(spent.values()) or 1.0
    return [
        (name, formatting.format_duration(seconds), formatting.format_share(seconds / total))
        for name, seconds in spent.items()
    ]


# Trainings, by the logs that they wrote.

TRAINING_COLUMNS = ("training", "log", "format", "steps", "reward", "loss", "submissions", "problem")


@dataclass(frozen=True)
class TrainingRow:
    training: TrainingCurves
    steps: str
    reward: str
    """First and last value."""
    loss: str

    @property
    def submissions(self) -> str:
        marks = self.training.submissions
        return ", ".join(f"{one.submission} at step {formatting.format_number(one.step)}" for one in marks)

    @property
    def cells(self) -> tuple[str, ...]:
        one = self.training
        return (
            *(one.name, one.path, one.format, self.steps, self.reward, self.loss),
            *(self.submissions, one.problem),
        )


def build_training_rows(data: ReportData, drawn: bool = False) -> list[TrainingRow]:
    """Return a row for each training; with `drawn`, only those that have a value to draw."""
    rows = []
    for training in data.findings.trainings:
        steps = [step for series in training.series for step, value in series.points if value is not None]
        if steps or not drawn:
            ends = [formatting.format_number(step) for step in (min(steps), max(steps))] if steps else []
            reward, loss = _format_change(training, "reward"), _format_change(training, "loss")
            rows.append(TrainingRow(training, " to ".join(ends) or UNKNOWN, reward, loss))
    return rows


def _format_change(training: TrainingCurves, metric: MetricName) -> str:
    points = next((series.points for series in training.series if series.metric == metric), ())
    values = [value for _, value in points if value is not None]
    if not values:
        return UNKNOWN
    return f"{formatting.format_number(values[0])} → {formatting.format_number(values[-1])}"


# Integrity checks: whether the figures of a run can be trusted.


@dataclass(frozen=True)
class IntegrityCheck:
    name: str
    tone: Tone
    verdict: str
    text: str
    evidence: EvidenceIds = ()


def run_integrity_checks(data: ReportData) -> list[IntegrityCheck]:
    return [
        _check_compliance(data),
        _check_ledger_chain(data),
        _check_isolation(data),
        *_check_network(data),
        _check_contamination(data),
        _check_lineage(data),
        *_check_audit(data),
        *_check_rollouts(data),
        *_check_reproductions(data),
        _check_files(data),
    ]


def _check_compliance(data: ReportData) -> IntegrityCheck:
    compliance = data.findings.compliance
    tones: dict[str, Tone] = {"kept": "good", "broken": "bad", "unknown": "warn", "free": "plain"}
    return IntegrityCheck(
        f"Mode {compliance.mode}",
        tones[compliance.verdict],
        compliance.verdict,
        compliance.message,
        compliance.evidence,
    )


def _check_ledger_chain(data: ReportData) -> IntegrityCheck:
    chain, count = data.view.chain, formatting.pluralize(len(data.view.chain.entries), "record")
    if chain.fault:
        return IntegrityCheck(
            "Hash chain of the record", "bad", "broken", f"{chain.fault}; {count} before it"
        )
    torn = "; the last line is incomplete, as after a crash" if chain.torn else ""
    return IntegrityCheck("Hash chain of the record", "warn" if torn else "good", "intact", count + torn)


def _check_isolation(data: ReportData) -> IntegrityCheck:
    isolation = data.view.result.isolation if data.view.result else None
    if isolation is None:
        return IntegrityCheck("Isolation", "plain", "unknown", "The run has no result yet.")
    if not isolation.isolates:
        return IntegrityCheck(
            "Isolation", "bad", "none", f"The sandbox {isolation.sandbox} isolates nothing."
        )
    if isolation.broken:
        names = ", ".join(promise.name for promise in isolation.broken)
        return IntegrityCheck("Isolation", "bad", "broken", f"{isolation.sandbox}: violated: {names}")
    if isolation.level == "partial":
        return IntegrityCheck("Isolation", "warn", "partial", descriptions.describe_isolation(isolation))
    count = formatting.pluralize(len(isolation.promises), "promise")
    return IntegrityCheck(
        "Isolation", "good", "verified", f"{isolation.sandbox}: {count} verified before the start"
    )


def _check_network(data: ReportData) -> list[IntegrityCheck]:
    """Check what the agent downloaded, if it had a network. A finished model may come from a model hub."""
    usage = data.view.result.network if data.view.result else None
    if usage is None:
        return []
    text = descriptions.describe_network_usage(usage)
    if hubs := usage.model_hubs:
        listed = ", ".join(f"{each.host} ({formatting.format_bytes(each.received_bytes)})" for each in hubs)
        text = f"Downloads from model hubs, which offer trained models: {listed}. In all: {text}"
        return [IntegrityCheck("Network", "bad", "model hub", text)]
    if usage.record_fault:
        return [IntegrityCheck("Network", "bad", "record not whole", text)]
    return [IntegrityCheck("Network", "plain", usage.policy.partition(":")[0], text)]


def _check_contamination(data: ReportData) -> IntegrityCheck:
    summary = headline.get_contamination(data)
    if summary is None or not summary.done:
        reason = summary.reason if summary else "The workspace is searched after the agent has exited."
        tone: Tone = "plain" if summary is None else "warn"
        return IntegrityCheck("Evaluation data", tone, "not searched", reason)
    if summary.contaminated:
        return IntegrityCheck("Evaluation data", "bad", "found", headline.describe_spotted_data(summary))
    return IntegrityCheck(
        "Evaluation data", "good", "none found", descriptions.describe_contamination(summary)
    )


def _check_lineage(data: ReportData) -> IntegrityCheck:
    counts = Counter(submission.lineage for submission in data.view.submissions)
    listed = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
    if not counts:
        return IntegrityCheck("Origin of the weights", "plain", "none submitted", "Nothing was submitted.")
    tone: Tone = "bad" if counts["foreign"] else "warn" if counts["unknown"] else "good"
    verdict = "foreign" if counts["foreign"] else "partly unknown" if counts["unknown"] else "known"
    text = f"{listed}, of {formatting.pluralize(counts.total(), 'submission')}"
    return IntegrityCheck(
        "Origin of the weights", tone, verdict, "; ".join([text, *_describe_siblings(data)])
    )


def _describe_siblings(data: ReportData) -> list[str]:
    """Name the known siblings that submissions look like; if there are none, the closest one."""
    distances = data.view.sibling_distances
    alike = [(number, each) for number, each in distances if each.resemblance]
    if alike:
        return [
            f"submission {number} looks like {descriptions.describe_sibling(each)}" for number, each in alike
        ]
    known = [(number, each) for number, each in distances if each.cosine is not None]
    if not known:
        return []
    number, closest = max(known, key=lambda one: one[1].cosine or 0.0)
    return [
        f"the closest to a known sibling is submission {number}: {descriptions.describe_sibling(closest)}"
    ]


def _check_audit(data: ReportData) -> list[IntegrityCheck]:
    """Check the flags of the last audit, if there was one. No flags do not mean that there is nothing."""
    audit = data.view.audit
    if audit is None:
        return []
    text = descriptions.describe_audit(audit)
    if audit.flags:
        return [IntegrityCheck("Audit by a judge", "bad", "flags" if audit.done else "not audited", text)]
    if not audit.done:
        return [IntegrityCheck("Audit by a judge", "warn", "not audited", text)]
    return [IntegrityCheck("Audit by a judge", "plain", "no flags", text)]


def _check_rollouts(data: ReportData) -> list[IntegrityCheck]:
    """Check the claimed episodes, if there are any."""
    rollouts = data.rollouts
    if rollouts is None or not rollouts.claimed.episodes:
        return []
    counts = [
        f"{count.episodes:,} {name}"
        for name, count in (
            ("replayed", rollouts.replayed),
            ("refuted", rollouts.refuted),
            ("not verified", rollouts.unverified),
        )
        if count.episodes
    ]
    text = f"{', '.join(counts)}, of {formatting.pluralize(rollouts.claimed.episodes, 'claimed episode')}"
    if rollouts.refuted.episodes:
        return [IntegrityCheck("Claimed episodes", "bad", "refuted", text)]
    if not rollouts.replayed.episodes:
        return [IntegrityCheck("Claimed episodes", "plain", "not verified", text)]
    return [IntegrityCheck("Claimed episodes", "good", "replayed", text)]


def _check_reproductions(data: ReportData) -> list[IntegrityCheck]:
    """Show the last attempt to reproduce each submission, if there was any."""
    tones: dict[str, Tone] = {"reproduced": "good", "not reproduced": "bad", "cannot": "warn"}
    return [
        IntegrityCheck(
            f"Submission {number}, trained again",
            tones[each.answer],
            each.answer,
            descriptions.describe_reproduction(each).removeprefix(each.answer).removeprefix(": "),
        )
        for number, each in sorted(data.view.latest_reproductions.items())
    ]


def _check_files(data: ReportData) -> IntegrityCheck:
    notes = headline.collect_notes(data)
    if notes:
        return IntegrityCheck("Run files", "warn", "incomplete", "; ".join(notes))
    return IntegrityCheck("Run files", "good", "complete", "All files could be read.")
