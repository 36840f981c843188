"""Which figures the report of a campaign has: each with its title, its caption, and its data as rows."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import matplotlib as mpl
from matplotlib.figure import Figure

from agent2rl.analysis.campaigns.campaign import Campaign
from agent2rl.report.campaigns import courses, data, forests, grids
from agent2rl.report.drawing import STYLE

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
class Drawn:
    name: str
    section: str
    title: str
    caption: str
    draw: Callable[[bool], Figure | None]
    """Whether for a telephone; None where there is nothing to draw."""
    rows: Callable[[], data.Table]

    def figure(self, narrow: bool) -> Figure | None:
        with mpl.rc_context(STYLE):
            return self.draw(narrow)


def figures(campaign: Campaign) -> Iterator[Drawn]:
    """In the order of the page."""
    one = partial(_of_all, campaign)
    yield one("ranking", "leaderboard", "The ranking, and how sure it is", forests.ranking, data.ranking)
    yield one("gains", "cells", "Every run", courses.single_gains, data.single_gains)
    for found in campaign.heatmaps:
        yield Drawn(
            f"heatmap-{found.row_axis}",
            "heatmaps",
            f"{found.row_axis.capitalize()} × task",
            CAPTIONS["heatmap"].format(found.tested),
            partial(grids.gains, found),
            partial(data.heatmap, found),
        )
    for family in campaign.families:
        yield Drawn(
            f"comparisons-{family.axis}",
            "comparisons",
            f"Each {family.axis} against each other",
            CAPTIONS["comparisons"],
            partial(forests.comparisons, family),
            partial(data.comparisons, family),
        )
    yield one("trajectories", "scaling", "Trajectories", courses.trajectories, data.trajectories)
    yield one("scaling", "scaling", "What it costs", courses.scaling, data.scaling)
    yield one("best-of-k", "passk", "The best of k runs", courses.best_of, data.best_of)
    yield one("routes", "routes", "Routes", grids.routes, data.routes)


def _of_all(
    campaign: Campaign,
    name: str,
    section: str,
    title: str,
    draw: Callable[[Campaign, bool], Figure | None],
    rows: Callable[[Campaign], data.Table],
) -> Drawn:
    return Drawn(name, section, title, CAPTIONS[name], partial(draw, campaign), partial(rows, campaign))
