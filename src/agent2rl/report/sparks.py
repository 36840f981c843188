"""A training curve of the size of a few words, for the table of attempts."""

from dataclasses import dataclass

from agent2rl.analysis.findings import Curve
from agent2rl.report import words

WIDTH, HEIGHT = 220.0, 56.0
POINTS = 110


@dataclass(frozen=True)
class Spark:
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


def spark(curve: Curve) -> Spark | None:
    """None where there is no number in it."""
    known = [(step, value) for step, value in curve.points if value is not None]
    if not known:
        return None
    values = [value for _, value in known]
    low, high = min(values), max(values)
    start, end = curve.points[0][0], curve.points[-1][0]
    kept = (
        known
        if len(known) <= POINTS
        else [known[at * (len(known) - 1) // (POINTS - 1)] for at in range(POINTS)]
    )
    places = [(_across(step, start, end), HEIGHT - _part(value, low, high) * HEIGHT) for step, value in kept]
    lost = next((step for step, value in curve.points if value is None), None)
    return Spark(
        name=curve.name,
        where=curve.where,
        line=" ".join(f"{x:.1f},{y:.1f}" for x, y in places),
        lost=None if lost is None else round(_across(lost, start, end), 1),
        first=words.number(values[0]),
        last=words.number(values[-1]),
        low=words.number(low),
        high=words.number(high),
        steps=f"{words.number(start)} to {words.number(end)}",
    )


def _across(step: float, start: float, end: float) -> float:
    return _part(step, start, end) * WIDTH


def _part(value: float, low: float, high: float) -> float:
    """In the middle where there is no range."""
    return (value - low) / (high - low) if high > low else 0.5
