"""Draws what happened over a run's time: the agent's activity, rollouts, tokens and cost, resources."""

from collections.abc import Sequence
from itertools import accumulate

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from agent2rl.core.records import RolloutCounts
from agent2rl.report import chart_style
from agent2rl.report.chart_style import Margins
from agent2rl.report.formatting import ACCENT, BAD, COLOURS, DIM, DOING, HELD
from agent2rl.report.report_data import Activity, ActivityStretch, ReportData

# The agent's activity.

BINS = 480
"""Resolution of the timeline; finer is not visible."""


def draw_timeline(data: ReportData, end: float, narrow: bool = False, begin: float = 0.0) -> Figure | None:
    """Draw the agent's activity from `begin` on as a band, with submissions, checkpoints and code changes."""
    line = data.timeline
    if not line.spans:
        return None
    around = Margins(left=0.9, top=0.66 if narrow else 0.3)
    figure, (axes,) = (
        chart_style.create_panels(chart_style.NARROW_INCHES, 2.5, margins=around)
        if narrow
        else chart_style.create_panels(chart_style.WIDE_INCHES, 2.1, margins=around)
    )
    seconds = chart_style.set_time_axis(axes, end, narrow)
    axes.set_xlim(left=begin / seconds)
    for kind, bars in bin_spans(line.spans, end, begin).items():
        places = [(began / seconds, (ended - began) / seconds) for began, ended in bars]
        axes.broken_barh(places, (3.2, 1.3), facecolor=COLOURS[kind], linewidth=0)
    lanes = {2.4: "submissions", 1.4: "checkpoints", 0.4: "code changes"}
    submitted = [line.at(one.accepted_at) / seconds for one in data.view.submissions]
    axes.plot(submitted, [2.4] * len(submitted), "o", color=ACCENT, markersize=4.5)
    saved = chart_style.downsample_marks(
        (at for at, seen in line.files if seen.what == "weights"), end - begin
    )
    axes.plot([at / seconds for at in saved], [1.4] * len(saved), "D", color=HELD, markersize=3.5)
    changed = chart_style.downsample_marks((line.at(each.at) for each in line.revisions), end - begin)
    axes.vlines([at / seconds for at in changed], 0.1, 0.7, color=DIM, linewidth=1)
    axes.set(ylim=(-0.2, 4.6), yticks=[*lanes, 3.85], yticklabels=[*lanes.values(), "activity"])
    axes.grid(visible=False)
    axes.spines["left"].set_visible(False)
    seen = [(each.kind, min(each.ended, end) - max(each.began, begin)) for each in line.spans]
    sums = {kind: sum(max(0.0, part) for one, part in seen if one == kind) for kind in DOING}
    total = sum(sums.values()) or 1.0
    patches = [
        Patch(color=COLOURS[kind], label=f"{kind} {spent / total:.0%}")
        for kind, spent in sums.items()
        if spent
    ]
    axes.legend(
        handles=patches, loc="lower left", bbox_to_anchor=(0, 1.0), ncols=2 if narrow else 6, handlelength=0.9
    )
    return figure


def bin_spans(
    spans: tuple[ActivityStretch, ...], end: float, begin: float = 0.0
) -> dict[Activity, list[tuple[float, float]]]:
    """Reduce stretches to bins: each shows the activity that fills most of it; equal ones are joined."""
    width = max(end - begin, 1e-9) / BINS
    filled: list[dict[Activity, float]] = [{} for _ in range(BINS)]
    for each in spans:
        began, ended = each.began - begin, each.ended - begin
        first, last = int(began // width), int(ended // width)
        for number in range(max(0, first), min(BINS - 1, last) + 1):
            part = min(ended, (number + 1) * width) - max(began, number * width)
            if part > 0:
                filled[number][each.kind] = filled[number].get(each.kind, 0.0) + part
    joined_bars: dict[Activity, list[tuple[float, float]]] = {}
    for number, kinds in enumerate(filled):
        if not kinds:
            continue
        bars = joined_bars.setdefault(max(kinds.items(), key=lambda each: each[1])[0], [])
        place = (begin + number * width, begin + (number + 1) * width)
        joined = bars and bars[-1][1] == place[0]
        bars[-1:] = [(bars[-1][0], place[1])] if joined else [*bars[-1:], place]
    return joined_bars


# Rollouts, tokens and cost, resources.

GIGA = 1e9


def draw_rollouts(data: ReportData, end: float, narrow: bool = False) -> Figure | None:
    """Draw the episodes played, and the share won in each stretch of time."""
    played = data.timeline.played
    if not played or not any(each.played.episodes for each in played):
        return None
    figure, (many, won) = _create_two_panels(narrow)
    seconds = chart_style.set_time_axis(many, end, narrow, label=not narrow)
    chart_style.set_time_axis(won, end, narrow)
    times = [each.at / seconds for each in played]
    for name, colour, counts in (
        ("claimed", HELD, [each.claimed for each in played]),
        ("replayed", COLOURS["training"], [each.replayed for each in played]),
        ("served", ACCENT, [each.served for each in played]),
        ("refuted", BAD, [each.refuted for each in played]),
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
    """Create two panels side by side, or one below the other on narrow screens."""
    if narrow:
        return chart_style.create_panels(chart_style.NARROW_INCHES, 4.2, rows=2)
    return chart_style.create_panels(chart_style.WIDE_INCHES, 2.4, columns=2)


def _compute_win_shares(
    times: Sequence[float], counts: Sequence[RolloutCounts], stretches: int = 24
) -> tuple[list[float], list[float]]:
    """Return the share of wins between every few counts, without stretches where nothing was played."""
    step = max(1, len(times) // stretches)
    xs, ys, before = [], [], RolloutCounts()
    for at in range(step - 1, len(times), step):
        episodes = counts[at].episodes - before.episodes
        if episodes > 0:
            xs.append(times[at])
            ys.append(100 * min(1.0, max(0.0, (counts[at].successes - before.successes) / episodes)))
            before = counts[at]
    return xs, ys


def draw_tokens(data: ReportData, end: float, narrow: bool = False) -> Figure | None:
    """Draw the cumulative tokens that the driver read and wrote, and their cost."""
    started = data.timeline.started
    requests = [each for each in data.usage if each.tokens] if started is not None else []
    if started is None or not requests:
        return None
    requests.sort(key=lambda each: each.at)
    priced = any(each.usd for each in requests)
    width = chart_style.NARROW_INCHES if narrow else chart_style.WIDE_INCHES
    figure, panels = _create_two_panels(narrow) if priced else chart_style.create_panels(width, 2.4)
    times = [max(0.0, data.timeline.at(each.at)) for each in requests]
    end = max(end, times[-1])
    seconds = chart_style.set_time_axis(panels[0], end, narrow, label=not (priced and narrow))
    places = [at / seconds for at in times]
    counted = [each.tokens for each in requests if each.tokens]
    for name, colour, amounts in (
        ("read", ACCENT, [each.input for each in counted]),
        ("cached", COLOURS["base"], [each.cached for each in counted]),
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
        xs, ys = chart_style.downsample_count(places, list(accumulate(each.usd or 0.0 for each in requests)))
        panels[1].step([0.0, *xs], [0.0, *ys], where="post", color=ACCENT)
        panels[1].set_title("cost, USD")
        panels[1].set_ylim(bottom=0)
    return figure


def draw_resources(data: ReportData, end: float, narrow: bool = False) -> Figure | None:
    """Draw the cores, memory, disk and GPU that the agent's processes used."""
    samples = data.timeline.samples
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
