"""What was checked of a run, and what came of it: whether its figures can be trusted."""

from collections import Counter
from dataclasses import dataclass

from agent2rl.analysis.findings import Cited
from agent2rl.report import headline, tables
from agent2rl.report.headline import Tone
from agent2rl.report.shown import Shown


@dataclass(frozen=True)
class Check:
    name: str
    tone: Tone
    verdict: str
    text: str
    evidence: Cited = ()


def checks(shown: Shown) -> list[Check]:
    return [
        _compliance(shown),
        _chain(shown),
        _isolation(shown),
        _contamination(shown),
        _lineage(shown),
        _files(shown),
    ]


def _compliance(shown: Shown) -> Check:
    found = shown.findings.compliance
    tones: dict[str, Tone] = {"kept": "good", "broken": "bad", "unknown": "warn", "free": "plain"}
    return Check(f"Mode {found.mode}", tones[found.verdict], found.verdict, found.message, found.evidence)


def _chain(shown: Shown) -> Check:
    chain, count = shown.view.chain, tables.many(len(shown.view.chain.entries), "record")
    if chain.fault:
        return Check("Hash chain of the record", "bad", "does not hold", f"{chain.fault}; {count} before it")
    torn = "; the last line was cut off in the middle, as by a crash" if chain.torn else ""
    return Check("Hash chain of the record", "warn" if torn else "good", "holds", count + torn)


def _isolation(shown: Shown) -> Check:
    found = shown.view.result.isolation if shown.view.result else None
    if found is None:
        return Check("Isolation", "plain", "not known", "The run has no result that would say.")
    if not found.isolates:
        return Check("Isolation", "bad", "none", f"The sandbox {found.sandbox} promises nothing.")
    if found.broken:
        names = ", ".join(promise.name for promise in found.broken)
        return Check("Isolation", "bad", "broken", f"{found.sandbox}: does not hold: {names}")
    held = tables.many(len(found.promises), "promise")
    return Check("Isolation", "good", "holds", f"{found.sandbox}: {held} seen to hold before the start")


def _contamination(shown: Shown) -> Check:
    found = headline.contamination(shown)
    if found is None or not found.done:
        why = found.reason if found else "It is looked for when the agent has ended."
        return Check("Evaluation data", "plain" if found is None else "warn", "not looked for", why)
    if found.contaminated:
        return Check("Evaluation data", "bad", "found", headline.spotted(found))
    return Check("Evaluation data", "good", "none found", tables.contamination(found))


def _lineage(shown: Shown) -> Check:
    counts = Counter(one.lineage for one in shown.view.submissions)
    said = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
    if not counts:
        return Check("Whose weights", "plain", "none submitted", "Nothing was submitted.")
    tone: Tone = "bad" if counts["foreign"] else "warn" if counts["unknown"] else "good"
    verdict = "foreign" if counts["foreign"] else "not all known" if counts["unknown"] else "known"
    return Check("Whose weights", tone, verdict, f"{said}, of {tables.many(counts.total(), 'submission')}")


def _files(shown: Shown) -> Check:
    notes = headline.notes(shown)
    if notes:
        return Check("Files of the run", "warn", "not whole", "; ".join(notes))
    return Check("Files of the run", "good", "read", "All that there are could be read.")
