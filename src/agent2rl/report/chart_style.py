"""Shared parts of all figures: style, time axis, downsampling, and export to SVG and PNG.

Each figure is drawn twice, for wide and for narrow screens, and only if it has data. Figures use the light
colours; a page replaces them by CSS variables, and so follows the reader's light or dark setting.
"""

import io
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import to_hex
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import FixedFormatter, FixedLocator, FuncFormatter
from matplotlib.transforms import Transform

from agent2rl.record.files import write_atomically
from agent2rl.report.formatting import CARD, COLOURS, DIM, INK, LINE, escape_invisible
from agent2rl.report.page_templates import CHART
from agent2rl.report.page_templates import NARROW as NARROW

WIDE_INCHES, NARROW_INCHES = 8.0, 3.7
POINTS = 240
"""Largest number of points of a series."""
STYLE: dict[Any, Any] = {
    # Else the ids in an SVG are random, and the same figure would give other bytes.
    "svg.hashsalt": "agent2rl",
    "svg.fonttype": "none",
    # Names of agents and tasks may have dollar signs, which are no formulas.
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
    """Space around and between panels, in inches. An automatic layout takes longer than all the drawing."""

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
    **options: Any,
) -> tuple[Figure, list[Axes]]:
    """Create a figure of this size in inches, and its panels by row. `options` go to `Figure.subplots`."""
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
    panels = list(figure.subplots(rows, columns, squeeze=False, gridspec_kw=places, **options).flat)
    for axes in panels:
        box = axes.get_position()
        axes.xaxis.set_label_coords(0.5, -0.26 / (box.height * height))
        axes.yaxis.set_label_coords(-0.36 / (box.width * width), 0.5)
    return figure, panels


def choose_time_unit(end: float) -> tuple[float, str]:
    """Choose seconds, minutes or hours for a time of this length."""
    for seconds, name in ((3600.0, "hours"), (60.0, "minutes")):
        if end >= 3 * seconds:
            return seconds, name
    return 1.0, "seconds"


def set_time_axis(axes: Axes, end: float, narrow: bool, label: bool = True) -> float:
    """Label the x axis with the agent's time and return the seconds of its unit."""
    seconds, name = choose_time_unit(end)
    axes.set_xlim(0, max(end / seconds, 1e-9))
    axes.locator_params(axis="x", nbins=5 if narrow else 7)
    if label:
        axes.set_xlabel(f"{name} since the agent's start")
    return seconds


def add_legend(axes: Axes, columns: int) -> None:
    """Add a legend above the axes, where it covers no point."""
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=columns, borderpad=0)


def downsample_series(
    places: Sequence[float], values: Sequence[float], peak: bool = False
) -> tuple[list[float], list[float]]:
    """Reduce a series to at most `POINTS` points: the mean of each stretch, or its peak."""
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
    """Reduce a growing count to at most `POINTS` points: its first, its last and some between."""
    if len(places) <= POINTS:
        return list(places), list(values)
    indices = [number * (len(places) - 1) // (POINTS - 1) for number in range(POINTS)]
    return [places[at] for at in indices], [values[at] for at in indices]


def downsample_marks(places: Iterable[float], end: float) -> list[float]:
    """Merge moments that are too close to be distinguished."""
    step = max(end, 1e-9) / 240
    return [number * step for number in sorted({round(place / step) for place in places})]


# Export to SVG and PNG.

DOTS_PER_INCH = 130
FRACTION = re.compile(r"(\d\.\d\d)\d+")
"""Matches decimals beyond a hundredth of a point, which are dropped."""


def render_svgs(figures: Mapping[str, Figure]) -> dict[str, str]:
    """Render each figure as SVG, and the data of those that can be charted under the name with `.chart`.

    The same figure gives the same bytes.
    """
    with mpl.rc_context(STYLE):
        svgs = {name: _render_svg(figure) for name, figure in figures.items()}
        data = {name: render_chart_data(figure) for name, figure in figures.items() if NARROW not in name}
    return svgs | {name + CHART: text for name, text in data.items() if text}


def save_figures(figures: Mapping[str, Figure], folder: Path) -> dict[str, str]:
    """Write each as SVG and PNG and return `render_svgs`."""
    folder.mkdir(parents=True, exist_ok=True)
    svgs = render_svgs(figures)
    for name, figure in figures.items():
        write_atomically(folder / f"{name}.svg", svgs[name])
        with mpl.rc_context(STYLE):
            figure.savefig(folder / f"{name}.png", dpi=DOTS_PER_INCH, metadata={"Software": None})
    return svgs


def _render_svg(figure: Figure) -> str:
    file = io.StringIO()
    figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    return FRACTION.sub(r"\1", file.getvalue())


# The data of a figure for charts that answer a pointer, read out of the figure that is drawn as SVG.
#
# So a figure is described once: what its lines show on paper is what a reader can point at.


UNNAMED = re.compile(r"_(?:child|container)\d+|_nolegend_|_?")
"""Matches the names that matplotlib gives to lines without one."""
CAPS = ("_", "|")
"""Markers of the caps of error bars, which are lines of their own."""
SCORED = re.compile(r"score|points")
"""Matches the label of an axis with scores or gains, which have two decimals everywhere."""
DIGITS = 6
VARIABLES = {colour: f"--{name}" for name, colour in COLOURS.items()}


def render_chart_data(figure: Figure) -> str:
    """Return the lines of a figure's panels as JSON; empty if it has none that can be charted.

    A line takes its name from its label; a label that begins with `_` is in no legend of the figure.
    """
    panels = [panel for axes in figure.axes if (panel := _describe_panel(axes))]
    shared = next((panel["x"] for panel in panels if panel["x"]), "x")
    label = next((panel["y"] for panel in panels if panel["y"]), "")
    panels = [
        {**panel, "unit": panel["x"] or shared, "decimals": 2 if SCORED.search(panel["y"] or label) else None}
        for panel in panels
    ]
    return json.dumps(panels, separators=(",", ":"), allow_nan=False) if panels else ""


def list_chart_values(chart: str) -> list[dict[str, str | float | None]]:
    """Return every point of a chart's data as a row, for CSV."""
    return [
        {
            "panel": panel["title"],
            "series": series["name"],
            "x_label": panel["unit"],
            "y_label": panel["y"],
            "x": x,
            "y": series["y"][at],
            "low": series["low"][at] if "low" in series else None,
            "high": series["high"][at] if "high" in series else None,
        }
        for panel in json.loads(chart)
        for series in panel["series"]
        for at, x in enumerate(series["x"])
    ]


def _describe_panel(axes: Axes) -> dict[str, Any] | None:
    if not axes.get_visible() or _has_named_ticks(axes.yaxis):
        return None
    lines = [line for line in axes.get_lines() if _has_points(line) and line.get_marker() not in CAPS]
    title = " ".join((axes.get_title() or axes.get_title("left")).split())
    intervals = _find_intervals(axes)
    series = [
        _describe_line(axes, line, title) | intervals.get(line, {})
        for line in lines
        if not _spans_panel(axes, line)
    ]
    if not any(each["x"] for each in series):
        return None
    ticks = zip(axes.get_xticks(), (text.get_text() for text in axes.get_xticklabels()), strict=True)
    return {
        "title": title,
        "x": axes.get_xlabel(),
        "y": axes.get_ylabel(),
        "share": _round(axes.get_position().width),
        "range": [_round(edge) for edge in (*axes.get_xlim(), *axes.get_ylim())],
        "ticks": [[_round(at), text] for at, text in ticks] if _has_named_ticks(axes.xaxis) else None,
        "bands": [_describe_band(patch) for patch in axes.patches if _is_band(axes, patch)],
        "series": [*(_describe_constant(axes, line) for line in lines if _is_level(axes, line)), *series],
    }


def _has_named_ticks(axis: Axis) -> bool:
    named = isinstance(axis.get_major_formatter(), FixedFormatter | FuncFormatter)
    return named and isinstance(axis.get_major_locator(), FixedLocator)


def _find_intervals(axes: Axes) -> dict[Line2D, dict[str, Any]]:
    """Return the ends of the error bars of each line that has any, and its name if it has one.

    A line with error bars has no label of its own: that is on the whole.
    """
    found: dict[Line2D, dict[str, Any]] = {}
    for container in axes.containers:
        if isinstance(container, ErrorbarContainer):
            line, _, bars = container.lines
            if bars and container.has_yerr:
                segments = bars[0].get_segments()
                found[line] = {
                    "low": [_round(float(start[1])) for start, _ in segments],
                    "high": [_round(float(end[1])) for _, end in segments],
                }
                label = str(container.get_label())
                if not UNNAMED.fullmatch(label):
                    found[line]["name"] = escape_invisible(label.removeprefix("_"))
    return found


def _is_band(axes: Axes, patch: Patch) -> bool:
    """Whether a patch covers the width of the panel, as axhspan does."""
    return isinstance(patch, Rectangle) and _find_data_axes(axes, patch.get_data_transform()) == (False, True)


def _describe_band(patch: Patch) -> dict[str, Any]:
    assert isinstance(patch, Rectangle)
    colour = to_hex(patch.get_facecolor())
    return {
        "colour": VARIABLES.get(colour, colour),
        "low": _round(patch.get_y()),
        "high": _round(patch.get_y() + patch.get_height()),
    }


def _has_points(line: Line2D) -> bool:
    return len(_read_points(line)[0]) > 0


def _read_points(line: Line2D) -> tuple[Sequence[float], Sequence[float]]:
    xs, ys = (
        np.asarray(values, dtype=np.float64) for values in (line.get_xdata(False), line.get_ydata(False))
    )
    return xs.tolist(), ys.tolist()


def _find_data_axes(axes: Axes, transform: Transform) -> tuple[bool, bool]:
    """Return whether x and y are in units of the data; of axhline, only y is."""
    x, y = transform.contains_branch_seperately(axes.transData)
    return bool(x), bool(y)


def _spans_panel(axes: Axes, line: Line2D) -> bool:
    """Whether a line is drawn across the panel, as axhline and axvline do."""
    return not all(_find_data_axes(axes, line.get_transform()))


def _is_level(axes: Axes, line: Line2D) -> bool:
    return _find_data_axes(axes, line.get_transform()) == (False, True)


def _describe_constant(axes: Axes, line: Line2D) -> dict[str, Any]:
    """Describe a horizontal line as a series over the whole range."""
    level = _read_points(line)[1][0]
    return _describe(line, axes.get_xlim(), (level, level), _name_line(line, "level"))


def _describe_line(axes: Axes, line: Line2D, title: str) -> dict[str, Any]:
    return _describe(line, *_read_points(line), _name_line(line, title or axes.get_ylabel() or "value"))


def _describe(line: Line2D, xs: Sequence[float], ys: Sequence[float], name: str) -> dict[str, Any]:
    pairs = [(x, y) for x, y in zip(xs, ys, strict=True) if math.isfinite(x)]
    colour = to_hex(line.get_color())
    return {
        "name": name,
        "colour": VARIABLES.get(colour, colour),
        "look": _choose_look(line),
        "width": line.get_linewidth(),
        "x": [_round(x) for x, _ in pairs],
        "y": [_round(y) if math.isfinite(y) else None for _, y in pairs],
    }


def _name_line(line: Line2D, otherwise: str) -> str:
    label = str(line.get_label())
    name = " ".join(otherwise.split()) if UNNAMED.fullmatch(label) else label.removeprefix("_")
    return escape_invisible(name)  # it may be the name of an agent


def _choose_look(line: Line2D) -> str:
    if line.get_linestyle() in ("None", "", " "):
        return "points"
    if line.get_drawstyle().startswith("steps"):
        return "steps"
    return "line" if line.get_linestyle() in ("-", "solid") else "dashes"


def _round(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")
