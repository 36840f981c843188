"""Read one run for a site: its digest, its listing, and the parts of its page. Runs in a worker process.

Nothing is taken from the run's `report/`, which no hash covers: everything is computed from the record again.
"""

import json
from collections.abc import Callable
from pathlib import Path

from agent2rl.analysis.campaigns.run_digest import RunDigest
from agent2rl.core.errors import UserError
from agent2rl.core.record import Record
from agent2rl.record.directory_check import find_fault
from agent2rl.record.paths import RunPaths
from agent2rl.report import formatting, headline, run_figures, run_report, sections, tables
from agent2rl.report.report_data import ReportData
from agent2rl.site.listing import RunChecks, RunListing, list_run, publish_digest

FIGURES = ("scores", "training", "rollouts", "timeline")
MOST_ASSETS = 50


class PageTile(Record):
    label: str
    value: str
    note: str
    tone: str


class PageCheck(Record):
    name: str
    tone: str
    verdict: str
    text: str


class PublishedRun(Record):
    """Everything that the site shows of a run. All texts are untrusted."""

    digest: RunDigest
    listing: RunListing
    title: str
    sentence: str
    tiles: tuple[PageTile, ...]
    integrity: tuple[PageCheck, ...]
    submissions: tuple[tuple[str, ...], ...]
    assets: tuple[tuple[str, str, str], ...]
    """Name, source and hash of each input."""
    figures: dict[str, str]
    """SVG by name; those for narrow screens end in `.narrow`."""


RunChecker = Callable[[RunPaths], RunChecks]


def read_published_run(check: RunChecker, root: str, source: str) -> str:
    """Return the JSON of a `PublishedRun`; `source` names where the run came from."""
    paths = RunPaths(Path(root))
    if fault := find_fault(paths):
        raise UserError(f"It {fault}.")
    checks = check(paths)
    data = run_report.gather_report_data(paths)
    if data.view.state == "running":
        raise UserError("It is still running.")
    if data.view.result and data.view.result.run_id != paths.run_id:
        raise UserError("Its directory does not have the name of the run in its record.")
    if data.digest is None:
        raise UserError("It has no digest.")
    digest = publish_digest(data.digest, source)
    _require_finite(digest)
    return PublishedRun(
        digest=digest,
        listing=list_run(data.view, digest, checks),
        title=headline.build_title(data),
        sentence=headline.build_sentence(data),
        tiles=tuple(PageTile(**vars(each)) for each in headline.build_tiles(data)),
        integrity=tuple(
            PageCheck(name=each.name, tone=each.tone, verdict=each.verdict, text=each.text)
            for each in sections.run_integrity_checks(data)
        ),
        submissions=tuple(tables.build_submission_rows(data.view)),
        assets=_list_assets(data),
        figures={
            name: svg
            for name, svg in run_figures.render_all_svgs(data).items()
            if name.partition(".")[0] in FIGURES
        },
    ).model_dump_json()


def _require_finite(digest: RunDigest) -> None:
    """Refuse numbers that are none: they would spoil the statistics of all others."""
    try:
        json.dumps(digest.model_dump(mode="python"), allow_nan=False)
    except ValueError as error:
        raise UserError("It has a number that is not finite.") from error


def _list_assets(data: ReportData) -> tuple[tuple[str, str, str], ...]:
    assets = data.view.result.assets if data.view.result else ()
    return tuple(
        (each.name, formatting.shorten_name(each.source), each.sha256) for each in assets[:MOST_ASSETS]
    )
