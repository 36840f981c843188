"""Figures of rows with an interval each: the ranking, and what was held against what."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from agent2rl.analysis.campaigns.campaign_analysis import CampaignAnalysis
from agent2rl.analysis.campaigns.comparison_families import ComparisonFamily
from agent2rl.analysis.campaigns.heatmap import ALPHA
from agent2rl.analysis.campaigns.resampling import IntervalEstimate as Value
from agent2rl.core.records import Interval
from agent2rl.report import chart_style, formatting
from agent2rl.report.campaigns.leaderboard_table import mark_name
from agent2rl.report.chart_style import Margins
from agent2rl.report.colours import ACCENT, BASE, CARD, DIM, LINE

MOST_ROWS = 30
LEAST_SEEN = 0.01
"""Of the greatest chance: what is fainter is not drawn."""
NONE = "no driver"
ROW = 0.24
"""Inches."""


def draw_ranking(campaign: CampaignAnalysis, narrow: bool = False) -> Figure | None:
    """Mean gain of each entry, and how often it has each rank."""
    rows = [row for row in campaign.leaderboard.rows if row.place.mean][:MOST_ROWS]
    if not rows:
        return None
    ranked = [row for row in rows if row.place.chances]
    both = len(ranked) > 1 and not narrow
    figure, (left, *right) = _create_row_panels(
        len(rows), narrow, [mark_name(row.name, row.all.contaminated) for row in rows], 2 if both else 1
    )
    _draw_points(left, [row.place.mean for row in rows if row.place.mean])
    left.set_title("mean gain over tasks, points")
    if both:
        most = max(max(row.place.chances) for row in ranked)
        for at, row in enumerate(rows):
            for rank, chance in enumerate(row.place.chances, 1):
                if chance >= LEAST_SEEN * most:
                    right[0].barh(at, 0.92, 0.8, rank - 0.46, color=ACCENT, alpha=chance / most, linewidth=0)
        right[0].set(xlim=(0.5, len(ranked) + 0.5), title="chance of each rank")
        right[0].grid(visible=False)
        right[0].locator_params(axis="x", integer=True)
        right[0].spines["left"].set_visible(False)
    return figure


def draw_comparisons(family: ComparisonFamily, narrow: bool = False) -> Figure | None:
    """Of one axis: the differences of its pairs."""
    pairs = [each for each in family.pairs if each.found.difference][:MOST_ROWS]
    if not pairs:
        return None
    names = [
        f"{formatting.shorten_name(each.first or NONE)} − {formatting.shorten_name(each.second or NONE)}"
        for each in pairs
    ]
    figure, (axes,) = _create_row_panels(len(pairs), narrow, names, 1, left=2.6)
    sure = [each.p_holm is not None and each.p_holm <= ALPHA for each in pairs]
    _draw_points(axes, [each.found.difference for each in pairs if each.found.difference], sure)
    axes.set_title("difference of mean gains, points")
    return figure


def _create_row_panels(
    count: int, narrow: bool, names: Sequence[str], columns: int, left: float = 1.9
) -> tuple[Figure, list[Axes]]:
    """Room for so many rows, the first on top, with their names beside."""
    around = Margins(left=1.35 if narrow else left, top=0.3, across=0.3)
    width = chart_style.NARROW_INCHES if narrow else chart_style.WIDE_INCHES
    figure, panels = chart_style.create_panels(
        width, 0.75 + ROW * max(2, count), columns=columns, margins=around, sharey=True
    )
    panels[0].set(ylim=(count - 0.5, -0.5), yticks=range(count))
    panels[0].set_yticklabels(
        [formatting.make_drawable(name, 20 if narrow else int(left * 14)) for name in names]
    )
    panels[0].grid(visible=True, axis="x")
    panels[0].grid(visible=False, axis="y")
    panels[0].spines["left"].set_visible(False)
    return figure, panels


def _draw_points(axes: Axes, values: Sequence[Value], sure: Sequence[bool] | None = None) -> None:
    """A filled point has an interval, or is sure; a hollow one has too few runs for one, or is not."""
    axes.axvline(0, color=LINE, linewidth=1.2)
    for at, value in enumerate(values):
        found = value.interval if isinstance(value.interval, Interval) else None
        if found:
            axes.plot([found.low, found.high], [at, at], color=ACCENT, linewidth=1.6, solid_capstyle="butt")
        filled = sure[at] if sure else bool(found)
        colour = ACCENT if found else BASE
        axes.plot(
            [value.value], [at], "o", color=colour, markerfacecolor=colour if filled else CARD, markersize=5
        )
    if not any(isinstance(value.interval, Interval) for value in values):
        axes.text(
            1, 1.02, "too few runs for intervals", transform=axes.transAxes, ha="right", color=DIM, fontsize=7
        )
