"""Draws the figures of a campaign's report: rows with intervals, grids of cells, and panels of curves."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from agent2rl.analysis.campaigns.campaign_analysis import CampaignAnalysis
from agent2rl.analysis.campaigns.comparisons import ALPHA, ComparisonFamily, Heatmap
from agent2rl.analysis.campaigns.resampling import IntervalEstimate as Value
from agent2rl.analysis.campaigns.route_shares import LEFT_BASE, UNKNOWN, RouteShares
from agent2rl.analysis.campaigns.scaling import AXES, ScalingCurve
from agent2rl.core.grading_records import Interval
from agent2rl.report import chart_style, formatting
from agent2rl.report.chart_style import Margins
from agent2rl.report.formatting import ACCENT, BAD, BASE, CARD, COLOURS, DIM, INK, LINE, SERIES
from agent2rl.report.leaderboard_table import mark_name

# Rows with intervals: the ranking and the pairwise comparisons.

MOST_ROWS = 30
LEAST_SEEN = 0.01
"""Share of the highest chance below which nothing is drawn."""
NONE = "no driver"
ROW = 0.24
"""Height of a row in inches."""


def draw_ranking(campaign: CampaignAnalysis, narrow: bool = False) -> Figure | None:
    """Draw the mean gain of each entry, and how often it has each rank."""
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
    """Draw the differences between all pairs of one axis."""
    pairs = [each for each in family.pairs if each.found.difference][:MOST_ROWS]
    if not pairs:
        return None
    names = [
        f"{formatting.shorten_name(each.first or NONE)} − {formatting.shorten_name(each.second or NONE)}"
        for each in pairs
    ]
    figure, (axes,) = _create_row_panels(len(pairs), narrow, names, 1, left=2.6)
    significant = [each.p_holm is not None and each.p_holm <= ALPHA for each in pairs]
    _draw_points(axes, [each.found.difference for each in pairs if each.found.difference], significant)
    axes.set_title("difference of mean gains, points")
    return figure


def _create_row_panels(
    count: int, narrow: bool, names: Sequence[str], columns: int, left: float = 1.9
) -> tuple[Figure, list[Axes]]:
    """Create panels for `count` rows, the first on top, with their names on the left."""
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


def _draw_points(axes: Axes, values: Sequence[Value], significant: Sequence[bool] | None = None) -> None:
    """Draw points with intervals. A filled point is significant, or by default has an interval."""
    axes.axvline(0, color=LINE, linewidth=1.2)
    for at, value in enumerate(values):
        interval = value.interval if isinstance(value.interval, Interval) else None
        if interval:
            axes.plot(
                [interval.low, interval.high], [at, at], color=ACCENT, linewidth=1.6, solid_capstyle="butt"
            )
        filled = significant[at] if significant else bool(interval)
        colour = ACCENT if interval else BASE
        axes.plot(
            [value.value], [at], "o", color=colour, markerfacecolor=colour if filled else CARD, markersize=5
        )
    if not any(isinstance(value.interval, Interval) for value in values):
        axes.text(
            1, 1.02, "too few runs for intervals", transform=axes.transAxes, ha="right", color=DIM, fontsize=7
        )


# Grids and bars: gains by task and agent, driver, model or mode; training routes.

STRONGEST = 0.85
"""Opacity of the largest gain."""
MOST_LABEL = 40
"""Most characters of a row's label on a wide screen."""


def draw_gains(
    heatmap: Heatmap, narrow: bool = False, marks: Mapping[tuple[str, str], str] | None = None
) -> Figure | None:
    """Draw each cell's mean gain and number of runs, with a star if the gain is significant.

    `marks` has a word for some cells, by row and column. These cells also get a frame.
    """
    known = [each for each in heatmap.cells if each.cell.mean]
    if not known:
        return None
    rows, columns = (heatmap.columns, heatmap.rows) if narrow else (heatmap.rows, heatmap.columns)
    room = 19 if narrow else min(MOST_LABEL, max(22, *(len(formatting.shorten_name(row)) for row in rows)))
    around = Margins(left=1.35 if narrow else 1.6 + (room - 22) * 0.065, top=0.3, bottom=0.3)
    width = chart_style.NARROW_INCHES if narrow else chart_style.WIDE_INCHES
    figure, (axes,) = chart_style.create_panels(width, 0.7 + 0.42 * len(rows), margins=around)
    most = max(abs(each.cell.mean.value) for each in known if each.cell.mean) or 1.0
    for each in heatmap.cells:
        row, column = (each.column, each.row) if narrow else (each.row, each.column)
        at, mean = (columns.index(column), rows.index(row)), each.cell.mean
        if mean is None:
            axes.text(*at, "no gain", ha="center", va="center", fontsize=6.5, color=DIM)
            continue
        colour = ACCENT if mean.value >= 0 else BAD
        box = Rectangle((at[0] - 0.48, at[1] - 0.47), 0.96, 0.94, linewidth=0)
        box.set(facecolor=colour, alpha=STRONGEST * 0.6 * abs(mean.value) / most)
        axes.add_patch(box)
        word = marks.get((each.row, each.column)) if marks else None
        if word:
            _draw_frame(axes, at, word)
        signs = ("*" if each.star else "") + (formatting.CONTAMINATED_MARK if each.cell.contaminated else "")
        axes.text(*at, f"{mean.value:+.2f}{signs}", ha="center", va="bottom", color=INK)
        below = f"n = {each.cell.n}" + (f" · {word}" if word else "")
        axes.text(at[0], at[1] + 0.08, below, ha="center", va="top", fontsize=6.5, color=DIM)
    _label_grid(axes, rows, columns, narrow, room)
    return figure


def _draw_frame(axes: Axes, at: tuple[int, int], word: str) -> None:
    """Frame a marked cell: solid if it is the best, dashed if not."""
    frame = Rectangle((at[0] - 0.48, at[1] - 0.47), 0.96, 0.94, fill=False, linewidth=1.4)
    frame.set(edgecolor=ACCENT if word == "best" else BAD, linestyle="-" if word == "best" else "--")
    axes.add_patch(frame)


def _label_grid(axes: Axes, rows: tuple[str, ...], columns: tuple[str, ...], narrow: bool, room: int) -> None:
    """Label rows with at most `room` characters, and columns with what fits above them."""
    above = (14 if narrow else 80) // max(1, len(columns)) + 2
    axes.set(xlim=(-0.5, len(columns) - 0.5), ylim=(len(rows) - 0.5, -0.5))
    axes.set_xticks(range(len(columns)), [_format_label(name, above) for name in columns])
    axes.set_yticks(range(len(rows)), [_format_label(name, room) for name in rows])
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    axes.grid(visible=False)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _format_label(name: str, most: int) -> str:
    return formatting.make_drawable(formatting.shorten_name(name) or "none", most)


def draw_routes(campaign: CampaignAnalysis, narrow: bool = False) -> Figure | None:
    """Draw the shares of runs by the training route of their model."""
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
    """Assign colours to routes; the untouched model and unknown routes are grey."""
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


# Panels for each task or kind of spending: trajectories, scaling, best of k, gains of single runs.

SPENT = {
    "seconds": "agent's time",
    "tokens": "driver's tokens, thousands",
    "usd": "cost, USD",
    "gpu_seconds": "GPU time, busy",
    "submissions": "submissions",
    "environment_steps": "steps in the world, thousands",
}


def assign_colours(campaign: CampaignAnalysis) -> dict[str, str]:
    return {line.name: SERIES[at % len(SERIES)] for at, line in enumerate(campaign.lines)}


def draw_trajectories(campaign: CampaignAnalysis, narrow: bool = False) -> Figure | None:
    """Draw every run's best gain so far over its time, and the median."""
    tasks = [each for each in campaign.trajectories if each.runs]
    if not tasks:
        return None
    figure, panels = _create_line_panels(len(tasks), narrow, campaign)
    hue = assign_colours(campaign)
    for axes, task in zip(panels, tasks, strict=True):
        end = max(each.seconds for each in task.trajectories)
        seconds = chart_style.set_time_axis(axes, end, narrow, label=False)
        for each in task.trajectories:
            xs = [0.0, *(at / seconds for at, _ in each.points), each.seconds / seconds]
            ys = [0.0, *(best for _, best in each.points)]
            axes.step(
                xs,
                [*ys, ys[-1]],
                where="post",
                color=hue[each.line],
                alpha=_choose_opacity(len(task.trajectories)),
                linewidth=1,
                label=f"_{formatting.make_drawable(f'{each.line}: {each.run_id}', 80)}",
            )
        if task.runs > 2 and task.all.grid:
            grid = [at / seconds for at in task.all.grid]
            axes.step(grid, task.all.quantiles[0.5], where="post", color=INK, linewidth=1.8, label="_median")
        axes.set_title(formatting.make_drawable(task.task, 26))
        axes.set_xlabel(chart_style.choose_time_unit(end)[1])
    _label_panels(panels, narrow, "best gain so far, points")
    _add_line_legend(figure, campaign, narrow)
    return figure


def draw_scaling(campaign: CampaignAnalysis, narrow: bool = False) -> Figure | None:
    """Draw median and quartiles of the best gain so far against each kind of spending."""
    kinds = [axis for axis in AXES if any(_has_spending(line.scaling.get(axis)) for line in campaign.lines)]
    if not kinds:
        return None
    figure, panels = _create_line_panels(len(kinds), narrow, campaign)
    hue = assign_colours(campaign)
    for axes, kind in zip(panels, kinds, strict=True):
        curves = [
            (line.name, line.scaling[kind])
            for line in campaign.lines
            if _has_spending(line.scaling.get(kind))
        ]
        end = max(each.grid[-1] for _, each in curves)
        unit, name = _choose_unit(kind, end)
        for line, each in curves:
            xs = np.array(each.grid) / unit
            axes.step(xs, each.quantiles[0.5], where="post", color=hue[line], label=f"_{line}")
            if each.n > 2:
                low, high = each.quantiles[0.25], each.quantiles[0.75]
                axes.fill_between(xs, low, high, step="post", color=hue[line], alpha=0.15, linewidth=0)
        axes.set_xlim(0, end / unit)
        axes.locator_params(axis="x", nbins=5)
        axes.set_title(name)
    _label_panels(panels, narrow, "best gain so far, points")
    _add_line_legend(figure, campaign, narrow)
    return figure


def draw_best_of(campaign: CampaignAnalysis, narrow: bool = False) -> Figure | None:
    """Draw the expected best gain of k runs."""
    tasks = [task for task in campaign.leaderboard.tasks if any(_list_ks(campaign, task))]
    if not tasks:
        return None
    figure, panels = _create_line_panels(len(tasks), narrow, campaign)
    hue = assign_colours(campaign)
    for axes, task in zip(panels, tasks, strict=True):
        for line in campaign.lines:
            expected = line.best_of[task].expected if task in line.best_of else {}
            if not expected:
                continue
            ks = list(expected)
            mark = "o" if len(ks) <= 12 else ""
            axes.plot(
                ks,
                [each.value for each in expected.values()],
                mark + "-",
                color=hue[line.name],
                markersize=3.5,
            )
            with_interval = [
                (k, each.interval) for k, each in expected.items() if isinstance(each.interval, Interval)
            ]
            axes.fill_between(
                [k for k, _ in with_interval],
                [each.low for _, each in with_interval],
                [each.high for _, each in with_interval],
                color=hue[line.name],
                alpha=0.15,
                linewidth=0,
            )
        if max(_list_ks(campaign, task)) > 32:
            axes.set_xscale("log")
            axes.xaxis.set_major_formatter(lambda k, _: f"{k:,.0f}")
        else:
            axes.locator_params(axis="x", integer=True, nbins=6)
        axes.set_title(formatting.make_drawable(task, 26))
        axes.set_xlabel("k runs")
    _label_panels(panels, narrow, "expected best gain, points")
    _add_line_legend(figure, campaign, narrow)
    return figure


def draw_single_gains(campaign: CampaignAnalysis, narrow: bool = False) -> Figure | None:
    """Draw the gain of each run as a point, to show the spread of runs of the same kind."""
    tasks = [each for each in campaign.trajectories if each.trajectories]
    if not tasks:
        return None
    figure, panels = _create_line_panels(len(tasks), narrow, campaign)
    hue, order = assign_colours(campaign), [line.name for line in campaign.lines]
    for axes, task in zip(panels, tasks, strict=True):
        axes.axhline(0, color=LINE, linewidth=1.2)
        for at, line in enumerate(order):
            trajectories = sorted(
                (each for each in task.trajectories if each.line == line), key=lambda each: each.gain
            )
            gains = [each.gain for each in trajectories]
            if gains:
                places = at + np.linspace(-0.22, 0.22, len(gains)) if len(gains) > 1 else [at]
                marks = ["X" if each.contaminated else "o" for each in trajectories]
                for place, gain, mark in zip(places, gains, marks, strict=True):
                    axes.plot([place], [gain], mark, color=hue[line], markersize=4, alpha=0.75)
                axes.plot([at - 0.3, at + 0.3], [float(np.mean(gains))] * 2, color=INK, linewidth=1.4)
        axes.set(xlim=(-0.6, len(order) - 0.4), xticks=[])
        axes.set_title(formatting.make_drawable(task.task, 26))
    _label_panels(panels, narrow, "gain of each run, points")
    _add_line_legend(figure, campaign, narrow)
    return figure


def _list_ks(campaign: CampaignAnalysis, task: str) -> list[int]:
    return [k for line in campaign.lines if task in line.best_of for k in line.best_of[task].expected]


def _has_spending(curve: ScalingCurve | None) -> bool:
    """Return whether anything was spent."""
    return bool(curve and curve.grid and curve.grid[-1] > 0)


def _choose_unit(kind: str, end: float) -> tuple[float, str]:
    if kind.endswith("seconds"):
        seconds, name = chart_style.choose_time_unit(end)
        return seconds, f"{SPENT[kind]}, {name}"
    return (1e3 if "thousands" in SPENT[kind] else 1.0), SPENT[kind]


def _choose_opacity(many: int) -> float:
    return max(0.12, min(0.8, 4 / max(1, many)))


def _create_line_panels(count: int, narrow: bool, campaign: CampaignAnalysis) -> tuple[Figure, list[Axes]]:
    """Create two or three panels per row, with room for a legend above; surplus panels are hidden."""
    columns = min(count, 2 if narrow else 3)
    rows = -(-count // columns)
    named = len(campaign.lines) > 1
    above = (0.2 * -(-len(campaign.lines) // (1 if narrow else 3)) if named else 0) + 0.3
    around = Margins(top=above, across=0.42, down=0.62)
    width = chart_style.NARROW_INCHES if narrow else chart_style.WIDE_INCHES
    height = above + rows * (1.25 if narrow else 1.55) + 0.62 * (rows - 1) + 0.42
    figure, panels = chart_style.create_panels(width, height, rows, columns, around)
    for spare in panels[count:]:
        spare.set_visible(False)
    return figure, panels[:count]


def _label_panels(panels: Sequence[Axes], narrow: bool, text: str) -> None:
    columns = 2 if narrow else 3
    for axes in panels[::columns]:
        axes.set_ylabel(text)


def _add_line_legend(figure: Figure, campaign: CampaignAnalysis, narrow: bool) -> None:
    if len(campaign.lines) > 1:
        hue = assign_colours(campaign)
        for line in campaign.lines:
            label = formatting.make_drawable(mark_name(line.name, line.contaminated), 44)
            figure.axes[0].plot([], [], color=hue[line.name], label=label)
        handles, labels = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="upper left", ncols=1 if narrow else 3)
