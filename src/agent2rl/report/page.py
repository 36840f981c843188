"""The report of a run: report.json, report.md, report.html and figures, from the run directory alone."""

import importlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import accumulate

from agent2rl.analysis.analyse import analyse
from agent2rl.analysis.findings import Attempt, Played
from agent2rl.analysis.recorded import Recorded, recorded
from agent2rl.core.records import Rollouts
from agent2rl.report import html, markdown
from agent2rl.report.record import Report
from agent2rl.report.shown import LlmSummary, Shown, Timeline
from agent2rl.store.files import write_atomically, write_record
from agent2rl.store.paths import RunPaths
from agent2rl.store.revisions import Code

LONGEST_DIFF = 1 << 18


def gather(paths: RunPaths) -> Shown:
    """Read and analyse a run in any state."""
    record = recorded(paths)
    findings, notes = analyse(record)
    notes = (*record.notes, *notes)
    return Shown(
        view=record.view,
        findings=findings,
        timeline=_timeline(record),
        diffs=_diffs(record, findings.attempts),
        results=record.results,
        claims=record.claims,
        usage=record.usage,
        notes=notes,
    )


def with_summary(shown: Shown, summary: LlmSummary) -> Shown:
    return replace(shown, llm_summary=summary)


def write(paths: RunPaths, shown: Shown | None = None) -> Report:
    """Write the whole report anew."""
    shown = shown or gather(paths)
    report = Report.of(shown)
    paths.figures.mkdir(parents=True, exist_ok=True)
    plots = importlib.import_module("agent2rl.report.plots")  # matplotlib takes a second to load
    figures = plots.save(shown, paths.figures)
    write_record(paths.report_json, report)
    write_atomically(paths.report_text, markdown.page(shown))
    write_atomically(paths.report_page, html.page(shown, figures))
    return report


def _timeline(record: Recorded) -> Timeline:
    timeline = record.timeline
    if timeline.started is None:
        return Timeline()
    return Timeline(
        started=timeline.started,
        spans=timeline.stretches,
        samples=timeline.samples,
        played=tuple(_played(timeline.played)),
        requests=timeline.requests,
        revisions=tuple(each for _, each in timeline.revisions),
        files=timeline.files,
    )


def _played(news: Sequence[tuple[float, Rollouts]]) -> Iterable[Played]:
    """Counted from the start on."""
    times, counts = zip(*news, strict=True) if news else ((), ())
    sums = accumulate(counts)
    return [Played(at=at, **dict(total)) for at, total in zip(times, sums, strict=True)]


def _diffs(record: Recorded, attempts: Iterable[Attempt]) -> dict[int, str]:
    """Of each attempt against the one before; of the first against what it was given."""
    commits = {each.number: each.commit for _, each in record.timeline.revisions}
    if not commits:
        return {}
    found = {}
    before = commits[min(commits)]
    try:
        code = Code(record.view.paths.revisions)
    except Exception:  # damaged, which the findings have noted
        return {}
    try:
        for attempt in attempts:
            after = commits.get(attempt.revision or 0)
            if after and after != before:
                found[attempt.number] = _cut(code.difference(before, after))
            before = after or before
    except Exception:  # as above: what was read so far is shown
        return found
    finally:
        code.close()
    return found


def _cut(text: str) -> str:
    left = len(text) - LONGEST_DIFF
    return text if left <= 0 else f"{text[:LONGEST_DIFF]}\n[… {left:,} characters left out …]\n"
