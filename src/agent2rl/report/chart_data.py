"""The data of a figure for charts that answer a pointer, read out of the figure that is drawn as SVG.

So a figure is described once: what its lines show on paper is what a reader can point at.
"""

import json
import math
import re
from collections.abc import Sequence
from typing import Any

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

from agent2rl.report.formatting import COLOURS, escape_invisible

UNNAMED = re.compile(r"_child\d+|_nolegend_|_?")
"""Matches the names that matplotlib gives to lines without one."""
CAPS = ("_", "|")
"""Markers of the caps of error bars, which are lines of their own."""
DIGITS = 6
VARIABLES = {colour: f"--{name}" for name, colour in COLOURS.items()}


def render_chart_data(figure: Figure) -> str:
    """Return the lines of a figure's panels as JSON; empty if it has none that can be charted.

    A line takes its name from its label; a label that begins with `_` is in no legend of the figure.
    """
    panels = [panel for axes in figure.axes if (panel := _describe_panel(axes))]
    shared = next((panel["x"] for panel in panels if panel["x"]), "x")
    panels = [{**panel, "unit": panel["x"] or shared} for panel in panels]
    return json.dumps(panels, separators=(",", ":"), allow_nan=False) if panels else ""


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


def _find_intervals(axes: Axes) -> dict[Line2D, dict[str, list[float]]]:
    """Return the ends of the error bars of each line that has any."""
    found = {}
    for container in axes.containers:
        if isinstance(container, ErrorbarContainer):
            line, _, bars = container.lines
            if bars and container.has_yerr:
                segments = bars[0].get_segments()
                found[line] = {
                    "low": [_round(float(start[1])) for start, _ in segments],
                    "high": [_round(float(end[1])) for _, end in segments],
                }
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
