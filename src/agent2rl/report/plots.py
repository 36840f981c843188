"""The figures of a report, as SVG: the same bytes for the same run and the same version of matplotlib."""

from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from agent2rl.core.records import Score
from agent2rl.store.reader import RunView

FEEDBACK, HELD_OUT, UNTOUCHED = "#1f6feb", "#bf3989", "#6e7781"
STYLE: dict[Any, Any] = {
    "svg.hashsalt": "agent2rl",
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def scores(view: RunView, path: Path) -> bool:
    """Every scored submission over the agent's time, with its interval; False where there is none to draw."""
    began = next((entry.time for entry in view.chain.entries if entry.kind == "started"), None)
    scored = [(one, one.score) for one in view.submissions if one.score]
    if began is None or not scored:
        return False
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(7.2, 3.6), layout="constrained")
        axes = figure.subplots()
        best = view.result.best.id if view.result and view.result.best else None
        places = [(one.accepted_at - began) / 60 for one, _ in scored]
        start = [(0.0, view.baseline.value)] if view.baseline else []
        course = [*start, *((place, score.value) for place, (_, score) in zip(places, scored, strict=True))]
        axes.plot(*zip(*course, strict=True), color=FEEDBACK, alpha=0.35, zorder=1)
        for place, (one, score) in zip(places, scored, strict=True):
            _point(axes, place, score, FEEDBACK, filled=one.id == best)
            _label(axes, place, score, f"{one.id}")
        axes.plot([], [], "o", color=FEEDBACK, label="submission (feedback split)")
        if view.baseline:
            axes.axhline(view.baseline.value, color=UNTOUCHED, linestyle="--", label="untouched model")
        end = view.spec.budget.wall_seconds / 60
        if view.result and view.result.best_heldout:
            _point(axes, end, view.result.best_heldout, HELD_OUT, filled=True)
            axes.plot([], [], "o", color=HELD_OUT, label=f"submission {best} (held-out split)")
        axes.set(xlabel="minutes of the agent's budget", ylabel="score, %", xlim=(0, end * 1.03))
        axes.set_ylim(bottom=-2)
        axes.set_title(
            f"{view.spec.agent} on {view.spec.task} with {view.spec.model}",
            loc="left",
            fontsize=10,
            parse_math=False,
        )
        axes.legend(frameon=False, loc="lower right", fontsize=9)
        figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})
    return True


def _point(axes: Axes, place: float, score: Score, color: str, filled: bool) -> None:
    reach = [[max(0.0, score.value - score.ci.low)], [max(0.0, score.ci.high - score.value)]]
    inside = color if filled else "white"
    axes.errorbar([place], [score.value], reach, fmt="o", color=color, markerfacecolor=inside, capsize=3)


def _label(axes: Axes, place: float, score: Score, text: str) -> None:
    axes.annotate(text, (place, score.value), textcoords="offset points", xytext=(7, -4), fontsize=9)
