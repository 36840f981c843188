"""Figures of what was counted over time: rollouts, tokens and cost, the machine, and training curves."""

from collections.abc import Sequence
from itertools import accumulate

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from agent2rl.analysis.findings import Curve
from agent2rl.core.records import Counts
from agent2rl.report import drawing, words
from agent2rl.report.drawing import ACCENT, BAD, COLOURS, HELD
from agent2rl.report.shown import Shown

GIGA = 1e9


def rollouts(shown: Shown, end: float, narrow: bool = False) -> Figure | None:
    """Episodes played and won, and the share won in each stretch of time."""
    played = shown.timeline.played
    if not played or not any(each.claimed.episodes or each.witnessed.episodes for each in played):
        return None
    figure = drawing.canvas(narrow, 2.5, 4.4)
    many, won = figure.subplots(*((2, 1) if narrow else (1, 2)))
    seconds = drawing.time_axis(many, end, narrow, label=not narrow)
    drawing.time_axis(won, end, narrow)
    times = [each.at / seconds for each in played]
    for name, colour, counts in (
        ("claimed", HELD, [each.claimed for each in played]),
        ("witnessed", ACCENT, [each.witnessed for each in played]),
    ):
        if counts[-1].episodes:
            xs, ys = drawing.thin_count([0.0, *times], [0.0, *(float(each.episodes) for each in counts)])
            many.step(xs, ys, where="post", color=colour, label=name)
            won.plot(*_won(times, counts), color=colour, marker="o", markersize=2.5, label=name)
    many.set_title("episodes played")
    many.set_ylim(bottom=0)
    won.set_title("share of episodes won, %")
    won.set_ylim(-2, 102)
    many.legend(loc="upper left")
    return figure


def _won(
    times: Sequence[float], counts: Sequence[Counts], stretches: int = 24
) -> tuple[list[float], list[float]]:
    """The share of wins between every few counts; none where nothing was played."""
    step = max(1, len(times) // stretches)
    xs, ys, before = [], [], Counts()
    for at in range(step - 1, len(times), step):
        episodes = counts[at].episodes - before.episodes
        if episodes > 0:
            xs.append(times[at])
            ys.append(100 * min(1.0, max(0.0, (counts[at].successes - before.successes) / episodes)))
            before = counts[at]
    return xs, ys


def tokens(shown: Shown, end: float, narrow: bool = False) -> Figure | None:
    """What the driver read and wrote, and what it cost, all added up."""
    started = shown.timeline.started
    asked = [each for each in shown.usage if each.tokens] if started is not None else []
    if started is None or not asked:
        return None
    asked.sort(key=lambda each: each.at)
    priced = any(each.usd for each in asked)
    figure = drawing.canvas(narrow, 2.4, 4.2 if priced else 2.4)
    shape = ((2, 1) if narrow else (1, 2)) if priced else (1, 1)
    panels = list(figure.subplots(*shape, squeeze=False).flat)
    times = [max(0.0, each.at - started) for each in asked]
    end = max(end, times[-1])
    seconds = drawing.time_axis(panels[0], end, narrow, label=not (priced and narrow))
    places = [at / seconds for at in times]
    counted = [each.tokens for each in asked if each.tokens]
    for name, colour, amounts in (
        ("read", ACCENT, [each.input for each in counted]),
        ("of it cached", COLOURS["base"], [each.cached for each in counted]),
        ("written", HELD, [each.output for each in counted]),
    ):
        if any(amounts):
            xs, ys = drawing.thin_count(places, list(accumulate(amount / 1e3 for amount in amounts)))
            panels[0].step([0.0, *xs], [0.0, *ys], where="post", color=colour, label=name)
    panels[0].set_title("tokens, thousands")
    panels[0].set_ylim(bottom=0)
    panels[0].legend(loc="upper left")
    if priced:
        drawing.time_axis(panels[1], end, narrow)
        xs, ys = drawing.thin_count(places, list(accumulate(each.usd or 0.0 for each in asked)))
        panels[1].step([0.0, *xs], [0.0, *ys], where="post", color=ACCENT)
        panels[1].set_title("cost, USD")
        panels[1].set_ylim(bottom=0)
    return figure


def resources(shown: Shown, end: float, narrow: bool = False) -> Figure | None:
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
        busy = [100 * sum(gpu.busy for gpu in gpus) / len(gpus) for _, gpus in with_gpu]
        panels.append(("GPU busy, %", on, busy, False))
        panels.append(
            ("GPU memory, GB", on, [sum(g.memory_bytes for g in gpus) / GIGA for _, gpus in with_gpu], True)
        )
    columns = 1 if narrow else 2
    rows = -(-len(panels) // columns)
    figure = drawing.canvas(narrow, 1.45 * rows + 0.3)
    places = figure.subplots(rows, columns, squeeze=False)
    for number, axes in enumerate(places.flat):
        if number >= len(panels):
            axes.set_visible(False)
            continue
        name, xs, ys, peak = panels[number]
        seconds = drawing.time_axis(axes, end, narrow, label=number >= len(panels) - columns)
        _area(axes, *drawing.thin([at / seconds for at in xs], ys, peak), name)
    return figure


def _area(axes: Axes, xs: Sequence[float], ys: Sequence[float], name: str) -> None:
    axes.plot(xs, ys, color=ACCENT, linewidth=1.1)
    axes.fill_between(xs, ys, color=ACCENT, alpha=0.15, linewidth=0)
    axes.set_title(name)
    axes.set_ylim(0, max(*ys, 0.0, 1e-9) * 1.15 if len(ys) > 1 else max(ys[0], 1e-9) * 1.15)
    axes.locator_params(axis="y", nbins=4)


def curve(given: Curve) -> Figure | None:
    """One series that a training printed, small; where it was no number any more, a mark."""
    known = [(step, value) for step, value in given.points if value is not None]
    if not known:
        return None
    figure = Figure(figsize=(2.9, 1.65))
    axes = figure.add_axes((0.17, 0.22, 0.79, 0.62))
    axes.plot(
        *drawing.thin([step for step, _ in known], [value for _, value in known]),
        color=ACCENT,
        linewidth=1.2,
        marker="o" if len(known) < 12 else None,
        markersize=2.5,
    )
    lost = [step for step, value in given.points if value is None]
    if lost:
        axes.axvline(lost[0], color=BAD, linewidth=1, linestyle=(0, (3, 2)))
        axes.annotate(
            "no number",
            (lost[0], 0.98),
            xycoords=("data", "axes fraction"),
            ha="right",
            va="top",
            fontsize=7,
            color=BAD,
            textcoords="offset points",
            xytext=(-3, 0),
        )
    axes.set_title(words.drawable(given.name))
    axes.locator_params(axis="both", nbins=4)
    axes.margins(x=0.03)
    return figure
