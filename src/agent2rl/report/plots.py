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

DOTS_PER_INCH = 130
FRACTION = re.compile(r"(\d\.\d\d)\d+")
"""Finer than a hundredth of a point is nothing."""
NARROW = ".narrow"
"""Ends the name of a figure that is drawn for a telephone."""


def draw(shown: Shown, narrow: bool = False) -> dict[str, Figure]:
    """By name; what there is nothing to draw of is not there."""
    end = charts.end_of_time(shown)
    at = None if shown.timeline.started is None else shown.timeline.at
    with mpl.rc_context(STYLE):
        figures = {
            "scores": charts.scores(shown.view, at, end, narrow),
            "timeline": charts.timeline(shown, end, narrow),
            "rollouts": series.rollouts(shown, end, narrow),
            "tokens": series.tokens(shown, end, narrow),
            "resources": series.resources(shown, end, narrow),
        }
        if not narrow:
            figures["curves"] = series.curves(shown)
    return {name: figure for name, figure in figures.items() if figure}


def texts(shown: Shown) -> dict[str, str]:
    """Each figure as SVG, and again for telephones."""
    return _texts(draw(shown)) | _narrow(shown)


def save(shown: Shown, folder: Path) -> dict[str, str]:
    """Write each figure as SVG and PNG and return `texts`."""
    folder.mkdir(parents=True, exist_ok=True)
    figures = draw(shown)
    found = _texts(figures)
    for name, figure in figures.items():
        write_atomically(folder / f"{name}.svg", found[name])
        with mpl.rc_context(STYLE):
            figure.savefig(folder / f"{name}.png", dpi=DOTS_PER_INCH, metadata={"Software": None})
    return found | _narrow(shown)


def _narrow(shown: Shown) -> dict[str, str]:
    return {name + NARROW: text for name, text in _texts(draw(shown, narrow=True)).items()}


def _texts(figures: dict[str, Figure]) -> dict[str, str]:
    with mpl.rc_context(STYLE):
        return {name: _svg(figure) for name, figure in figures.items()}


def _svg(figure: Figure) -> str:
    file = io.StringIO()
    figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    return FRACTION.sub(r"\1", file.getvalue())
