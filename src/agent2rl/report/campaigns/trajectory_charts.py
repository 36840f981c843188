"""Figures with a panel for each task or kind of spending: courses, scaling, the best of k, single gains."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from agent2rl.analysis.campaigns.campaign_analysis import CampaignAnalysis
from agent2rl.analysis.campaigns.scaling import AXES, ScalingCurve
from agent2rl.core.records import Interval
from agent2rl.report import chart_style, formatting
from agent2rl.report.campaigns.leaderboard_table import mark_name
from agent2rl.report.chart_style import Margins
from agent2rl.report.colours import INK, LINE, SERIES

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
    """Every run's best so far over its time, and their median."""
    tasks = [each for each in campaign.trajectories if each.runs]
    if not tasks:
        return None
    figure, panels = _create_line_panels(len(tasks), narrow, campaign)
    hue = assign_colours(campaign)
    for axes, task in zip(panels, tasks, strict=True):
        end = max(each.seconds for each in task.courses)
        seconds = chart_style.set_time_axis(axes, end, narrow, label=False)
        for each in task.courses:
            xs = [0.0, *(at / seconds for at, _ in each.points), each.seconds / seconds]
            ys = [0.0, *(best for _, best in each.points)]
            axes.step(
                xs,
                [*ys, ys[-1]],
                where="post",
                color=hue[each.line],
                alpha=_choose_opacity(len(task.courses)),
                linewidth=1,
            )
        if task.runs > 2 and task.all.grid:
            grid = [at / seconds for at in task.all.grid]
            axes.step(grid, task.all.quantiles[0.5], where="post", color=INK, linewidth=1.8)
        axes.set_title(formatting.make_drawable(task.task, 26))
        axes.set_xlabel(chart_style.choose_time_unit(end)[1])
    _label_panels(panels, narrow, "best gain so far, points")
    _add_line_legend(figure, campaign, narrow)
    return figure


def draw_scaling(campaign: CampaignAnalysis, narrow: bool = False) -> Figure | None:
    """The median of the best so far against all that can be spent, with the quartiles of runs."""
    kinds = [axis for axis in AXES if any(_has_spending(line.scaling.get(axis)) for line in campaign.lines)]
    if not kinds:
        return None
    figure, panels = _create_line_panels(len(kinds), narrow, campaign)
    hue = assign_colours(campaign)
    for axes, kind in zip(panels, kinds, strict=True):
        found = [
            (line.name, line.scaling[kind])
            for line in campaign.lines
            if _has_spending(line.scaling.get(kind))
        ]
        end = max(each.grid[-1] for _, each in found)
        unit, name = _choose_unit(kind, end)
        for line, each in found:
            xs = np.array(each.grid) / unit
            axes.step(xs, each.quantiles[0.5], where="post", color=hue[line])
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
    """The expected best gain of k runs."""
    tasks = [task for task in campaign.leaderboard.tasks if any(_list_ks(campaign, task))]
    if not tasks:
        return None
    figure, panels = _create_line_panels(len(tasks), narrow, campaign)
    hue = assign_colours(campaign)
    for axes, task in zip(panels, tasks, strict=True):
        for line in campaign.lines:
            found = line.best_of[task].expected if task in line.best_of else {}
            if not found:
                continue
            ks = list(found)
            mark = "o" if len(ks) <= 12 else ""
            axes.plot(
                ks, [each.value for each in found.values()], mark + "-", color=hue[line.name], markersize=3.5
            )
            sure = [(k, each.interval) for k, each in found.items() if isinstance(each.interval, Interval)]
            axes.fill_between(
                [k for k, _ in sure],
                [each.low for _, each in sure],
                [each.high for _, each in sure],
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
    """Each run as a point: how far runs of the same kind lie apart."""
    tasks = [each for each in campaign.trajectories if each.courses]
    if not tasks:
        return None
    figure, panels = _create_line_panels(len(tasks), narrow, campaign)
    hue, order = assign_colours(campaign), [line.name for line in campaign.lines]
    for axes, task in zip(panels, tasks, strict=True):
        axes.axhline(0, color=LINE, linewidth=1.2)
        for at, line in enumerate(order):
            courses = sorted((each for each in task.courses if each.line == line), key=lambda each: each.gain)
            gains = [each.gain for each in courses]
            if gains:
                places = at + np.linspace(-0.22, 0.22, len(gains)) if len(gains) > 1 else [at]
                marks = ["X" if each.contaminated else "o" for each in courses]
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


def _has_spending(found: ScalingCurve | None) -> bool:
    """Whether anything was spent of it at all."""
    return bool(found and found.grid and found.grid[-1] > 0)


def _choose_unit(kind: str, end: float) -> tuple[float, str]:
    if kind.endswith("seconds"):
        seconds, name = chart_style.choose_time_unit(end)
        return seconds, f"{SPENT[kind]}, {name}"
    return (1e3 if "thousands" in SPENT[kind] else 1.0), SPENT[kind]


def _choose_opacity(many: int) -> float:
    return max(0.12, min(0.8, 4 / max(1, many)))


def _create_line_panels(count: int, narrow: bool, campaign: CampaignAnalysis) -> tuple[Figure, list[Axes]]:
    """Two or three in a row, the last of which may be empty; room for the names of lines above."""
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
