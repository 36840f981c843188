"""A training curve of the size of a few words, for the table of attempts."""

from dataclasses import dataclass

from agent2rl.analysis.findings import PrintedCurve
from agent2rl.report import formatting

SPARKLINE_WIDTH, SPARKLINE_HEIGHT = 220.0, 56.0
SPARKLINE_POINTS = 110


@dataclass(frozen=True)
class Sparkline:
    name: str
    where: str
    line: str
    """Of an SVG polyline."""
    lost: float | None
    """Where it was no number any more."""
    first: str
    last: str
    low: str
    high: str
    steps: str


def build_sparkline(curve: PrintedCurve) -> Sparkline | None:
    """None where there is no number in it."""
    known = [(step, value) for step, value in curve.points if value is not None]
    if not known:
        return None
    values = [value for _, value in known]
    low, high = min(values), max(values)
    start, end = curve.points[0][0], curve.points[-1][0]
    kept = (
        known
        if len(known) <= SPARKLINE_POINTS
        else [known[at * (len(known) - 1) // (SPARKLINE_POINTS - 1)] for at in range(SPARKLINE_POINTS)]
    )
    places = [
        (_scale_step(step, start, end), SPARKLINE_HEIGHT - _scale_to_unit(value, low, high) * SPARKLINE_HEIGHT)
        for step, value in kept
    ]
    lost = next((step for step, value in curve.points if value is None), None)
    return Sparkline(
        name=curve.name,
        where=curve.where,
        line=" ".join(f"{x:.1f},{y:.1f}" for x, y in places),
        lost=None if lost is None else round(_scale_step(lost, start, end), 1),
        first=formatting.format_number(values[0]),
        last=formatting.format_number(values[-1]),
        low=formatting.format_number(low),
        high=formatting.format_number(high),
        steps=f"{formatting.format_number(start)} to {formatting.format_number(end)}",
    )


def _scale_step(step: float, start: float, end: float) -> float:
    return _scale_to_unit(step, start, end) * SPARKLINE_WIDTH


def _scale_to_unit(value: float, low: float, high: float) -> float:
    """In the middle where there is no range."""
    return (value - low) / (high - low) if high > low else 0.5
