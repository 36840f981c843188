"""The courses of several runs in one figure. Loaded when one is wanted: matplotlib takes a second."""

import threading
from collections.abc import Sequence

import matplotlib as mpl
from matplotlib.figure import Figure

from agent2rl.dashboard.run_status import LiveRunStatus
from agent2rl.report import chart_style, figure_files, formatting
from agent2rl.report.chart_style import STYLE, Margins
from agent2rl.report.colours import BASE, SERIES

_DRAWING = threading.Lock()
"""The style is one for the whole process."""


def courses(runs: Sequence[LiveRunStatus]) -> dict[str, str]:
    """Scores of the submissions of all runs over time, as SVG for desks and telephones."""
    with _DRAWING, mpl.rc_context(STYLE):
        figures = {
            "courses": _draw_trajectories(runs, narrow=False),
            "courses" + figure_files.NARROW: _draw_trajectories(runs, narrow=True),
        }
    return figure_files.render_svgs({name: figure for name, figure in figures.items() if figure})


def _draw_trajectories(runs: Sequence[LiveRunStatus], narrow: bool) -> Figure | None:
    known = [(at, each) for at, each in enumerate(runs) if each.scored and each.began is not None]
    if not known:
        return None
    figure, (axes,) = chart_style.create_panels(
        chart_style.NARROW_INCHES if narrow else chart_style.WIDE_INCHES,
        3.2,
        margins=Margins(top=0.12 + 0.165 * (len(known) + 1)),
    )
    ends = [one.accepted_at - (run.began or 0.0) for _, run in known for one in run.view.submissions]
    seconds = chart_style.set_time_axis(axes, max(ends) * 1.02, narrow)
    for at, run in known:
        colour = SERIES[at % len(SERIES)]
        points = [
            ((one.accepted_at - (run.began or 0.0)) / seconds, one.score)
            for one in run.view.submissions
            if one.score
        ]
        values = [score.value for _, score in points]
        low = [max(0.0, score.value - score.ci.low) for _, score in points]
        high = [max(0.0, score.ci.high - score.value) for _, score in points]
        label = formatting.make_drawable(f"{at + 1}: {run.view.paths.run_id}", 60)
        places = [place for place, _ in points]
        axes.errorbar(
            places, values, [low, high], fmt="o-", color=colour, markersize=4, elinewidth=1, label=label
        )
        if run.view.baseline:
            label = "_" if at != known[0][0] else "untouched" + (" models" if len(known) > 1 else " model")
            value = run.view.baseline.value
            axes.axhline(value, color=BASE, linestyle=(0, (4, 3)), linewidth=0.9, label=label)
    axes.set_ylabel("score, %")
    axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
    chart_style.add_legend(axes, 1)
    return figure
