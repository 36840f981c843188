"""The figures of a report: the same bytes of SVG for the same run and the same version of matplotlib."""

import io
import re
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from agent2rl.report import charts, series
from agent2rl.report.drawing import STYLE
from agent2rl.report.shown import Shown
from agent2rl.store.files import write_atomically
from agent2rl.store.reader import RunView

DOTS_PER_INCH = 130
FRACTION = re.compile(r"(\d\.\d\d)\d+")
"""Finer than a hundredth of a point is nothing."""
NARROW = ".narrow"
"""Ends the name of a figure that is drawn for a telephone."""


def draw(shown: Shown, narrow: bool = False) -> dict[str, Figure]:
    """By name; what there is nothing to draw of is not there."""
    end = charts.end_of_time(shown)
    with mpl.rc_context(STYLE):
        figures = {
            "scores": charts.scores(shown.view, shown.timeline.started, end, narrow),
            "timeline": charts.timeline(shown, end, narrow),
            "rollouts": series.rollouts(shown, end, narrow),
            "tokens": series.tokens(shown, end, narrow),
            "resources": series.resources(shown, end, narrow),
        }
        if not narrow:
            figures["curves"] = series.curves(shown)
    return {name: figure for name, figure in figures.items() if figure}


def save(shown: Shown, folder: Path) -> dict[str, str]:
    """Write each figure as SVG and PNG and return the SVG texts. Those for telephones are only returned."""
    folder.mkdir(parents=True, exist_ok=True)
    texts: dict[str, str] = {}
    with mpl.rc_context(STYLE):
        for name, figure in draw(shown).items():
            texts[name] = _svg(figure)
            write_atomically(folder / f"{name}.svg", texts[name])
            figure.savefig(folder / f"{name}.png", dpi=DOTS_PER_INCH, metadata={"Software": None})
        texts |= {name + NARROW: _svg(figure) for name, figure in draw(shown, narrow=True).items()}
    return texts


def scores(view: RunView, path: Path) -> bool:
    """The course of the scores alone; False where there is none to draw."""
    started = next((entry.time for entry in view.chain.entries if entry.kind == "started"), None)
    with mpl.rc_context(STYLE):
        figure = charts.scores(view, started, charts.reach(0.0, view))
        if figure:
            write_atomically(path, _svg(figure))
    return figure is not None


def _svg(figure: Figure) -> str:
    file = io.StringIO()
    figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    return FRACTION.sub(r"\1", file.getvalue())
