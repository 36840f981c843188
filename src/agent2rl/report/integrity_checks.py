"""What was checked of a run, and what came of it: whether its figures can be trusted."""

from collections import Counter
from dataclasses import dataclass

from agent2rl.analysis.findings import EvidenceIds
from agent2rl.report import headline, tables
from agent2rl.report.headline import Tone
from agent2rl.report.report_data import ReportData


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
