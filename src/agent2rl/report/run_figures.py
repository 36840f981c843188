"""Draws the figures of a run's report: scores, training, timeline, rollouts, tokens, resources.

The same run and version of matplotlib give the same SVG bytes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from agent2rl.analysis.findings import METRICS, MetricName, PrintedCurve, TrainingCurves, TrainingSeries
from agent2rl.core.grading_records import EvalScore
from agent2rl.core.records import RolloutCounts
from agent2rl.record.reader import RunView
from agent2rl.report import chart_style, formatting
from agent2rl.report.chart_style import NARROW, STYLE, Margins
from agent2rl.report.formatting import ACCENT, BAD, BASE, CARD, COLOURS, DIM, DOING, HELD, INK, SERIES
from agent2rl.report.report_data import Activity, ActivityStretch, ReportData

# Score trajectory and timeline.

LABELS = 14
"""With more submissions than this, points have no numbers."""
BINS = 480
"""Resolution of the timeline; finer is not visible."""


def find_time_end(data: ReportData) -> float:
    """Return the end of the time axis: of the recorded time, or of the budget if that is near."""
    line = data.timeline
    ends = [each.ended for each in data.findings.attempts] + [each.ended for each in line.spans]
    ends += [at for at, _ in line.samples[-1:]]
    return extend_to_budget(max(ends, default=0.0), data.view)


def extend_to_budget(end: float, view: RunView) -> float:
    budget = view.spec.budget.wall_seconds
    return budget if end == 0 or 0.7 * budget <= end <= budget else end


def draw_scores(
    view: RunView, at: Callable[[float], float] | None, end: float, narrow: bool = False
) -> Figure | None:
    """Draw every scored submission with its interval, the best so far, and the scores on held-out data.

    `at` converts a time to the agent's time; None if the agent never started.
    """
    scored = [(one, one.score) for one in view.submissions if one.score]
    if at is None or not scored:
        return None
    end = max(end, *(at(one.accepted_at) for one, _ in scored))
    heldout = _read_held_out(view)
    figure, (axes, *apart) = chart_style.create_panels(
        chart_style.NARROW_INCHES if narrow else chart_style.WIDE_INCHES,
        3.4,
        columns=2 if heldout else 1,
        margins=Margins(top=0.5 if narrow else 0.36, across=0.14),
        sharey=True,
        width_ratios=((3, 1) if narrow else (6, 1)) if heldout else None,
    )
    if heldout:
        _draw_held_out(apart[0], heldout)
    seconds = chart_style.set_time_axis(axes, end * 1.02, narrow)
    places = [at(one.accepted_at) / seconds for one, _ in scored]
    values = [score.value for _, score in scored]
    if view.baseline:
        _draw_baseline(axes, view.baseline)
    _draw_best_so_far(axes, places, values, view.baseline, end / seconds)
    best = view.result.best.id if view.result and view.result.best else None
    _draw_points(axes, places, [score for _, score in scored], ACCENT, filled=False)
    for place, (one, score) in zip(places, scored, strict=True):
        if one.id == best:
            axes.plot([place], [score.value], "o", color=ACCENT, markersize=5, zorder=4)
        if len(scored) <= LABELS or one.id == best:
            _annotate_point(
                axes, place, score.value, f"{one.id}: {score.value:.1f}" if one.id == best else str(one.id)
            )
    axes.plot([], [], "o", color=ACCENT, markerfacecolor=CARD, markersize=5, label="submission")
    unscored = [at(one.accepted_at) / seconds for one in view.submissions if one.verdict and not one.score]
    bounds = [bound for _, score in scored for bound in (score.ci.low, score.ci.high)]
    bounds += [view.baseline.ci.low, view.baseline.ci.high] if view.baseline else []
    bounds += heldout.bounds if heldout else []
    low, high = min(bounds), max(bounds)
    room = max(high - low, 4.0) * 0.12
    axes.set_ylim(max(0.0, low - room) - (0.5 if low < room else 0), high + room)
    if unscored:
        foot = axes.get_ylim()[0] + room * 0.35
        axes.plot(unscored, [foot] * len(unscored), "x", color=BAD, markersize=5, label="no score")
    axes.set_ylabel("score, %")
    chart_style.add_legend(axes, 2 if narrow else 4)
    return figure


def _draw_baseline(axes: Axes, baseline: EvalScore) -> None:
    """Draw the baseline as a line with a band: it applies at all times."""
    axes.axhspan(baseline.ci.low, baseline.ci.high, color=BASE, alpha=0.16, linewidth=0)
    axes.axhline(baseline.value, color=BASE, linestyle=(0, (4, 3)), linewidth=1.2)
    axes.plot([], [], color=BASE, linestyle=(0, (4, 3)), linewidth=1.2, label="untouched model")


def _draw_best_so_far(
    axes: Axes, places: list[float], values: list[float], baseline: EvalScore | None, end: float
) -> None:
    """Draw the best score so far, starting at the untouched model."""
    first = [(0.0, baseline.value)] if baseline else []
    course = [*first, *zip(places, values, strict=True)]
    bests = list(accumulate((value for _, value in course), max))
    xs = [place for place, _ in course] + [end]
    axes.step(xs, [*bests, bests[-1]], where="post", color=ACCENT, alpha=0.55, label="best so far")


@dataclass(frozen=True)
class HeldOutScores:
    """Scores of the untouched model and the best submission on the held-out split, and the optimism gap."""

    before: EvalScore
    after: EvalScore
    gap: float | None

    @property
    def promised(self) -> float:
        return self.after.value + (self.gap or 0.0)

    @property
    def bounds(self) -> list[float]:
        ends = [bound for score in (self.before, self.after) for bound in (score.ci.low, score.ci.high)]
        return [*ends, self.promised]


def _read_held_out(view: RunView) -> HeldOutScores | None:
    result = view.result
    if result and result.baseline_heldout and result.best_heldout:
        return HeldOutScores(result.baseline_heldout, result.best_heldout, result.optimism_gap)
    return None


def _draw_held_out(axes: Axes, heldout: HeldOutScores) -> None:
    _draw_points(axes, [0], [heldout.before], BASE, filled=True)
    _draw_points(axes, [1], [heldout.after], HELD, filled=True)
    if heldout.gap is not None:
        axes.plot([1, 1], [heldout.after.value, heldout.promised], color=HELD, linewidth=5, alpha=0.25)
        axes.plot([0.75, 1.25], [heldout.promised] * 2, color=HELD, linewidth=1.2, linestyle=(0, (2, 2)))
    _annotate_value(
        axes, 0, heldout.before.ci.high, heldout.before.value, DIM, above=True
    )  # there is room between them
    _annotate_value(axes, 1, heldout.after.ci.low, heldout.after.value, HELD, above=False)
    gap = f"\ngap {heldout.gap:+.1f}" if heldout.gap is not None else ""
    axes.set_title(f"held out{gap}", color=DIM, fontsize=8)
    axes.set(xlim=(-0.8, 1.8), xticks=[0, 1], xticklabels=["base", "best"])
    axes.tick_params(axis="y", labelleft=False)
    axes.spines["left"].set_visible(False)


def _annotate_value(axes: Axes, place: float, edge: float, value: float, colour: str, above: bool) -> None:
    look: dict[str, Any] = {"textcoords": "offset points", "ha": "center", "fontsize": 8, "color": colour}
    offset, align = (3, "bottom") if above else (-3, "top")
    axes.annotate(f"{value:.1f}", (place, edge), xytext=(0, offset), va=align, **look)


def _draw_points(
    axes: Axes, places: Sequence[float], scores: Sequence[EvalScore], colour: str, filled: bool
) -> None:
    below = [max(0.0, each.value - each.ci.low) for each in scores]
    above = [max(0.0, each.ci.high - each.value) for each in scores]
    look: dict[str, Any] = {"markerfacecolor": colour if filled else CARD, "markersize": 5, "zorder": 3}
    values = [each.value for each in scores]
    axes.errorbar(places, values, [below, above], fmt="o", color=colour, elinewidth=1.1, capsize=2.5, **look)


def _annotate_point(axes: Axes, place: float, value: float, text: str) -> None:
    axes.annotate(
        text, (place, value), textcoords="offset points", xytext=(5, 4), fontsize=8, color=INK, zorder=4
    )


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


# Rollouts, tokens and cost, resources, and training curves.

GIGA = 1e9
MOST_CURVES = 12


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
DASHES = ("solid", (0, (4, 2)))
"""Line styles; the second is for trainings that use a colour again."""


def draw_training(data: ReportData, narrow: bool = False) -> Figure | None:
    """Draw a panel for each metric over steps, with a line for each training and a mark for submissions."""
    trainings = list_drawn_trainings(data)
    panels = _list_training_panels(trainings)
    if not panels:
        return None
    columns = min(2 if narrow else 3, len(panels))
    rows = -(-len(panels) // columns)
    legend = -(-len(trainings) // (1 if narrow else 3))
    width = chart_style.NARROW_INCHES if narrow else chart_style.WIDE_INCHES
    top = 0.3 + 0.17 * legend
    figure, places = chart_style.create_panels(
        width, 1.35 * rows + 0.45 + top, rows, columns, margins=Margins(top=top)
    )
    for axes in places[len(panels) :]:
        axes.set_visible(False)
    for number, (axes, (title, metric, drawn)) in enumerate(zip(places, panels, strict=False)):
        for place in drawn:
            _draw_training_series(axes, trainings[place], metric, place)
        axes.set_title(title)
        axes.locator_params(axis="both", nbins=3 if narrow else 4)
        if metric == "learning_rate":
            axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        if number >= len(panels) - columns:
            axes.set_xlabel("steps")
    handles = [
        Line2D([], [], color=_choose_colour(place), linestyle=_choose_dashes(place), label=label)
        for place, label in enumerate(map(_label_training, trainings))
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


def list_drawn_trainings(data: ReportData) -> list[TrainingCurves]:
    """Return the trainings that have something to draw."""
    return [
        each
        for each in data.findings.trainings
        if any(value is not None for series in each.series for _, value in series.points)
    ][:MOST_LINES]


def find_series(training: TrainingCurves, metric: MetricName) -> TrainingSeries | None:
    """Return the series of a metric, if it has a value."""
    found = next((each for each in training.series if each.metric == metric), None)
    return found if found and any(value is not None for _, value in found.points) else None


def _draw_training_series(axes: Axes, training: TrainingCurves, metric: MetricName, place: int) -> None:
    series = find_series(training, metric)
    if series is None:
        return
    scale = 100.0 if metric in SHARES else 1.0
    known = [(step, scale * value) for step, value in series.points if value is not None]
    xs, ys = chart_style.downsample_series([step for step, _ in known], [value for _, value in known])
    look: dict[str, Any] = {"color": _choose_colour(place), "linewidth": 1.1}
    axes.plot(
        xs, ys, linestyle=_choose_dashes(place), marker="o" if len(xs) < 12 else None, markersize=2, **look
    )
    marks = [_find_last_value(known, mark.step) for mark in training.submissions]
    axes.plot(
        [step for step, _ in marks],
        [value for _, value in marks],
        "v",
        markersize=5,
        markerfacecolor=CARD,
        zorder=3,
        **look,
    )
    lost = [step for step, value in series.points if value is None]
    if lost:
        axes.axvline(lost[0], color=BAD, linewidth=1, linestyle=(0, (3, 2)))


def _find_last_value(points: Sequence[tuple[float, float]], step: float) -> tuple[float, float]:
    """Return the last point up to a step, or the first one."""
    return next((point for point in reversed(points) if point[0] <= step), points[0])


def _choose_colour(place: int) -> str:
    return SERIES[place % len(SERIES)]


def _choose_dashes(place: int) -> Any:
    return DASHES[place // len(SERIES) % len(DASHES)]


def _label_training(training: TrainingCurves) -> str:
    return formatting.make_drawable(training.name, 34)


# All figures of a report.


def draw_figures(data: ReportData, narrow: bool = False) -> dict[str, Figure]:
    """Return the figures by name; those without data are left out."""
    end = find_time_end(data)
    at = None if data.timeline.started is None else data.timeline.at
    with mpl.rc_context(STYLE):
        figures = {
            "scores": draw_scores(data.view, at, end, narrow),
            "training": draw_training(data, narrow),
            "timeline": draw_timeline(data, end, narrow),
            "rollouts": draw_rollouts(data, end, narrow),
            "tokens": draw_tokens(data, end, narrow),
            "resources": draw_resources(data, end, narrow),
        }
        if not narrow and not figures["training"]:
            figures["curves"] = draw_curves(data)
    return {name: figure for name, figure in figures.items() if figure}


def render_all_svgs(data: ReportData) -> dict[str, str]:
    """Return each figure as SVG, for wide and for narrow screens."""
    return chart_style.render_svgs(draw_figures(data)) | _render_narrow_svgs(data)


def save(data: ReportData, folder: Path) -> dict[str, str]:
    """Write each figure as SVG and PNG and return `render_all_svgs`."""
    return chart_style.save_figures(draw_figures(data), folder) | _render_narrow_svgs(data)


def _render_narrow_svgs(data: ReportData) -> dict[str, str]:
    return {
        name + NARROW: text for name, text in chart_style.render_svgs(draw_figures(data, narrow=True)).items()
    }
