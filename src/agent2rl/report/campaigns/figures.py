"""Which figures the report of a campaign has: each with its title, its caption, and its data as rows."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import matplotlib as mpl
from matplotlib.figure import Figure

from agent2rl.analysis.campaigns.campaign_analysis import CampaignAnalysis
from agent2rl.report.campaigns import figure_data, forest_plots, grid_charts, trajectory_charts
from agent2rl.report.chart_style import STYLE

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
    rows: Callable[[], figure_data.Table]

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
        forest_plots.draw_ranking,
        figure_data.build_ranking_rows,
    )
    yield one(
        "gains", "cells", "Every run", trajectory_charts.draw_single_gains, figure_data.build_single_gain_rows
    )
    for found in campaign.heatmaps:
        yield CampaignFigure(
            f"heatmap-{found.row_axis}",
            "heatmaps",
            f"{found.row_axis.capitalize()} × task",
            CAPTIONS["heatmap"].format(found.tested),
            partial(grid_charts.draw_gains, found),
            partial(figure_data.build_heatmap_rows, found),
        )
    for family in campaign.families:
        yield CampaignFigure(
            f"comparisons-{family.axis}",
            "comparisons",
            f"Each {family.axis} against each other",
            CAPTIONS["comparisons"],
            partial(forest_plots.draw_comparisons, family),
            partial(figure_data.build_comparison_rows, family),
        )
    yield one(
        "trajectories",
        "scaling",
        "Trajectories",
        trajectory_charts.draw_trajectories,
        figure_data.build_trajectory_rows,
    )
    yield one(
        "scaling", "scaling", "What it costs", trajectory_charts.draw_scaling, figure_data.build_scaling_rows
    )
    yield one(
        "best-of-k",
        "passk",
        "The best of k runs",
        trajectory_charts.draw_best_of,
        figure_data.build_best_of_rows,
    )
    yield one("routes", "routes", "Routes", grid_charts.draw_routes, figure_data.build_route_rows)


def _build_figure(
    campaign: CampaignAnalysis,
    name: str,
    section: str,
    title: str,
    draw: Callable[[CampaignAnalysis, bool], Figure | None],
    rows: Callable[[CampaignAnalysis], figure_data.Table],
) -> CampaignFigure:
    return CampaignFigure(
        name, section, title, CAPTIONS[name], partial(draw, campaign), partial(rows, campaign)
    )
