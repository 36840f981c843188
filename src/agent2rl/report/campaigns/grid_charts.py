"""Figures of cells: gains by task and agent, driver, model or mode; and the routes that were taken."""

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from agent2rl.analysis.campaigns.campaign_analysis import CampaignAnalysis
from agent2rl.analysis.campaigns.heatmap import Heatmap
from agent2rl.analysis.campaigns.route_shares import LEFT_BASE, UNKNOWN, RouteShares
from agent2rl.report import chart_style, formatting
from agent2rl.report.chart_style import Margins
from agent2rl.report.colours import ACCENT, BAD, BASE, COLOURS, DIM, INK, SERIES

STRONGEST = 0.85
"""How opaque the greatest gain is drawn."""


def draw_gains(found: Heatmap, narrow: bool = False) -> Figure | None:
    """Each cell's mean gain and number of runs; a star where it is not 0."""
    known = [each for each in found.cells if each.cell.mean]
    if not known:
        return None
    rows, columns = (found.columns, found.rows) if narrow else (found.rows, found.columns)
    around = Margins(left=1.35 if narrow else 1.6, top=0.3, bottom=0.3)
    width = chart_style.NARROW_INCHES if narrow else chart_style.WIDE_INCHES
    figure, (axes,) = chart_style.create_panels(width, 0.7 + 0.42 * len(rows), margins=around)
    most = max(abs(each.cell.mean.value) for each in known if each.cell.mean) or 1.0
    for each in found.cells:
        row, column = (each.column, each.row) if narrow else (each.row, each.column)
        at, mean = (columns.index(column), rows.index(row)), each.cell.mean
        if mean is None:
            axes.text(*at, "no gain known", ha="center", va="center", fontsize=6.5, color=DIM)
            continue
        colour = ACCENT if mean.value >= 0 else BAD
        box = Rectangle((at[0] - 0.48, at[1] - 0.47), 0.96, 0.94, linewidth=0)
        box.set(facecolor=colour, alpha=STRONGEST * 0.6 * abs(mean.value) / most)
        axes.add_patch(box)
        marks = ("*" if each.star else "") + (formatting.CONTAMINATED_MARK if each.cell.contaminated else "")
        axes.text(*at, f"{mean.value:+.1f}{marks}", ha="center", va="bottom", color=INK)
        axes.text(at[0], at[1] + 0.08, f"n = {each.cell.n}", ha="center", va="top", fontsize=6.5, color=DIM)
    _label_grid(axes, rows, columns, narrow)
    return figure


def _label_grid(axes: Axes, rows: tuple[str, ...], columns: tuple[str, ...], narrow: bool) -> None:
    room = (14 if narrow else 80) // max(1, len(columns)) + 2
    axes.set(xlim=(-0.5, len(columns) - 0.5), ylim=(len(rows) - 0.5, -0.5))
    axes.set_xticks(
        range(len(columns)),
        [formatting.make_drawable(formatting.shorten_name(name) or "none", room) for name in columns],
    )
    axes.set_yticks(
        range(len(rows)),
        [
            formatting.make_drawable(formatting.shorten_name(name) or "none", 19 if narrow else 22)
            for name in rows
        ],
    )
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    axes.grid(visible=False)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _format_label(name: str, most: int) -> str:
    return formatting.make_drawable(formatting.shorten_name(name) or "none", most)


def draw_routes(campaign: CampaignAnalysis, narrow: bool = False) -> Figure | None:
    """Shares of runs by how the model that they left came about."""
    groups = [campaign.routes_by_task, campaign.routes_by_agent]
    if not any(each.n for group in groups for each in group.values()):
        return None
    bars = [{name: each for name, each in group.items() if each.n} for group in groups]
    names = sorted({name for group in bars for each in group.values() for name in each.counts})
    colours = assign_route_colours(names)
    rows = sum(map(len, bars)) if narrow else max(map(len, bars))
    around = Margins(left=1.35, top=0.75 if narrow else 0.62, across=1.45, down=0.55)
    height = 1.15 + 0.3 * rows + (0.85 if narrow else 0)
    if narrow:
        figure, panels = chart_style.create_panels(
            chart_style.NARROW_INCHES,
            height,
            rows=2,
            margins=around,
            height_ratios=[len(each) + 0.01 for each in bars],
        )
    else:
        figure, panels = chart_style.create_panels(chart_style.WIDE_INCHES, height, columns=2, margins=around)
    for axes, group, title in zip(panels, bars, ("by task, %", "by agent, %"), strict=True):
        _draw_stacked_bars(axes, group, colours)
        axes.set_title(title)
    handles = [Rectangle((0, 0), 1, 1, color=colours[name], label=name) for name in names]
    figure.legend(handles=handles, loc="upper left", ncols=2 if narrow else 4, handlelength=0.9)
    return figure


def assign_route_colours(names: list[str]) -> dict[str, str]:
    """The untouched model and what is not known are grey."""
    grey = {LEFT_BASE: COLOURS["idle"], UNKNOWN: BASE}
    others = [name for name in names if name not in grey]
    return grey | {name: SERIES[at % len(SERIES)] for at, name in enumerate(others)}


def _draw_stacked_bars(axes: Axes, group: Mapping[str, RouteShares], colours: Mapping[str, str]) -> None:
    for at, each in enumerate(group.values()):
        left = 0.0
        for name, count in each.counts.items():
            share = 100 * count / each.n
            axes.barh(at, share, 0.72, left, color=colours[name], linewidth=0)
            left += share
    axes.set(xlim=(0, 100), ylim=(len(group) - 0.5, -0.5))
    axes.set_yticks(range(len(group)), [_format_label(name, 19) for name in group])
    axes.grid(visible=False)
    axes.spines["left"].set_visible(False)
