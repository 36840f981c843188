"""Parts of a report that all its forms share, as rows: how a run was set up, its process metrics and split
of time, and what was checked of it.
"""

from collections import Counter
from dataclasses import dataclass

from agent2rl.analysis.findings import EvidenceIds, ProcessMetrics, TimeSplit
from agent2rl.report import formatting, headline, tables
from agent2rl.report.formatting import DOING
from agent2rl.report.headline import Tone
from agent2rl.report.report_data import Activity, ReportData

# How a run was set up, in rows.

Rows = list[tuple[str, str]]


def build_setup_rows(shown: ReportData) -> Rows:
    """What decides a run. Of paths of the machine only the last part is told."""
    spec, budget = shown.view.spec, shown.view.spec.budget
    rows: Rows = [
        ("task", formatting.shorten_name(spec.task)),
        ("agent", formatting.shorten_name(spec.agent)),
        ("driver", formatting.shorten_name(spec.driver or "none")),
        ("model", formatting.shorten_name(spec.model)),
        ("engine", spec.engine.partition(":")[0]),
        ("sandbox", spec.sandbox),
        ("mode", spec.mode),
        ("protocol", spec.protocol),
        ("time", formatting.format_duration(budget.wall_seconds)),
    ]
    limits = {
        "submissions": budget.submissions,
        "environment steps": budget.environment_steps,
        "tokens": budget.tokens,
        "dollars": budget.usd,
    }
    rows += [
        (f"{name}, at most", formatting.format_number(limit))
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
        "expert": None if spec.expert else "withheld",
    }
    if versions := shown.view.instructions_versions:
        rows.append(("instructions", f"version {', then '.join(map(str, versions))}"))
    rows += [
        (name, formatting.shorten_name(str(value))) for name, value in optional.items() if value is not None
    ]
    result = shown.view.result
    if result and result.resumed:
        dead = f"{formatting.format_duration(result.dead_seconds)} of dead time left out"
        rows.append(("resumed after its harness died", f"{tables.pluralize(result.resumed, 'time')}, {dead}"))
    if result:
        rows += [(f"sha256 of {each.name}", each.sha256) for each in result.assets]
    return rows


# The process metrics and the split of time as rows for people.

MEANINGS = {
    "valid_submission_rate": "of the submissions, those that have a score",
    "first_valid_idx": "number of the first submission with a score",
    "first_valid_delay": "from the start to the first submission with a score",
    "score_trajectory": "scores in their order; a dash where there is none",
    "time_to_first_improvement": "from the start to the first score above the untouched model's",
    "time_to_best": "from the start to the best score",
    "monotonic_ratio": "of the steps from one score to the next, those that go up",
    "copy_model_count": "submissions that are the base model",
    "time_used_ratio": "of the budget's time",
    "last_submit_gap": "from the last submission to the end",
    "best_area": "points: mean gain of the best so far over the whole budget",
    "cpu_busy": "cores, on average",
    "gpu_busy": "of the GPUs' time",
}
SECONDS = {"first_valid_delay", "time_to_first_improvement", "time_to_best", "last_submit_gap"}
SHARES = {"valid_submission_rate", "monotonic_ratio", "time_used_ratio", "gpu_busy"}
UNKNOWN = "–"


def build_metric_rows(found: ProcessMetrics) -> list[tuple[str, str, str]]:
    """Name, value and meaning of each; unknown is a dash, never a zero."""
    return [(name, _format_metric(name, getattr(found, name)), meaning) for name, meaning in MEANINGS.items()]


def _format_metric(name: str, value: float | tuple[float | None, ...] | None) -> str:
    if value is None or value == ():
        return UNKNOWN
    if isinstance(value, tuple):
        return ", ".join(UNKNOWN if each is None else f"{each:.2f}" for each in value)
    if name in SECONDS:
        return formatting.format_duration(value)
    return formatting.format_share(value) if name in SHARES else formatting.format_number(value)


def build_activity_rows(time: TimeSplit | None) -> list[tuple[Activity, str, str]]:
    """Where the agent's time went: what, how long, and the share."""
    if time is None:
        return []
    spent = {name: float(getattr(time, name)) for name in DOING}
    total = sum(spent.values()) or 1.0
    return [
        (name, formatting.format_duration(each), formatting.format_share(each / total))
        for name, each in spent.items()
    ]


# What was checked of a run, and what came of it: whether its figures can be trusted.


@dataclass(frozen=True)
class IntegrityCheck:
    name: str
    tone: Tone
    verdict: str
    text: str
    evidence: EvidenceIds = ()


def run_integrity_checks(shown: ReportData) -> list[IntegrityCheck]:
    return [
        _check_compliance(shown),
        _check_ledger_chain(shown),
        _check_isolation(shown),
        _check_contamination(shown),
        _check_lineage(shown),
        _check_files(shown),
    ]


def _check_compliance(shown: ReportData) -> IntegrityCheck:
    found = shown.findings.compliance
    tones: dict[str, Tone] = {"kept": "good", "broken": "bad", "unknown": "warn", "free": "plain"}
    return IntegrityCheck(
        f"Mode {found.mode}", tones[found.verdict], found.verdict, found.message, found.evidence
    )


def _check_ledger_chain(shown: ReportData) -> IntegrityCheck:
    chain, count = shown.view.chain, tables.pluralize(len(shown.view.chain.entries), "record")
    if chain.fault:
        return IntegrityCheck(
            "Hash chain of the record", "bad", "does not hold", f"{chain.fault}; {count} before it"
        )
    torn = "; the last line was cut off in the middle, as by a crash" if chain.torn else ""
    return IntegrityCheck("Hash chain of the record", "warn" if torn else "good", "holds", count + torn)


def _check_isolation(shown: ReportData) -> IntegrityCheck:
    found = shown.view.result.isolation if shown.view.result else None
    if found is None:
        return IntegrityCheck("Isolation", "plain", "not known", "The run has no result that would say.")
    if not found.isolates:
        return IntegrityCheck("Isolation", "bad", "none", f"The sandbox {found.sandbox} promises nothing.")
    if found.broken:
        names = ", ".join(promise.name for promise in found.broken)
        return IntegrityCheck("Isolation", "bad", "broken", f"{found.sandbox}: does not hold: {names}")
    held = tables.pluralize(len(found.promises), "promise")
    return IntegrityCheck(
        "Isolation", "good", "holds", f"{found.sandbox}: {held} seen to hold before the start"
    )


def _check_contamination(shown: ReportData) -> IntegrityCheck:
    found = headline.get_contamination(shown)
    if found is None or not found.done:
        why = found.reason if found else "It is looked for when the agent has ended."
        return IntegrityCheck("Evaluation data", "plain" if found is None else "warn", "not looked for", why)
    if found.contaminated:
        return IntegrityCheck("Evaluation data", "bad", "found", headline.describe_spotted_data(found))
    return IntegrityCheck("Evaluation data", "good", "none found", tables.describe_contamination(found))


def _check_lineage(shown: ReportData) -> IntegrityCheck:
    counts = Counter(one.lineage for one in shown.view.submissions)
    said = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
    if not counts:
        return IntegrityCheck("Whose weights", "plain", "none submitted", "Nothing was submitted.")
    tone: Tone = "bad" if counts["foreign"] else "warn" if counts["unknown"] else "good"
    verdict = "foreign" if counts["foreign"] else "not all known" if counts["unknown"] else "known"
    return IntegrityCheck(
        "Whose weights", tone, verdict, f"{said}, of {tables.pluralize(counts.total(), 'submission')}"
    )


def _check_files(shown: ReportData) -> IntegrityCheck:
    notes = headline.collect_notes(shown)
    if notes:
        return IntegrityCheck("Files of the run", "warn", "not whole", "; ".join(notes))
    return IntegrityCheck("Files of the run", "good", "read", "All that there are could be read.")
