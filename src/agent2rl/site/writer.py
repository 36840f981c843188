"""Renders the pages of a site, and writes them into a folder with the data as CSV and JSON."""

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from agent2rl.analysis.campaigns.campaign_analysis import analyse_campaign
from agent2rl.analysis.findings import TrainingCurves
from agent2rl.core.base_record import Record
from agent2rl.core.errors import UserError
from agent2rl.record.files import move_into, write_atomically
from agent2rl.report import (
    campaign_charts,
    campaign_tables,
    chart_style,
    formatting,
    leaderboard_table,
    page_templates,
    training_figures,
)
from agent2rl.report.chart_style import NARROW, STYLE
from agent2rl.site.collected_runs import PublishedRun
from agent2rl.site.listing import RunListing
from agent2rl.site.rankings import EntryRow, SiteContents, SiteRanking
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
        # In the folder of the site, since files are only moved into place within one file system.
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
    # Anybody may have written the list. It must not make us delete files elsewhere.
    inside = [name for name in names if name and _stays_inside(PurePosixPath(name))]
    return [target / name for name in inside if name not in files]


def _stays_inside(path: PurePosixPath) -> bool:
    return not path.is_absolute() and ".." not in path.parts


def _draw_settings(contents: SiteContents) -> dict[str, dict[str, str]]:
    """Draw the course and the trainings of the runs of each setting; return the SVGs by the setting's key."""
    trainings = {run.digest.run_id: run.trainings for run in contents.runs}
    return {
        ranking.key: _draw_setting(ranking, trainings) for ranking in contents.by_setting if ranking.digests
    }


def _draw_setting(
    ranking: SiteRanking, trainings: Mapping[str, tuple[TrainingCurves, ...]]
) -> dict[str, str]:
    campaign = analyse_campaign(
        ranking.digests,
        (),
        protocol=ranking.protocol,
        include_contaminated=True,
        read_trainings=lambda run_id: trainings[run_id],
    )
    figures: dict[str, Figure | None] = {}
    with mpl.rc_context(STYLE):
        for narrow in (False, True):
            end = ranking.key + (NARROW if narrow else "")
            figures[f"courses-{end}"] = campaign_charts.draw_trajectories(campaign, narrow)
            for task in campaign.trainings:
                figures[f"trainings-{end}"] = training_figures.draw_trainings_of_task(campaign, task, narrow)
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
        "data/runs.csv": campaign_tables.render_csv([_flatten_listing(run) for run in contents.listings]),
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


def _flatten_listing(run: RunListing) -> Mapping[str, campaign_tables.Value]:
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


# Renders the pages of a site. They work from files: no server, no request, and readable without scripts.
#
# Everything about a run is untrusted: it is escaped as in reports, and the policy of each page allows only
# the site's own script.


FOLDER = Path(__file__).with_name("templates")
SLUG_LENGTH, KEY_LENGTH = 48, 8
FILTERS = ("task", "agent", "driver", "model", "mode", "protocol", "network")
"""Columns of the table of runs with a menu to choose from."""


def make_slug(name: str) -> str:
    """Return a file name for any name. Different names have different ones, also where case is ignored."""
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:SLUG_LENGTH]
    if plain and plain == name:
        return plain
    return f"{plain or 'x'}-{hashlib.sha256(name.encode()).hexdigest()[:KEY_LENGTH]}"


def render_all_pages(contents: SiteContents, figures: Mapping[str, Mapping[str, str]]) -> Mapping[str, str]:
    """Return every page by its path in the site. `figures` has the SVGs of each setting."""
    pages = {
        "index.html": _render_page("index.html.jinja", "", contents),
        "runs.html": _render_page("runs.html.jinja", "", contents, runs=contents.listings),
    }
    pages |= {f"runs/{run.listing.run_id}.html": _render_run(contents, run) for run in contents.runs}
    for name, rankings in _group_by_task(contents.by_setting).items():
        pages[f"tasks/{make_slug(name)}.html"] = _render_task(contents, name, rankings, figures)
    for kind in ("agent", "driver"):
        for name in sorted({value for run in contents.listings if (value := getattr(run, kind))}):
            pages[f"{kind}s/{make_slug(name)}.html"] = _render_group(contents, kind, name)
    return pages


def _group_by_task(rankings: Sequence[SiteRanking]) -> dict[str, list[SiteRanking]]:
    by_task: dict[str, list[SiteRanking]] = {}
    for ranking in rankings:
        by_task.setdefault(ranking.task, []).append(ranking)
    return by_task


def _render_task(
    contents: SiteContents,
    name: str,
    rankings: Sequence[SiteRanking],
    figures: Mapping[str, Mapping[str, str]],
) -> str:
    drawn = {
        ranking.key: page_templates.inline_figures(figures[ranking.key])
        for ranking in rankings
        if figures.get(ranking.key)
    }
    runs = [run for run in contents.listings if run.task == name]
    return _render_page(
        "task.html.jinja", "../", contents, name=name, rankings=rankings, drawn=drawn, runs=runs
    )


def _render_group(contents: SiteContents, kind: str, name: str) -> str:
    runs = [run for run in contents.listings if getattr(run, kind) == name]
    entries = [
        (ranking, entry)
        for ranking in contents.by_setting
        for entry in ranking.entries
        if getattr(entry.row, kind) == name
    ]
    return _render_page("group.html.jinja", "../", contents, kind=kind, name=name, runs=runs, entries=entries)


def _render_run(contents: SiteContents, run: PublishedRun) -> str:
    figures = page_templates.inline_figures(run.figures)
    return _render_page("run.html.jinja", "../", contents, run=run, listing=run.listing, figures=figures)


def _render_page(template: str, up: str, contents: SiteContents, **values: Any) -> str:
    charts = page_templates.read_chart_script() if values.get("figures") or values.get("drawn") else ""
    frame = page_templates.describe_frame(_read_style(), charts + read_script())
    page = _create_environment().get_template(template)
    return str(page.render(**values, **frame, up=up, contents=contents, site_title=contents.title))


@cache
def _create_environment() -> Any:
    filters: dict[str, Callable[..., Any]] = {
        "badges": list_badges,
        "figure_text": leaderboard_table.format_figure,
        "name": formatting.shorten_name,
        "rank": leaderboard_table.format_rank,
        "slug": make_slug,
        "succeeded": leaderboard_table.format_success,
        "counted": leaderboard_table.format_run_count,
        "isolation_of_runs": describe_isolation_of_runs,
        "notes_of": leaderboard_table.build_notes,
    }
    environment = page_templates.create_environment(filters, FOLDER)
    environment.globals |= {"menus": list_menus}
    return environment


@cache
def read_script() -> str:
    return (FOLDER / "site.js").read_text(encoding="utf-8")


@cache
def _read_style() -> str:
    return page_templates.read_style() + (FOLDER / "site.css").read_text(encoding="utf-8")


@dataclass(frozen=True)
class Badge:
    tone: str
    text: str
    meaning: str = ""


def list_badges(run: RunListing) -> list[Badge]:
    """Return what a reader must know to judge a score."""
    return [
        *_list_check_badges(run),
        _describe_contamination(run),
        _describe_network(run),
        _describe_sandbox(run),
        *([Badge("bad", "mode broken")] if run.compliance == "broken" else []),
        *([Badge("bad", "warning", run.warning)] if run.warning else []),
        *([Badge("accent", f"reference: {run.reference}")] if run.reference else []),
    ]


def _list_check_badges(run: RunListing) -> list[Badge]:
    checks = run.checks
    badges = {
        True: Badge("good", "verified", "The record is unchanged since the run was closed."),
        False: Badge("bad", "not verified", checks.fault or ""),
        None: Badge("warn", "not checked"),
    }
    found = [badges[checks.verified]]
    for name, outcome in (("reproduced", checks.reproduced), ("audited", checks.audited)):
        if outcome is not None:
            claim = "According to what its sender added to the record."
            found.append(Badge("accent", name, claim) if outcome else Badge("bad", f"not {name}", claim))
    return found


def _describe_contamination(run: RunListing) -> Badge:
    if run.contaminated is None:
        return Badge("warn", "contamination unknown", "The workspace was not searched for evaluation data.")
    if run.contaminated:
        return Badge("bad", "contaminated", "Evaluation data was found in the workspace.")
    return Badge("plain", "no evaluation data found")


def _describe_network(run: RunListing) -> Badge:
    if run.network == "none":
        return Badge("plain", "no network")
    return Badge("warn", f"network {formatting.truncate_text(run.network, 40)}")


def _describe_sandbox(run: RunListing) -> Badge:
    if run.isolation is None:
        return Badge("warn", "isolation unknown")
    if run.isolation == "none":
        return Badge("bad", f"{run.sandbox}: no isolation")
    kept = f"{run.sandbox}: {run.promises_kept} of {len(run.promises)} promises"
    missing = "; ".join(each.name for each in run.promises if not (each.promised and each.holds))
    return Badge("plain" if not missing else "warn", kept, missing)


def describe_isolation_of_runs(entry: EntryRow) -> str:
    """Describe in one cell how far the runs of an entry were isolated."""
    counts: dict[str, int] = {}
    for run in entry.runs:
        counts[run.isolation or "unknown"] = counts.get(run.isolation or "unknown", 0) + 1
    if set(counts) <= {"full"}:
        return "full"
    return ", ".join(f"{level} in {count}" for level, count in sorted(counts.items()))


def list_menus(runs: Sequence[RunListing]) -> dict[str, list[str]]:
    """Return the values to choose from, for the columns that have several."""
    values = {name: sorted({str(getattr(run, name) or "none") for run in runs}) for name in FILTERS}
    return {name: each for name, each in values.items() if len(each) > 1}
