"""The figures of a report: the same bytes of SVG for the same run and the same version of matplotlib."""

from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from agent2rl.report import charts, images, series
from agent2rl.report.drawing import STYLE
from agent2rl.report.images import NARROW
from agent2rl.report.shown import Shown


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
    return images.texts(draw(shown)) | _narrow(shown)


def save(shown: Shown, folder: Path) -> dict[str, str]:
    """Write each figure as SVG and PNG and return `texts`."""
    return images.save(draw(shown), folder) | _narrow(shown)


def _narrow(shown: Shown) -> dict[str, str]:
    return {name + NARROW: text for name, text in images.texts(draw(shown, narrow=True)).items()}
