"""Figures as SVG and PNG."""

import io
import re
from collections.abc import Mapping
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from agent2rl.report.chart_style import STYLE
from agent2rl.report.page_templates import NARROW as NARROW
from agent2rl.store.files import write_atomically

DOTS_PER_INCH = 130
FRACTION = re.compile(r"(\d\.\d\d)\d+")
"""Finer than a hundredth of a point is nothing."""


def render_svgs(figures: Mapping[str, Figure]) -> dict[str, str]:
    """Each as SVG, the same bytes for the same figure."""
    with mpl.rc_context(STYLE):
        return {name: _render_svg(figure) for name, figure in figures.items()}


def save_figures(figures: Mapping[str, Figure], folder: Path) -> dict[str, str]:
    """Write each as SVG and PNG and return `render_svgs`."""
    folder.mkdir(parents=True, exist_ok=True)
    found = render_svgs(figures)
    for name, figure in figures.items():
        write_atomically(folder / f"{name}.svg", found[name])
        with mpl.rc_context(STYLE):
            figure.savefig(folder / f"{name}.png", dpi=DOTS_PER_INCH, metadata={"Software": None})
    return found


def _render_svg(figure: Figure) -> str:
    file = io.StringIO()
    figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    return FRACTION.sub(r"\1", file.getvalue())
