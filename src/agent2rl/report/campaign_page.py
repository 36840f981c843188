"""The report of many runs: campaign.json, campaign.html, campaign.md, and each figure as SVG, PNG and CSV
with its title and caption.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import matplotlib as mpl
from matplotlib.figure import Figure

from agent2rl.analysis.campaigns.campaign_analysis import CampaignAnalysis
from agent2rl.core.errors import UserError
from agent2rl.record.files import move_into, write_atomically
from agent2rl.report import campaign_charts, campaign_tables, chart_style, formatting, page_templates
from agent2rl.report.chart_style import STYLE

# Which figures the report of a campaign has: each with its title, its caption, and its data as rows.

CAPTIONS = {
    "ranking": "Mean gain over tasks with its 95% interval; a hollow point has too few runs for one. The "
    "darker a rank, the likelier it is under new draws of runs and of examples.",
    "gains": "A point is the gain of one run on the split that ranks (a cross: of a contaminated run); the "
    "bar is their mean.",
    "heatmap": "Mean gain in points over n runs. A star: its 95% interval excludes 0, and still does so "
    "after Holm's correction for all cells of this table that have enough runs, which are {}.",
    "comparisons": "Difference of mean gains with its 95% interval, all else equal. A filled point differs "
    "from 0 after Holm's correction for all pairs of this figure.",
    "trajectories": "The best score so far of each run above the untouched model, as the agent was told it; "
    "black is the median.",
    "scaling": "Median of the best so far over runs of all tasks, and the quartiles of runs, against what "
    "was spent. A run that has ended keeps its last best.",
    "best-of-k": "Expected best gain of k runs (pass@k of the improvement), unbiased, with 95% intervals "
    "where there are enough runs.",
    "routes": "How the models came about that runs left, as reports read it from their code and processes.",
}


@dataclass(frozen=True)
class CampaignFigure:
    name: str
    section: str
    title: str
    caption: str
    draw: Callable[[bool], Figure | None]
    """Whether for a telephone; None where there is nothing to draw."""
    rows: Callable[[], campaign_tables.Table]

    def draw_figure(self, narrow: bool) -> Figure | None:
        with mpl.rc_context(STYLE):
            return self.draw(narrow)


def list_figures(campaign: CampaignAnalysis) -> Iterator[CampaignFigure]:
    """In the order of the page."""
    one = partial(_build_figure, campaign)
    yield one(
        "ranking",
        "leaderboard",
        "The ranking, and how sure it is",
        campaign_charts.draw_ranking,
        campaign_tables.build_ranking_rows,
    )
    yield one(
        "gains",
        "cells",
        "Every run",
        campaign_charts.draw_single_gains,
        campaign_tables.build_single_gain_rows,
    )
    for found in campaign.heatmaps:
        yield CampaignFigure(
            f"heatmap-{found.row_axis}",
            "heatmaps",
            f"{found.row_axis.capitalize()} × task",
            CAPTIONS["heatmap"].format(found.tested),
            partial(campaign_charts.draw_gains, found),
            partial(campaign_tables.build_heatmap_rows, found),
        )
    for family in campaign.families:
        yield CampaignFigure(
            f"comparisons-{family.axis}",
            "comparisons",
            f"Each {family.axis} against each other",
            CAPTIONS["comparisons"],
            partial(campaign_charts.draw_comparisons, family),
            partial(campaign_tables.build_comparison_rows, family),
        )
    yield one(
        "trajectories",
        "scaling",
        "Trajectories",
        campaign_charts.draw_trajectories,
        campaign_tables.build_trajectory_rows,
    )
    yield one(
        "scaling",
        "scaling",
        "What it costs",
        campaign_charts.draw_scaling,
        campaign_tables.build_scaling_rows,
    )
    yield one(
        "best-of-k",
        "passk",
        "The best of k runs",
        campaign_charts.draw_best_of,
        campaign_tables.build_best_of_rows,
    )
    yield one("routes", "routes", "Routes", campaign_charts.draw_routes, campaign_tables.build_route_rows)


def _build_figure(
    campaign: CampaignAnalysis,
    name: str,
    section: str,
    title: str,
    draw: Callable[[CampaignAnalysis, bool], Figure | None],
    rows: Callable[[CampaignAnalysis], campaign_tables.Table],
) -> CampaignFigure:
    return CampaignFigure(
        name, section, title, CAPTIONS[name], partial(draw, campaign), partial(rows, campaign)
    )


# The report of many runs: campaign.json, campaign.html, campaign.md, and each figure as SVG, PNG and CSV.

SECTIONS = {
    "headline": "Headline",
    "leaderboard": "Leaderboard",
    "cells": "Cells",
    "heatmaps": "Heat maps",
    "comparisons": "Comparisons",
    "scaling": "Scaling",
    "passk": "Best of k",
    "routes": "Routes",
    "coverage": "Coverage",
    "making": "How this was made",
}
PAGE = "campaign.html"
SHOWN = 5
"""Runs that could not be read, by name."""


def write(campaign: CampaignAnalysis, target: Path) -> Path:
    """Write all of it; what stops it before the end leaves an earlier one whole. Returns the page."""
    try:
        target.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".new-", dir=target) as aside:
            made = Path(aside)
            texts, drawn = _draw_figures(campaign, made / "figures")
            write_atomically(made / "campaign.json", campaign.model_dump_json() + "\n")
            write_atomically(made / "campaign.md", render_markdown(campaign, drawn))
            write_atomically(made / PAGE, render_html(campaign, drawn, texts))
            write_atomically(
                made / "leaderboard.csv",
                campaign_tables.render_csv(campaign_tables.build_leaderboard_rows(campaign.leaderboard)),
            )
            write_atomically(
                made / "cells.csv",
                campaign_tables.render_csv(campaign_tables.build_cell_rows(campaign.leaderboard)),
            )
            move_into(made, target)
    except OSError as error:
        raise UserError(
            f"The report cannot be written to {target}: {error.strerror}.",
            "Name a folder that you may write with --output, or make room.",
        ) from error
    return target / PAGE


def _draw_figures(campaign: CampaignAnalysis, folder: Path) -> tuple[dict[str, str], list[CampaignFigure]]:
    """Those that there is something to draw in, as SVG for desks and telephones; the files are written."""
    wide = {each.name: (each, each.draw_figure(narrow=False)) for each in list_figures(campaign)}
    drawn = [each for each, found in wide.values() if found]
    texts = chart_style.save_figures({each.name: found for each, found in wide.values() if found}, folder)
    narrow = {each.name + chart_style.NARROW: each.draw_figure(narrow=True) for each in drawn}
    for each in drawn:
        write_atomically(folder / f"{each.name}.csv", campaign_tables.render_csv(each.rows()))
    return texts | chart_style.render_svgs({name: found for name, found in narrow.items() if found}), drawn


def render_html(campaign: CampaignAnalysis, drawn: list[CampaignFigure], texts: Mapping[str, str]) -> str:
    return page_templates.render_page(
        "campaign.html.jinja",
        {
            "figure_text": campaign_tables.format_figure,
            "told": campaign_tables.format_exclusions,
            "succeeded": campaign_tables.format_success,
            "counted": campaign_tables.format_run_count,
            "short_name": formatting.shorten_name,
            "marked_name": campaign_tables.mark_name,
        },
        campaign=campaign,
        title=build_title(campaign),
        sentence=sentence(campaign),
        notes=notes(campaign),
        columns=campaign_tables.list_columns(campaign.leaderboard),
        rows=campaign_tables.build_rows(campaign.leaderboard),
        cells=[
            (row, task, found) for row in campaign.leaderboard.rows for task, found in row.by_task.items()
        ],
        board_notes=campaign_tables.table_notes(campaign.leaderboard),
        drawn={section: [each for each in drawn if each.section == section] for section in SECTIONS},
        figures=page_templates.inline_figures(texts),
        sections=SECTIONS.items(),
    )


def render_markdown(campaign: CampaignAnalysis, drawn: list[CampaignFigure]) -> str:
    parts = [
        f"# {build_title(campaign)}",
        sentence(campaign),
        *notes(campaign),
        campaign_tables.render_markdown(
            campaign.leaderboard, campaign_tables.table_notes(campaign.leaderboard)
        ),
    ]
    for each in drawn:
        parts.append(f"## {each.title}\n\n![{each.title}](figures/{each.name}.svg)\n\n{each.caption}")
        parts.append(f"Data: [{each.name}.csv](figures/{each.name}.csv)")
    return "\n\n".join(part.strip() for part in parts) + "\n"


def build_title(campaign: CampaignAnalysis) -> str:
    return f"Campaign {campaign.name}" if campaign.name else "All runs"


def sentence(campaign: CampaignAnalysis) -> str:
    """What came of it, in one."""
    found = campaign.leaderboard
    counted = found.runs - sum(found.excluded.values())
    if not counted:
        return f"{found.runs} runs, none of which has a gain yet."
    said, first = f"{counted} runs of {len(found.tasks)} tasks", found.rows[0]
    gained = f"{campaign_tables.format_figure(first.place.mean)} points on average over tasks"
    if len(found.rows) == 1:
        return f"{said}: {first.name} gains {gained}."
    if first.place.chances:
        often = f"first in {first.place.chances[0]:.0%} of draws"
        return f"{said}, {len(found.rows)} entries: {first.name} is {often}, with {gained}."
    return f"{said}, {len(found.rows)} entries, none of which has enough runs to be ranked."


def notes(campaign: CampaignAnalysis) -> list[str]:
    found = campaign_tables.contamination_notes(campaign.leaderboard)
    if many := campaign.other_protocol:
        other = "paper" if campaign.protocol == "heldout" else "heldout"
        found.append(f"{many} runs under protocol {other} are left out: their gains are another quantity.")
    if campaign.unreadable:
        shown = "; ".join(campaign.unreadable[:SHOWN])
        more = len(campaign.unreadable) - SHOWN
        found.append(f"Could not be read: {shown}{f' and {more} more' if more > 0 else ''}.")
    return found
