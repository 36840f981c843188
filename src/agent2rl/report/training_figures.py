"""Draws training curves of a run, and of several: of the training logs, or else what programs printed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from agent2rl.analysis.campaigns.campaign_analysis import CampaignAnalysis
from agent2rl.analysis.campaigns.training_sample import TaskTrainings
from agent2rl.analysis.findings import METRICS, MetricName, PrintedCurve, TrainingCurves, TrainingSeries
from agent2rl.report import campaign_charts, chart_style, formatting, leaderboard_table
from agent2rl.report.chart_style import Margins
from agent2rl.report.formatting import ACCENT, BAD, CARD, SERIES
from agent2rl.report.report_data import ReportData

MOST_CURVES = 12


def draw_curves(data: ReportData) -> Figure | None:
    """Draw the printed training curves as small panels; a mark shows where one is not a number any more."""
    curves = [
        (f"{attempt.number}: {formatting.make_drawable(curve.name, 18)}", curve)
        for attempt in data.findings.attempts
        for curve in attempt.curves
        if any(value is not None for _, value in curve.points)
    ][:MOST_CURVES]
    if not curves:
        return None
    columns = min(4, len(curves))
    rows = -(-len(curves) // columns)
    figure, places = chart_style.create_panels(2 * columns + 0.2, 1.35 * rows + 0.2, rows, columns)
    for axes in places[len(curves) :]:
        axes.set_visible(False)
    for axes, (name, curve) in zip(places, curves, strict=False):
        _draw_curve(axes, curve)
        axes.set_title(name)
    return figure


def _draw_curve(axes: Axes, curve: PrintedCurve) -> None:
    known = [(step, value) for step, value in curve.points if value is not None]
    xs, ys = chart_style.downsample_series([step for step, _ in known], [value for _, value in known])
    axes.plot(xs, ys, color=ACCENT, linewidth=1.1, marker="o" if len(xs) < 12 else None, markersize=2.5)
    lost = [step for step, value in curve.points if value is None]
    if lost:
        axes.axvline(lost[0], color=BAD, linewidth=1, linestyle=(0, (3, 2)))
    axes.locator_params(axis="both", nbins=3)


TITLES: Mapping[MetricName, str] = {
    "reward": "reward",
    "loss": "loss",
    "entropy": "entropy",
    "kl": "KL",
    "response_length": "response length",
    "groups_without_signal": "no-signal groups, %",
    "tokens_per_second": "tokens/s",
    "learning_rate": "learning rate",
    "grad_norm": "gradient norm",
    "clip_fraction": "clipped, %",
}
SHARES = ("groups_without_signal", "clip_fraction")
MOST_LINES = 12
"""Trainings in the figure: more cannot be told apart."""
DASHES = ("solid", (0, (4, 2)), (0, (1, 1.5)))
"""Line styles; those after the first are for trainings that use a colour again."""
LONGEST_LABEL = 120


@dataclass(frozen=True)
class DrawnTraining:
    """A training as a line in every panel that has a metric of it."""

    curves: TrainingCurves
    label: str
    colour: str
    dashes: Any
    legend: str = ""
    """The name that it shares with others in the legend; if empty, the legend has its label."""


def draw_training(data: ReportData, narrow: bool = False) -> Figure | None:
    """Draw the trainings of a run, each in a colour of its own."""
    trainings = list_drawn_trainings(data.findings.trainings)[:MOST_LINES]
    drawn = [
        DrawnTraining(each, _format_label(each.name), *_choose_look(place, place // len(SERIES)))
        for place, each in enumerate(trainings)
    ]
    return draw_trainings(drawn, narrow)


def draw_trainings_of_runs(runs: Sequence[Sequence[TrainingCurves]], narrow: bool = False) -> Figure | None:
    """Draw the trainings of several runs: each run in one colour, with its number before the names."""
    each_run = max(1, MOST_LINES // max(1, len(runs)))
    drawn = [
        DrawnTraining(each, _format_label(f"{number + 1}: {each.name}"), *_choose_look(number, place))
        for number, trainings in enumerate(runs)
        for place, each in enumerate(list_drawn_trainings(trainings)[-each_run:])
    ]
    return draw_trainings(drawn, narrow)


def draw_trainings_of_task(
    campaign: CampaignAnalysis, task: TaskTrainings, narrow: bool = False
) -> Figure | None:
    """Draw the trainings of a task's runs: each entry in its colour; of a single entry, each run in one."""
    colours = campaign_charts.assign_colours(campaign)
    contaminated = {line.name: line.contaminated for line in campaign.lines}
    drawn = []
    for number, run in enumerate(task.runs):
        name = leaderboard_table.mark_name(run.line, contaminated[run.line])
        if len(campaign.lines) == 1:
            legend, look = f"{number + 1}: {run.run_id}", _choose_look(number, number // len(SERIES))
        else:
            legend, look = name, (colours[run.line], DASHES[0])
        for each in run.trainings:
            label = formatting.make_drawable(f"{name}: {run.run_id}, {each.name}", LONGEST_LABEL)
            drawn.append(DrawnTraining(each, label, *look, legend=legend))
    return draw_trainings(drawn, narrow)


def draw_trainings(trainings: Sequence[DrawnTraining], narrow: bool = False) -> Figure | None:
    """Draw a panel for each metric over steps, with a line for each training and a mark for submissions."""
    panels = _list_training_panels([each.curves for each in trainings])
    if not panels:
        return None
    columns = min(2 if narrow else 3, len(panels))
    rows = -(-len(panels) // columns)
    named: dict[str, DrawnTraining] = {}
    for training in trainings:
        named.setdefault(training.legend or training.label, training)
    legend = -(-len(named) // (1 if narrow else 3))
    width = chart_style.NARROW_INCHES if narrow else chart_style.WIDE_INCHES
    top = 0.3 + 0.17 * legend
    figure, places = chart_style.create_panels(
        width, 1.35 * rows + 0.45 + top, rows, columns, margins=Margins(top=top)
    )
    for axes in places[len(panels) :]:
        axes.set_visible(False)
    for number, (axes, (title, metric, drawn)) in enumerate(zip(places, panels, strict=False)):
        for place in drawn:
            _draw_training_series(axes, trainings[place], metric)
        axes.set_title(title)
        axes.locator_params(axis="both", nbins=3 if narrow else 4)
        if metric == "learning_rate":
            axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        if number >= len(panels) - columns:
            axes.set_xlabel("steps")
    handles = [
        Line2D([], [], color=each.colour, linestyle=each.dashes, label=_format_label(name))
        for name, each in named.items()
    ]
    figure.legend(
        handles=handles, loc="upper left", bbox_to_anchor=(0.0, 1.0), ncols=1 if narrow else 3, frameon=False
    )
    return figure


def _list_training_panels(
    trainings: Sequence[TrainingCurves],
) -> list[tuple[str, MetricName, list[int]]]:
    """Return the title and the metric of each panel, and the trainings in it.

    The loss of a policy gradient is near 0, and another loss would hide it, so it has a panel of its own.
    """
    panels: list[tuple[str, MetricName, list[int]]] = []
    for metric in METRICS:
        places = [place for place, each in enumerate(trainings) if find_series(each, metric)]
        rewarded = [place for place in places if find_series(trainings[place], "reward")]
        others = [place for place in places if place not in rewarded]
        if metric == "loss" and rewarded and others:
            panels += [("loss", metric, others), ("policy loss", metric, rewarded)]
        elif places:
            panels.append((TITLES[metric], metric, places))
    return panels


def list_drawn_trainings(trainings: Sequence[TrainingCurves]) -> list[TrainingCurves]:
    """Return the trainings that have something to draw."""
    return [
        each
        for each in trainings
        if any(value is not None for series in each.series for _, value in series.points)
    ]


def find_series(training: TrainingCurves, metric: MetricName) -> TrainingSeries | None:
    """Return the series of a metric, if it has a value."""
    found = next((each for each in training.series if each.metric == metric), None)
    return found if found and any(value is not None for _, value in found.points) else None


def _draw_training_series(axes: Axes, training: DrawnTraining, metric: MetricName) -> None:
    series = find_series(training.curves, metric)
    if series is None:
        return
    scale = 100.0 if metric in SHARES else 1.0
    known = [(step, scale * value) for step, value in series.points if value is not None]
    xs, ys = chart_style.downsample_series([step for step, _ in known], [value for _, value in known])
    look: dict[str, Any] = {"color": training.colour, "linewidth": 1.1}
    marker = "o" if len(xs) < 12 else None
    name = f"_{training.label}"
    axes.plot(xs, ys, linestyle=training.dashes, marker=marker, markersize=2, label=name, **look)
    marks = [_find_last_value(known, mark.step) for mark in training.curves.submissions]
    axes.plot(
        [step for step, _ in marks],
        [value for _, value in marks],
        "v",
        markersize=5,
        markerfacecolor=CARD,
        zorder=3,
        label="_submission",
        **look,
    )
    lost = [step for step, value in series.points if value is None]
    if lost:
        axes.axvline(lost[0], color=BAD, linewidth=1, linestyle=(0, (3, 2)))


def _find_last_value(points: Sequence[tuple[float, float]], step: float) -> tuple[float, float]:
    """Return the last point up to a step, or the first one."""
    return next((point for point in reversed(points) if point[0] <= step), points[0])


def _choose_look(colour: int, dashes: int) -> tuple[str, Any]:
    return SERIES[colour % len(SERIES)], DASHES[dashes % len(DASHES)]


def _format_label(name: str) -> str:
    return formatting.make_drawable(name, 34)
