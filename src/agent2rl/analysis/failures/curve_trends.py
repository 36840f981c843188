"""Whether a series went somewhere, said in medians, so that single points decide nothing."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import sqrt
from statistics import median

from agent2rl.analysis.findings import PrintedCurve

LEAST_POINTS = 8
"""Points from which on a trend is spoken of."""
NORMAL = 0.6745
"""The median deviation of a normal variable, in standard deviations."""


@dataclass(frozen=True)
class CurveTrend:
    before: float
    """Median of the first fifth."""
    after: float
    """Median of the last fifth."""
    noise: float
    """Standard deviation of single points around their course."""
    error: float
    """Standard error of after - before."""
    steady: float
    """Of the pairs of fifths, how many rise less how many fall, from -1 to 1."""

    @property
    def change(self) -> float:
        return self.after - self.before

    @property
    def rises(self) -> bool:
        """Clearly, and by an amount that matters."""
        scale = max(abs(self.before), abs(self.after))
        return self.change > max(4 * self.error, 0.1 * scale, 1e-9) and self.steady >= 0.4


def measure_trend(curve: PrintedCurve) -> CurveTrend | None:
    values = list_values(curve)
    if len(values) < LEAST_POINTS:
        return None
    fifth = max(2, len(values) // 5)
    before, after = median(values[:fifth]), median(values[-fifth:])
    # Neighbours differ by noise alone, however the whole goes.
    noise = median(abs(b - a) for a, b in pairwise(values)) / (NORMAL * sqrt(2))
    error = 1.2533 * noise * sqrt(2 / fifth)
    cuts = [round(each * len(values) / 5) for each in range(6)]
    fifths = [median(values[low:high]) for low, high in pairwise(cuts)]
    pairs = [(b > a) - (b < a) for place, a in enumerate(fifths) for b in fifths[place + 1 :]]
    return CurveTrend(before, after, noise, error, sum(pairs) / len(pairs))


def list_values(curve: PrintedCurve) -> list[float]:
    return [value for _, value in curve.points if value is not None]


def find_nan(curve: PrintedCurve) -> tuple[float, bool] | None:
    """The step at which it was no number for the first time, and whether it stayed so."""
    gaps = [place for place, (_, value) in enumerate(curve.points) if value is None]
    if not gaps:
        return None
    first = gaps[0]
    rest = len(curve.points) - first
    return curve.points[first][0], curve.points[-1][1] is None or 2 * len(gaps) > rest


def find_crossing(curve: PrintedCurve, limit: float) -> float:
    """The step from which on it stays above a limit, by the median of five."""
    points = [(step, value) for step, value in curve.points if value is not None]
    values = [value for _, value in points]
    place = len(points) - 1
    while place > 0 and median(values[max(0, place - 2) : place + 3]) > limit:
        place -= 1
    return points[min(place + 1, len(points) - 1)][0]


def has_exploded(values: Sequence[float], times: float, least: float) -> bool:
    """It ends far above where it began, near its highest: told from three points on."""
    if len(values) < 3:
        return False
    first = max(abs(median(values[: max(1, len(values) // 5)])), least / times)
    return values[-1] > times * first and values[-1] >= 0.2 * max(values)


def is_constant(values: Sequence[float]) -> bool:
    return max(values) - min(values) <= 1e-9 * max(1.0, abs(values[0]))
