"""The report of a run: report.json, report.md, report.html and figures, from the run directory alone."""

import importlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from tempfile import TemporaryDirectory

from agent2rl.analysis.analyse import analyse
from agent2rl.analysis.campaigns.digest import digest
from agent2rl.analysis.findings import Attempt, Played
from agent2rl.analysis.recorded import Recorded, recorded
from agent2rl.core.errors import UserError
from agent2rl.core.records import Rollouts
from agent2rl.report import digests, html, markdown
from agent2rl.report.record import Report
from agent2rl.report.shown import LlmSummary, Shown, Timeline
from agent2rl.store.files import move_into, write_atomically, write_record
from agent2rl.store.paths import RunPaths
from agent2rl.store.revisions import Code

LONGEST_DIFF = 1 << 18


def gather(paths: RunPaths, tell: Callable[[str], None] = lambda _: None) -> Shown:
    """Read and analyse a run in any state; `tell` hears of each of the three steps."""
    tell("reading its record")
    record = recorded(paths)
    tell(f"analysing {len(record.events):,} events")
    findings, notes = analyse(record)
    tell("reading its code")
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
        digest=digest(record, findings),
    )


def with_summary(shown: Shown, summary: LlmSummary) -> Shown:
    return replace(shown, llm_summary=summary)


def write(paths: RunPaths, shown: Shown | None = None, folder: Path | None = None) -> Report:
    """Write the whole report anew, into the run's directory or another folder.

    It is made aside and then put in place: whatever stops it before leaves the old one whole.
    """
    shown = shown or gather(paths)
    report = Report.of(shown)
    target = folder or paths.report
    plots = importlib.import_module("agent2rl.report.plots")  # matplotlib takes a second to load
    try:
        target.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".new-", dir=target) as aside:
            made = Path(aside)
            figures = plots.save(shown, made / paths.figures.name)
            write_record(made / paths.report_json.name, report)
            write_atomically(made / paths.report_text.name, markdown.page(shown))
            write_atomically(made / paths.report_page.name, html.page(shown, figures))
            if shown.digest:
                digests.keep(paths, shown.digest, made / paths.digest.name)
            move_into(made, target)
    except OSError as error:
        raise UserError(
            f"The report cannot be written to {target}: {error.strerror}.",
            "Name a folder that you may write with --output, or make room.",
        ) from error
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
        time=timeline.time,
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
                found[attempt.number] = _cut(code.difference(before, after, LONGEST_DIFF))
            before = after or before
    except Exception:  # as above: what was read so far is shown
        return found
    finally:
        code.close()
    return found


def _cut(text: str) -> str:
    left = len(text) - LONGEST_DIFF
    return text if left <= 0 else f"{text[:LONGEST_DIFF]}\n[… {left:,} characters left out …]\n"
