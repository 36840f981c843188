"""Writes a site into a folder: pages, and the data as CSV and JSON."""

import json
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

import matplotlib as mpl

from agent2rl.analysis.campaigns.campaign_analysis import analyse_campaign
from agent2rl.core.errors import UserError
from agent2rl.core.record import Record
from agent2rl.record.files import move_into, write_atomically
from agent2rl.report import campaign_charts, campaign_tables, chart_style
from agent2rl.report.chart_style import NARROW, STYLE
from agent2rl.site.contents import SiteContents
from agent2rl.site.listing import RunListing
from agent2rl.site.pages import make_slug, render_all_pages
from agent2rl.site.rankings import SiteRanking
from agent2rl.site.references import ReferenceRow

MANIFEST = ".agent2rl-site"
"""Lists the files of a site, so that the next one in this folder can remove those that it has no more."""
VERSION = 1


class SiteReferences(Record):
    setting: str
    protocol: str
    rows: tuple[ReferenceRow, ...]


class RefusedListing(Record):
    name: str
    reason: str


class SiteData(Record):
    """data/runs.json: everything that the site shows of runs."""

    version: int = VERSION
    title: str
    runs: tuple[RunListing, ...]
    refused: tuple[RefusedListing, ...]
    references: tuple[SiteReferences, ...]


def write_site(contents: SiteContents, target: Path) -> Path:
    """Write the site and return the path of its first page.

    A site that is there is replaced, other files stay. A folder whose pages are not ours is refused.
    """
    _require_own_folder(target)
    try:
        target.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".new-", dir=target) as temporary:
            folder = Path(temporary)
            files = {**render_all_pages(contents, _draw_settings(contents)), **_render_data(contents)}
            for name, text in files.items():
                place = folder / name
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_text(text, encoding="utf-8")
            stale = _list_stale_files(target, files)
            move_into(folder, target)
        for path in stale:
            path.unlink(missing_ok=True)
        write_atomically(target / MANIFEST, "".join(f"{name}\n" for name in sorted(files)))
    except OSError as error:
        raise UserError(
            f"Cannot write the site to {target}: {error.strerror}.",
            "Choose a writable folder with --output, or free some disk space.",
        ) from error
    return target / "index.html"


def _require_own_folder(target: Path) -> None:
    if (target / "index.html").exists() and not (target / MANIFEST).is_file():
        raise UserError(
            f"{target} has pages that agent2rl site did not write.", "Choose an empty folder with --output."
        )


def _list_stale_files(target: Path, files: Mapping[str, str]) -> list[Path]:
    """Return the files of an earlier site that this one does not have."""
    try:
        names = (target / MANIFEST).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    inside = [name for name in names if name and _stays_inside(PurePosixPath(name))]
    return [target / name for name in inside if name not in files]


def _stays_inside(path: PurePosixPath) -> bool:
    return not path.is_absolute() and ".." not in path.parts


def _draw_settings(contents: SiteContents) -> dict[str, dict[str, str]]:
    """Draw the course of all runs of each setting; return the SVGs by the setting's key."""
    return {ranking.key: _draw_courses(ranking) for ranking in contents.by_setting if ranking.digests}


def _draw_courses(ranking: SiteRanking) -> dict[str, str]:
    campaign = analyse_campaign(ranking.digests, (), protocol=ranking.protocol, include_contaminated=True)
    with mpl.rc_context(STYLE):
        figures = {
            f"courses-{ranking.key}{NARROW if narrow else ''}": campaign_charts.draw_trajectories(
                campaign, narrow
            )
            for narrow in (False, True)
        }
    return chart_style.render_svgs({name: figure for name, figure in figures.items() if figure})


def _render_data(contents: SiteContents) -> dict[str, str]:
    data = SiteData(
        title=contents.title,
        runs=contents.listings,
        refused=tuple(RefusedListing(name=each.name, reason=each.reason) for each in contents.refused),
        references=tuple(
            SiteReferences(setting=each.name, protocol=each.protocol, rows=each.references)
            for each in contents.by_setting
        ),
    )
    files = {
        "data/runs.json": data.model_dump_json(indent=1) + "\n",
        "data/runs.csv": campaign_tables.render_csv([_flatten(run) for run in contents.listings]),
    }
    for ranking in contents.by_protocol:
        files |= _render_ranking(ranking, f"data/leaderboard-{ranking.protocol}")
    for ranking in contents.by_setting:
        files |= _render_ranking(ranking, f"data/{ranking.protocol}-{make_slug(ranking.name)}")
    return files


def _render_ranking(ranking: SiteRanking, name: str) -> dict[str, str]:
    rows = campaign_tables.build_leaderboard_rows(ranking.board)
    marked = [
        {**row, "score": campaign_tables.round_value(entry.score), "reference": entry.reference}
        for row, entry in zip(rows, ranking.entries, strict=True)
    ]
    return {
        f"{name}.csv": campaign_tables.render_csv(marked),
        f"{name}.json": ranking.board.model_dump_json() + "\n",
    }


def _flatten(run: RunListing) -> Mapping[str, campaign_tables.Value]:
    """Return a run as a line of CSV."""
    row = run.model_dump(mode="json", exclude={"checks", "promises"})
    checks = run.checks.model_dump(include={"verified", "fault", "head", "reproduced", "audited"})
    promises = {"promises": len(run.promises), "promises_kept": run.promises_kept}
    return {name: _flatten_value(value) for name, value in {**row, **promises, **checks}.items()}


def _flatten_value(value: object) -> campaign_tables.Value:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None or isinstance(value, str | int | float):
        return value
    return json.dumps(value)
