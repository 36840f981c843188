"""Figures of what was counted over time: rollouts, tokens and cost, the machine, and training curves."""

from collections.abc import Sequence
from itertools import accumulate

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from agent2rl.analysis.findings import PrintedCurve
from agent2rl.core.records import RolloutCounts
from agent2rl.report import chart_style, formatting
from agent2rl.report.colours import ACCENT, BAD, COLOURS, HELD
from agent2rl.report.report_data import ReportData

GIGA = 1e9
MOST_CURVES = 12


def draw_rollouts(shown: ReportData, end: float, narrow: bool = False) -> Figure | None:
    """Episodes played and won, and the share won in each stretch of time."""
    played = shown.timeline.played
    if not played or not any(each.claimed.episodes or each.witnessed.episodes for each in played):
        return None
    figure, (many, won) = _create_two_panels(narrow)
    seconds = chart_style.set_time_axis(many, end, narrow, label=not narrow)
    chart_style.set_time_axis(won, end, narrow)
    times = [each.at / seconds for each in played]
    for name, colour, counts in (
        ("claimed", HELD, [each.claimed for each in played]),
        ("witnessed", ACCENT, [each.witnessed for each in played]),
    ):
        if counts[-1].episodes:
            xs, ys = chart_style.downsample_count(
                [0.0, *times], [0.0, *(float(each.episodes) for each in counts)]
            )
            many.step(xs, ys, where="post", color=colour, label=name)
            won.plot(
                *_compute_win_shares(times, counts), color=colour, marker="o", markersize=2.5, label=name
            )
    many.set_title("episodes played")
    many.set_ylim(bottom=0)
    won.set_title("share of episodes won, %")
    won.set_ylim(-2, 102)
    many.legend(loc="upper left")
    return figure


def _create_two_panels(narrow: bool) -> tuple[Figure, list[Axes]]:
    """Panels side by side, or one below the other."""
    if narrow:
        return chart_style.create_panels(chart_style.NARROW_INCHES, 4.2, rows=2)
    return chart_style.create_panels(chart_style.WIDE_INCHES, 2.4, columns=2)


def _compute_win_shares(
    times: Sequence[float], counts: Sequence[RolloutCounts], stretches: int = 24
) -> tuple[list[float], list[float]]:
    """The share of wins between every few counts; none where nothing was played."""
    step = max(1, len(times) // stretches)
    xs, ys, before = [], [], RolloutCounts()
    for at in range(step - 1, len(times), step):
        episodes = counts[at].episodes - before.episodes
        if episodes > 0:
            xs.append(times[at])
            ys.append(100 * min(1.0, max(0.0, (counts[at].successes - before.successes) / episodes)))
            before = counts[at]
    return xs, ys


def draw_tokens(shown: ReportData, end: float, narrow: bool = False) -> Figure | None:
    """What the driver read and wrote, and what it cost, all added up."""
    started = shown.timeline.started
    asked = [each for each in shown.usage if each.tokens] if started is not None else []
    if started is None or not asked:
        return None
    asked.sort(key=lambda each: each.at)
    priced = any(each.usd for each in asked)
    width = chart_style.NARROW_INCHES if narrow else chart_style.WIDE_INCHES
    figure, panels = _create_two_panels(narrow) if priced else chart_style.create_panels(width, 2.4)
    times = [max(0.0, shown.timeline.at(each.at)) for each in asked]
    end = max(end, times[-1])
    seconds = chart_style.set_time_axis(panels[0], end, narrow, label=not (priced and narrow))
    places = [at / seconds for at in times]
    counted = [each.tokens for each in asked if each.tokens]
    for name, colour, amounts in (
        ("read", ACCENT, [each.input for each in counted]),
        ("of it cached", COLOURS["base"], [each.cached for each in counted]),
        ("written", HELD, [each.output for each in counted]),
    ):
        if any(amounts):
            xs, ys = chart_style.downsample_count(
                places, list(accumulate(amount / 1e3 for amount in amounts))
            )
            panels[0].step([0.0, *xs], [0.0, *ys], where="post", color=colour, label=name)
    panels[0].set_title("tokens, thousands")
    panels[0].set_ylim(bottom=0)
    panels[0].legend(loc="upper left")
    if priced:
        chart_style.set_time_axis(panels[1], end, narrow)
        xs, ys = chart_style.downsample_count(places, list(accumulate(each.usd or 0.0 for each in asked)))
        panels[1].step([0.0, *xs], [0.0, *ys], where="post", color=ACCENT)
        panels[1].set_title("cost, USD")
        panels[1].set_ylim(bottom=0)
    return figure


def draw_resources(shown: ReportData, end: float, narrow: bool = False) -> Figure | None:
    """What the agent's processes used of the machine."""
    samples = shown.timeline.samples
    if not samples:
        return None
    times = [at for at, _ in samples]
    panels = [("cores busy", times, [each.cores for _, each in samples], False)]
    panels.append(("memory, GB", times, [each.resident_bytes / GIGA for _, each in samples], True))
    disk = [(at, each.disk_bytes / GIGA) for at, each in samples if each.disk_bytes is not None]
    if disk:
        panels.append(("disk, GB", [at for at, _ in disk], [used for _, used in disk], True))
    with_gpu = [(at, each.gpus) for at, each in samples if each.gpus]
    if with_gpu:
        on = [at for at, _ in with_gpu]
        busy = [100 * sum(gpu.busy or 0.0 for gpu in gpus) / len(gpus) for _, gpus in with_gpu]
        panels.append(("GPU busy, %", on, busy, False))
        panels.append(
            ("GPU memory, GB", on, [sum(g.memory_bytes for g in gpus) / GIGA for _, gpus in with_gpu], True)
        )
    columns = 1 if narrow else 2
    rows = -(-len(panels) // columns)
    width = chart_style.NARROW_INCHES if narrow else chart_style.WIDE_INCHES
    figure, places = chart_style.create_panels(width, 1.5 * rows + 0.2, rows, columns)
    for axes in places[len(panels) :]:
        axes.set_visible(False)
    for number, (axes, (name, xs, ys, peak)) in enumerate(zip(places, panels, strict=False)):
        seconds = chart_style.set_time_axis(axes, end, narrow, label=number // columns == rows - 1)
        _draw_area(axes, *chart_style.downsample_series([at / seconds for at in xs], ys, peak), name)
    return figure


def _draw_area(axes: Axes, xs: Sequence[float], ys: Sequence[float], name: str) -> None:
    axes.plot(xs, ys, color=ACCENT, linewidth=1.1)
    axes.fill_between(xs, ys, color=ACCENT, alpha=0.15, linewidth=0)
    axes.set_title(name)
    axes.set_ylim(0, max(*ys, 0.0, 1e-9) * 1.15 if len(ys) > 1 else max(ys[0], 1e-9) * 1.15)
    axes.locator_params(axis="y", nbins=4)


def draw_curves(shown: ReportData) -> Figure | None:
    """The series that trainings printed, small and side by side; where one was no number any more, a mark."""
    wanted = [
        (f"{attempt.number}: {formatting.make_drawable(curve.name, 18)}", curve)
        for attempt in shown.findings.attempts
        for curve in attempt.curves
        if any(value is not None for _, value in curve.points)
    ][:MOST_CURVES]
    if not wanted:
        return None
    columns = min(4, len(wanted))
    rows = -(-len(wanted) // columns)
    figure, places = chart_style.create_panels(2 * columns + 0.2, 1.35 * rows + 0.2, rows, columns)
    for axes in places[len(wanted) :]:
        axes.set_visible(False)
    for axes, (name, curve) in zip(places, wanted, strict=False):
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
