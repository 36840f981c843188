"""The report of a run: report.json, report.md, report.html and figures, from the run directory alone."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from tempfile import TemporaryDirectory

from agent2rl.analysis.analyse import analyse_run
from agent2rl.analysis.campaigns.run_digest import digest_run
from agent2rl.analysis.findings import AttemptFindings, CumulativeRollouts
from agent2rl.analysis.recorded_run import RecordedRun, read_recorded_run
from agent2rl.core.errors import UserError
from agent2rl.core.records import Rollouts
from agent2rl.report import digests, html, markdown
from agent2rl.report.record import RunReport
from agent2rl.report.report_data import LlmSummary, ReportData, ReportTimeline
from agent2rl.store.files import move_into, write_atomically, write_record
from agent2rl.store.paths import RunPaths
from agent2rl.store.revisions import RevisionReader

LONGEST_DIFF = 1 << 18


def gather_report_data(paths: RunPaths, tell: Callable[[str], None] = lambda _: None) -> ReportData:
    """Read and analyse a run in any state; `tell` hears of each of the three steps."""
    tell("reading its record")
    record = read_recorded_run(paths)
    tell(f"analysing {len(record.events):,} events")
    findings, notes = analyse_run(record)
    tell("reading its code")
    notes = (*record.notes, *notes)
    return ReportData(
        view=record.view,
        findings=findings,
        timeline=_build_timeline(record),
        diffs=_read_diffs(record, findings.attempts),
        results=record.results,
        claims=record.claims,
        usage=record.usage,
        notes=notes,
        digest=digest_run(record, findings),
    )


def add_summary(shown: ReportData, summary: LlmSummary) -> ReportData:
    return replace(shown, llm_summary=summary)


def write_report(paths: RunPaths, shown: ReportData | None = None, folder: Path | None = None) -> RunReport:
    """Write the whole report anew, into the run's directory or another folder.

    It is made aside and then put in place: whatever stops it before leaves the old one whole.
    """
    shown = shown or gather_report_data(paths)
    report = RunReport.from_report_data(shown)
    target = folder or paths.report
    from agent2rl.report import plots  # loads matplotlib, which takes a second

    try:
        target.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".new-", dir=target) as aside:
            made = Path(aside)
            figures = plots.save(shown, made / paths.figures.name)
            write_record(made / paths.report_json.name, report)
            write_atomically(made / paths.report_text.name, markdown.page(shown))
            write_atomically(made / paths.report_page.name, html.page(shown, figures))
            if shown.digest:
                digests.cache_digest(paths, shown.digest, made / paths.digest.name)
            move_into(made, target)
    except OSError as error:
        raise UserError(
            f"The report cannot be written to {target}: {error.strerror}.",
            "Name a folder that you may write with --output, or make room.",
        ) from error
    return report


def _build_timeline(record: RecordedRun) -> ReportTimeline:
    timeline = record.timeline
    if timeline.started is None:
        return ReportTimeline()
    return ReportTimeline(
        started=timeline.started,
        spans=timeline.stretches,
        samples=timeline.samples,
        played=tuple(_accumulate_rollouts(timeline.played)),
        requests=timeline.requests,
        revisions=tuple(each for _, each in timeline.revisions),
        files=timeline.files,
        time=timeline.time,
    )


def _accumulate_rollouts(news: Sequence[tuple[float, Rollouts]]) -> Iterable[CumulativeRollouts]:
    """Counted from the start on."""
    times, counts = zip(*news, strict=True) if news else ((), ())
    sums = accumulate(counts)
    return [CumulativeRollouts(at=at, **dict(total)) for at, total in zip(times, sums, strict=True)]


def _read_diffs(record: RecordedRun, attempts: Iterable[AttemptFindings]) -> dict[int, str]:
    """Of each attempt against the one before; of the first against what it was given."""
    commits = {each.number: each.commit for _, each in record.timeline.revisions}
    if not commits:
        return {}
    found = {}
    before = commits[min(commits)]
    try:
        code = RevisionReader(record.view.paths.revisions)
    except Exception:  # damaged, which the findings have noted
        return {}
    try:
        for attempt in attempts:
            after = commits.get(attempt.revision or 0)
            if after and after != before:
                found[attempt.number] = _truncate_diff(code.diff_commits(before, after, LONGEST_DIFF))
            before = after or before
    except Exception:  # as above: what was read so far is shown
        return found
    finally:
        code.close()
    return found


def _truncate_diff(text: str) -> str:
    left = len(text) - LONGEST_DIFF
    return text if left <= 0 else f"{text[:LONGEST_DIFF]}\n[… {left:,} characters left out …]\n"
