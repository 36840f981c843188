"""Draws the figures of a run's report: scores here, others in `training_figures` and `activity_figures`.

The same run and version of matplotlib give the same SVG bytes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from agent2rl.core.grading_records import EvalScore
from agent2rl.record.files import write_atomically
from agent2rl.record.reader import RunView
from agent2rl.report import campaign_tables, chart_style
from agent2rl.report.activity_figures import draw_resources, draw_rollouts, draw_timeline, draw_tokens
from agent2rl.report.chart_style import NARROW, STYLE, Margins
from agent2rl.report.formatting import ACCENT, BAD, BASE, CARD, DIM, HELD, INK
from agent2rl.report.page_templates import CHART
from agent2rl.report.report_data import ReportData
from agent2rl.report.training_figures import draw_curves, draw_training

# Score trajectory.

LABELS = 14
"""With more submissions than this, points have no numbers."""


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
    _draw_points(axes, places, [score for _, score in scored], ACCENT, filled=False, name="submission")
    for place, (one, score) in zip(places, scored, strict=True):
        if one.id == best:
            axes.plot([place], [score.value], "o", color=ACCENT, markersize=5, zorder=4, label="_chosen")
        if len(scored) <= LABELS or one.id == best:
            _annotate_point(
                axes, place, score.value, f"{one.id}: {score.value:.2f}" if one.id == best else str(one.id)
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
    look: dict[str, Any] = {"color": BASE, "linestyle": (0, (4, 3)), "linewidth": 1.2}
    axes.axhline(baseline.value, label="_untouched model", **look)
    axes.plot([], [], label="untouched model", **look)


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
    _draw_points(axes, [0], [heldout.before], BASE, filled=True, name="untouched model")
    _draw_points(axes, [1], [heldout.after], HELD, filled=True, name="best submission")
    if heldout.gap is not None:
        axes.plot(
            [1, 1], [heldout.after.value, heldout.promised], color=HELD, linewidth=5, alpha=0.25, label="_gap"
        )
        axes.plot(
            [0.75, 1.25],
            [heldout.promised] * 2,
            color=HELD,
            linewidth=1.2,
            linestyle=(0, (2, 2)),
            label="_predicted by feedback",
        )
    _annotate_value(
        axes, 0, heldout.before.ci.high, heldout.before.value, DIM, above=True
    )  # there is room between them
    _annotate_value(axes, 1, heldout.after.ci.low, heldout.after.value, HELD, above=False)
    gap = f"\ngap {heldout.gap:+.2f}" if heldout.gap is not None else ""
    axes.set_title(f"held out{gap}", color=DIM, fontsize=8)
    axes.set(xlim=(-0.8, 1.8), xticks=[0, 1], xticklabels=["base", "best"])
    axes.tick_params(axis="y", labelleft=False)
    axes.spines["left"].set_visible(False)


def _annotate_value(axes: Axes, place: float, edge: float, value: float, colour: str, above: bool) -> None:
    look: dict[str, Any] = {"textcoords": "offset points", "ha": "center", "fontsize": 8, "color": colour}
    offset, align = (3, "bottom") if above else (-3, "top")
    axes.annotate(f"{value:.2f}", (place, edge), xytext=(0, offset), va=align, **look)


def _draw_points(
    axes: Axes, places: Sequence[float], scores: Sequence[EvalScore], colour: str, filled: bool, name: str
) -> None:
    below = [max(0.0, each.value - each.ci.low) for each in scores]
    above = [max(0.0, each.ci.high - each.value) for each in scores]
    look: dict[str, Any] = {"markerfacecolor": colour if filled else CARD, "markersize": 5, "zorder": 3}
    values = [each.value for each in scores]
    look |= {"fmt": "o", "color": colour, "elinewidth": 1.1, "capsize": 2.5, "label": f"_{name}"}
    axes.errorbar(places, values, [below, above], **look)


def _annotate_point(axes: Axes, place: float, value: float, text: str) -> None:
    axes.annotate(
        text, (place, value), textcoords="offset points", xytext=(5, 4), fontsize=8, color=INK, zorder=4
    )


# All figures of a report.


def find_time_end(data: ReportData) -> float:
    """Return the end of the time axis: of the recorded time, or of the budget if that is near."""
    line = data.timeline
    ends = [each.ended for each in data.findings.attempts] + [each.ended for each in line.spans]
    ends += [at for at, _ in line.samples[-1:]]
    return extend_to_budget(max(ends, default=0.0), data.view)


def extend_to_budget(end: float, view: RunView) -> float:
    budget = view.spec.budget.wall_seconds
    return budget if end == 0 or 0.7 * budget <= end <= budget else end


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
    """Write each figure as SVG, PNG and CSV and return `render_all_svgs`."""
    svgs = chart_style.save_figures(draw_figures(data), folder)
    for name, text in svgs.items():
        if name.endswith(CHART):
            rows = chart_style.list_chart_values(text)
            write_atomically(folder / f"{name.removesuffix(CHART)}.csv", campaign_tables.render_csv(rows))
    if "timeline" in svgs:
        write_atomically(folder / "timeline.csv", campaign_tables.render_csv(_list_moments(data)))
    return svgs | _render_narrow_svgs(data)


def _list_moments(data: ReportData) -> campaign_tables.Table:
    """Return what the timeline shows, in seconds of the agent's time; a moment has no end."""
    line = data.timeline
    moments = [("submission", line.at(one.accepted_at)) for one in data.view.submissions]
    moments += [("checkpoint", at) for at, seen in line.files if seen.what == "weights"]
    moments += [("code change", line.at(each.at)) for each in line.revisions]
    spans = [{"what": each.kind, "began": each.began, "ended": each.ended} for each in line.spans]
    return [
        *spans,
        *({"what": what, "began": at, "ended": None} for what, at in sorted(moments, key=_by_time)),
    ]


def _by_time(moment: tuple[str, float]) -> float:
    return moment[1]


def _render_narrow_svgs(data: ReportData) -> dict[str, str]:
    return {
        name + NARROW: text for name, text in chart_style.render_svgs(draw_figures(data, narrow=True)).items()
    }
