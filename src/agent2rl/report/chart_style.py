"""What all figures share: their look, the axis of time, how long series become short, and how they become
SVG and PNG files.

A figure is drawn twice, for a desk and for a telephone, and never from nothing. Colours are the light ones;
a page puts its own variables in their place, and so follows the reader's choice of light and dark.
"""

import io
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from agent2rl.record.files import write_atomically
from agent2rl.report.formatting import CARD, DIM, INK, LINE
from agent2rl.report.page_templates import NARROW as NARROW

WIDE_INCHES, NARROW_INCHES = 8.0, 3.7
"""Inches."""
POINTS = 240
"""Of a series, at most."""
STYLE: dict[Any, Any] = {
    "svg.hashsalt": "agent2rl",
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 8.5,
    "text.color": INK,
    "axes.labelcolor": DIM,
    "axes.labelsize": 8,
    "axes.titlesize": 8.5,
    "axes.titlecolor": INK,
    "axes.titlelocation": "left",
    "axes.titley": 1.0,
    "axes.edgecolor": LINE,
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "axes.formatter.limits": (-4, 6),
    "axes.formatter.useoffset": False,
    "grid.color": LINE,
    "grid.linewidth": 0.7,
    "xtick.color": LINE,
    "ytick.color": LINE,
    "xtick.labelcolor": DIM,
    "ytick.labelcolor": DIM,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "xtick.major.size": 3,
    "ytick.major.size": 0,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "legend.borderaxespad": 0.2,
    "legend.handlelength": 1.4,
    "legend.columnspacing": 1.2,
    "figure.facecolor": CARD,
    "lines.linewidth": 1.4,
}


@dataclass(frozen=True)
class Margins:
    """Around the panels and between them, in inches: to find them out takes longer than all the drawing."""

    left: float = 0.5
    right: float = 0.12
    bottom: float = 0.42
    top: float = 0.26
    across: float = 0.55
    down: float = 0.5


def create_panels(
    width: float,
    height: float,
    rows: int = 1,
    columns: int = 1,
    margins: Margins = Margins(),  # noqa: B008, it is frozen
    **more: Any,
) -> tuple[Figure, list[Axes]]:
    """A figure of so many inches and its panels, row by row. `more` is for `Figure.subplots`."""
    figure = Figure(figsize=(width, height))
    inner = (width - margins.left - margins.right - (columns - 1) * margins.across) / columns
    outer = (height - margins.top - margins.bottom - (rows - 1) * margins.down) / rows
    places = {
        "left": margins.left / width,
        "right": 1 - margins.right / width,
        "bottom": margins.bottom / height,
        "top": 1 - margins.top / height,
        "wspace": margins.across / inner,
        "hspace": margins.down / outer,
    }
    found = list(figure.subplots(rows, columns, squeeze=False, gridspec_kw=places, **more).flat)
    for axes in found:
        box = axes.get_position()
        axes.xaxis.set_label_coords(0.5, -0.26 / (box.height * height))
        axes.yaxis.set_label_coords(-0.36 / (box.width * width), 0.5)
    return figure, found


def choose_time_unit(end: float) -> tuple[float, str]:
    """Seconds, minutes or hours, whichever suits a time of this length."""
    for seconds, name in ((3600.0, "hours"), (60.0, "minutes")):
        if end >= 3 * seconds:
            return seconds, name
    return 1.0, "seconds"


def set_time_axis(axes: Axes, end: float, narrow: bool, label: bool = True) -> float:
    """Puts the agent's time on the axis below and gives the seconds of its unit."""
    seconds, name = choose_time_unit(end)
    axes.set_xlim(0, max(end / seconds, 1e-9))
    axes.locator_params(axis="x", nbins=5 if narrow else 7)
    if label:
        axes.set_xlabel(f"{name} since the agent's start")
    return seconds


def add_legend(axes: Axes, columns: int) -> None:
    """Above the axes, where no point can lie under it."""
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=columns, borderpad=0)


def downsample_series(
    places: Sequence[float], values: Sequence[float], peak: bool = False
) -> tuple[list[float], list[float]]:
    """At most so many points of a series: the mean of each stretch, or its peak."""
    if len(places) <= POINTS:
        return list(places), list(values)
    xs, ys = [], []
    for number in range(POINTS):
        low, high = number * len(places) // POINTS, (number + 1) * len(places) // POINTS
        part = values[low:high]
        xs.append(places[(low + high) // 2])
        ys.append(max(part) if peak else sum(part) / len(part))
    return xs, ys


def downsample_count(places: Sequence[float], values: Sequence[float]) -> tuple[list[float], list[float]]:
    """The same of a count that only grows: its first, its last and some between."""
    if len(places) <= POINTS:
        return list(places), list(values)
    kept = [number * (len(places) - 1) // (POINTS - 1) for number in range(POINTS)]
    return [places[at] for at in kept], [values[at] for at in kept]


def downsample_marks(places: Iterable[float], end: float) -> list[float]:
    """Moments, no two of them closer than can be told apart."""
    step = max(end, 1e-9) / 240
    return [number * step for number in sorted({round(place / step) for place in places})]


# Figures as SVG and PNG.

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
