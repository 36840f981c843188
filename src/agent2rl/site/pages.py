"""Renders the pages of a site. They work from files: no server, no request, and readable without scripts.

Everything about a run is untrusted: it is escaped as in reports, and the policy of each page allows only the
site's own script.
"""

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from agent2rl.report import formatting, leaderboard_table, page_templates
from agent2rl.site.contents import SiteContents
from agent2rl.site.listing import RunListing
from agent2rl.site.published_run import PublishedRun
from agent2rl.site.rankings import EntryRow, SiteRanking

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
        "index.html": _render("index.html.jinja", "", contents),
        "runs.html": _render("runs.html.jinja", "", contents, runs=contents.listings),
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
    return _render("task.html.jinja", "../", contents, name=name, rankings=rankings, drawn=drawn, runs=runs)


def _render_group(contents: SiteContents, kind: str, name: str) -> str:
    runs = [run for run in contents.listings if getattr(run, kind) == name]
    entries = [
        (ranking, entry)
        for ranking in contents.by_setting
        for entry in ranking.entries
        if getattr(entry.row, kind) == name
    ]
    return _render("group.html.jinja", "../", contents, kind=kind, name=name, runs=runs, entries=entries)


def _render_run(contents: SiteContents, run: PublishedRun) -> str:
    figures = page_templates.inline_figures(run.figures)
    return _render("run.html.jinja", "../", contents, run=run, listing=run.listing, figures=figures)


def _render(template: str, up: str, contents: SiteContents, **values: Any) -> str:
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
    """Return what a reader must know before taking a score for what it looks like."""
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
            claim = "By additions to the record, which its sender made."
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
