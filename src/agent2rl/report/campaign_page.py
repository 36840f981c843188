"""Writes the report of many runs: campaign.json, campaign.html, campaign.md, and each figure with data."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import matplotlib as mpl
from matplotlib.figure import Figure

from agent2rl.analysis.campaigns.campaign_analysis import CampaignAnalysis
from agent2rl.core.errors import UserError
from agent2rl.record.files import move_into, write_atomically
from agent2rl.report import (
    campaign_charts,
    campaign_tables,
    chart_style,
    formatting,
    latex_tables,
    leaderboard_table,
    page_templates,
    training_figures,
)
from agent2rl.report.chart_style import STYLE

# Figures of the report, each with title, caption and data.

CAPTIONS = {
    "ranking": "Mean gain over tasks with its 95% interval; a hollow point has too few runs for one. The "
    "darker a rank, the more often it occurs when runs and examples are resampled.",
    "gains": "Each point is the gain of one run on the ranking split; crosses are contaminated runs. The bar "
    "is the mean.",
    "heatmap": "Mean gain in points over n runs. A star: the 95% interval excludes 0, also after "
    "Holm's correction for the {} cells of this table that have enough runs.",
    "comparisons": "Difference of mean gains with its 95% interval, all else equal. A filled point differs "
    "significantly from 0 after Holm's correction for all pairs of this figure.",
    "trajectories": "Best feedback score so far of each run, above the untouched model; the black line "
    "is the median.",
    "scaling": "Median and quartiles of the best gain so far over runs of all tasks, against what was spent. "
    "A run that has ended keeps its last best gain.",
    "best-of-k": "Unbiased expected best gain of k runs (pass@k of the improvement), with 95% intervals if "
    "there are enough runs.",
    "training": "Metrics of the trainings of {} runs over their steps, by their own logs, which an agent can "
    "fake. Runs are chosen by entry and seed. A triangle or circle is a submission.",
    "routes": "Training routes of the runs' models, as reports infer them from code and processes.",
}


@dataclass(frozen=True)
class CampaignFigure:
    name: str
    section: str
    title: str
    caption: str
    draw: Callable[[bool], Figure | None]
    """Takes whether to draw for a narrow screen; returns None if there is nothing to draw."""
    rows: Callable[[], campaign_tables.Table]

    def draw_figure(self, narrow: bool) -> Figure | None:
        with mpl.rc_context(STYLE):
            return self.draw(narrow)


def list_figures(campaign: CampaignAnalysis) -> Iterator[CampaignFigure]:
    """Yield the figures in the order of the page."""
    figure = partial(_build_figure, campaign)
    yield figure(
        "ranking",
        "leaderboard",
        "Ranking and its uncertainty",
        campaign_charts.draw_ranking,
        campaign_tables.build_ranking_rows,
    )
    yield figure(
        "gains",
        "cells",
        "Gain of every run",
        campaign_charts.draw_single_gains,
        campaign_tables.build_single_gain_rows,
    )
    for heatmap in campaign.heatmaps:
        yield CampaignFigure(
            f"heatmap-{heatmap.row_axis}",
            "heatmaps",
            f"{heatmap.row_axis.capitalize()} × task",
            CAPTIONS["heatmap"].format(heatmap.tested),
            partial(campaign_charts.draw_gains, heatmap),
            partial(campaign_tables.build_heatmap_rows, heatmap),
        )
    for family in campaign.families:
        yield CampaignFigure(
            f"comparisons-{family.axis}",
            "comparisons",
            f"Pairwise comparison by {family.axis}",
            CAPTIONS["comparisons"],
            partial(campaign_charts.draw_comparisons, family),
            partial(campaign_tables.build_comparison_rows, family),
        )
    yield figure(
        "trajectories",
        "scaling",
        "Trajectories",
        campaign_charts.draw_trajectories,
        campaign_tables.build_trajectory_rows,
    )
    yield figure(
        "scaling",
        "scaling",
        "Gain against spending",
        campaign_charts.draw_scaling,
        campaign_tables.build_scaling_rows,
    )
    names = name_training_figures([each.task for each in campaign.trainings])
    for name, task in zip(names, campaign.trainings, strict=True):
        yield CampaignFigure(
            name,
            "training",
            f"Training curves of {task.task}",
            CAPTIONS["training"].format(len(task.runs)),
            partial(training_figures.draw_trainings_of_task, campaign, task),
            partial(campaign_tables.build_training_rows, task),
        )
    yield figure(
        "best-of-k",
        "passk",
        "Best of k runs",
        campaign_charts.draw_best_of,
        campaign_tables.build_best_of_rows,
    )
    yield figure("routes", "routes", "Routes", campaign_charts.draw_routes, campaign_tables.build_route_rows)


def name_training_figures(tasks: Sequence[str]) -> list[str]:
    """Return a name for the figure of each task, which is part of a file name and unique."""
    names: list[str] = []
    for task in tasks:
        plain = re.sub(r"[^a-z0-9]+", "-", task.lower()).strip("-")[:LONGEST_NAME]
        name = f"training-{plain}".rstrip("-")
        others = (f"{name}-{number}" for number in range(2, len(tasks) + 2))
        names.append(next(each for each in (name, *others) if each not in names))
    return names


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


# Writing the report.

SECTIONS = {
    "headline": "Headline",
    "leaderboard": "Leaderboard",
    "cells": "Cells",
    "heatmaps": "Heat maps",
    "comparisons": "Comparisons",
    "scaling": "Scaling",
    "training": "Training curves",
    "passk": "Best of k",
    "routes": "Routes",
    "coverage": "Coverage",
    "making": "How this was made",
}
PAGE = "campaign.html"
LONGEST_NAME = 48
SHOWN = 5
"""Number of unreadable runs that are named."""


def write(campaign: CampaignAnalysis, target: Path) -> Path:
    """Write all files of the report and return the path of the page.

    They are written to a temporary folder first, so that an interruption leaves an earlier report intact.
    """
    try:
        target.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".new-", dir=target) as temporary:
            folder = Path(temporary)
            texts, drawn = draw_figures(list_figures(campaign), folder / "figures")
            write_atomically(folder / "campaign.json", campaign.model_dump_json() + "\n")
            write_atomically(folder / "campaign.md", render_markdown(campaign, drawn))
            write_atomically(folder / PAGE, render_html(campaign, drawn, texts))
            write_atomically(
                folder / "leaderboard.csv",
                campaign_tables.render_csv(campaign_tables.build_leaderboard_rows(campaign.leaderboard)),
            )
            write_atomically(
                folder / "leaderboard.tex", latex_tables.render_leaderboard(campaign.leaderboard)
            )
            for family in campaign.families:
                name = f"comparisons-{family.axis}.tex"
                write_atomically(folder / name, latex_tables.render_comparisons(family))
            write_atomically(
                folder / "cells.csv",
                campaign_tables.render_csv(campaign_tables.build_cell_rows(campaign.leaderboard)),
            )
            move_into(folder, target)
    except OSError as error:
        raise UserError(
            f"Cannot write the report to {target}: {error.strerror}.",
            "Choose a writable folder with --output, or free some disk space.",
        ) from error
    return target / PAGE


def draw_figures(
    figures: Iterable[CampaignFigure], folder: Path
) -> tuple[dict[str, str], list[CampaignFigure]]:
    """Draw and save all figures that have data; return their wide and narrow SVGs and the figures."""
    wide = {each.name: (each, each.draw_figure(narrow=False)) for each in figures}
    drawn = [each for each, figure in wide.values() if figure]
    texts = chart_style.save_figures({each.name: figure for each, figure in wide.values() if figure}, folder)
    narrow = {each.name + chart_style.NARROW: each.draw_figure(narrow=True) for each in drawn}
    for each in drawn:
        write_atomically(folder / f"{each.name}.csv", campaign_tables.render_csv(each.rows()))
    return texts | chart_style.render_svgs({name: figure for name, figure in narrow.items() if figure}), drawn


def render_html(campaign: CampaignAnalysis, drawn: list[CampaignFigure], texts: Mapping[str, str]) -> str:
    return page_templates.render_page(
        "campaign.html.jinja",
        {
            "figure_text": leaderboard_table.format_figure,
            "succeeded": leaderboard_table.format_success,
            "counted": leaderboard_table.format_run_count,
            "kept": leaderboard_table.format_compliance,
            "short_name": formatting.shorten_name,
            "marked_name": leaderboard_table.mark_name,
        },
        campaign=campaign,
        title=build_title(campaign),
        sentence=sentence(campaign),
        notes=notes(campaign),
        columns=leaderboard_table.list_columns(campaign.leaderboard),
        rows=leaderboard_table.build_rows(campaign.leaderboard),
        cells=[(row, task, cell) for row in campaign.leaderboard.rows for task, cell in row.by_task.items()],
        board_notes=leaderboard_table.table_notes(campaign.leaderboard),
        drawn={section: [each for each in drawn if each.section == section] for section in SECTIONS},
        figures=page_templates.inline_figures(texts),
        sections=SECTIONS.items(),
    )


def render_markdown(campaign: CampaignAnalysis, drawn: list[CampaignFigure]) -> str:
    parts = [
        f"# {build_title(campaign)}",
        sentence(campaign),
        *notes(campaign),
        leaderboard_table.render_markdown(
            campaign.leaderboard, leaderboard_table.table_notes(campaign.leaderboard)
        ),
    ]
    for each in drawn:
        parts.append(f"## {each.title}\n\n![{each.title}](figures/{each.name}.svg)\n\n{each.caption}")
        parts.append(f"Data: [{each.name}.csv](figures/{each.name}.csv)")
    return "\n\n".join(part.strip() for part in parts) + "\n"


def build_title(campaign: CampaignAnalysis) -> str:
    return f"Campaign {campaign.name}" if campaign.name else "All runs"


def sentence(campaign: CampaignAnalysis) -> str:
    """Summarize the result in one sentence."""
    board = campaign.leaderboard
    counted = board.runs - sum(board.excluded.values())
    if not counted:
        return f"{board.runs} runs, none with a gain yet."
    scope, first = f"{counted} runs of {len(board.tasks)} tasks", board.rows[0]
    gain = f"{leaderboard_table.format_figure(first.place.mean)} points on average over tasks"
    if len(board.rows) == 1:
        return f"{scope}: {first.name} gains {gain}."
    if first.place.chances:
        often = f"first in {first.place.chances[0]:.0%} of resamples"
        return f"{scope}, {len(board.rows)} entries: {first.name} is {often}, with {gain}."
    return f"{scope}, {len(board.rows)} entries, none with enough runs to be ranked."


def notes(campaign: CampaignAnalysis) -> list[str]:
    lines = leaderboard_table.contamination_notes(campaign.leaderboard)
    if many := campaign.other_protocol:
        other = "paper" if campaign.protocol == "default" else "default"
        lines.append(f"{many} runs under protocol {other} are left out: their gains are not comparable.")
    if campaign.unreadable:
        shown = "; ".join(campaign.unreadable[:SHOWN])
        more = len(campaign.unreadable) - SHOWN
        lines.append(f"Could not be read: {shown}{f' and {more} more' if more > 0 else ''}.")
    return lines
