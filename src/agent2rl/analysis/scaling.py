"""The best so far against what was spent for it: time, tokens, dollars, GPU time, submissions, steps.

Gains are those that the agent was told, on the split that answers: what chose them flatters them a little.
Every run starts at 0, the untouched model. A run that ended earlier keeps its last best, which it could not
lose. How many runs got as far as each point is told, because beyond most of them the line says little.
"""

from collections.abc import Sequence
from operator import attrgetter
from typing import Literal, get_args

import numpy as np
from pydantic import Field

from agent2rl.analysis.digest import Digest, count_excluded
from agent2rl.analysis.resampling import Floats, counted
from agent2rl.core.record import Record

Axis = Literal["seconds", "tokens", "usd", "gpu_seconds", "submissions", "environment_steps"]
QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)
STEPS = 100
_BEST = attrgetter("best")
_AT = {axis: attrgetter(axis if axis == "submissions" else f"spent.{axis}") for axis in get_args(Axis)}


class Scaling(Record):
    axis: Axis
    n: int
    excluded: dict[str, int]
    unknown: int
    """Runs that have a gain, but of which nobody knows what they spent."""
    grid: tuple[float, ...] = ()
    quantiles: dict[float, tuple[float, ...]] = Field(default_factory=dict)
    """Of the best so far over runs, at each point of the grid: 0.5 is the median, the others are bands."""
    mean: tuple[float, ...] = ()
    reached: tuple[int, ...] = ()
    """Runs that spent at least so much."""


def scaling(
    digests: Sequence[Digest],
    axis: Axis,
    grid: Sequence[float] | None = None,
    quantiles: Sequence[float] = QUANTILES,
) -> Scaling:
    """On a grid from 0 to the most that any run spent, or on the one that is given."""
    runs = counted(digests)
    totals = [(each, _total(each, axis)) for each in runs]
    known = [each for each, total in totals if total is not None]
    counts = {"n": len(known), "unknown": len(runs) - len(known)}
    if not known:
        return Scaling(axis=axis, excluded=count_excluded(digests), **counts)
    ends = np.array([total for _, total in totals if total is not None], dtype=np.float64)
    points = np.linspace(0, float(ends.max()), STEPS + 1) if grid is None else np.asarray(grid, np.float64)
    courses = np.stack([_course(each, axis, points) for each in known])
    bands = np.quantile(courses, quantiles, axis=0)
    return Scaling(
        axis=axis,
        excluded=count_excluded(digests),
        grid=_rounded(points),
        quantiles={share: _rounded(band) for share, band in zip(quantiles, bands, strict=True)},
        mean=_rounded(courses.mean(axis=0)),
        reached=tuple(int(each) for each in len(ends) - np.searchsorted(np.sort(ends), points, side="left")),
        **counts,
    )


def scalings(digests: Sequence[Digest]) -> dict[Axis, Scaling]:
    return {axis: scaling(digests, axis) for axis in get_args(Axis)}


def _course(run: Digest, axis: Axis, grid: Floats) -> Floats:
    """Its best so far at each point of the grid."""
    spent = np.array([_AT[axis](point) for point in run.curve], dtype=np.float64)
    best = np.array([0.0, *map(_BEST, run.curve)])
    found: Floats = best[spent.searchsorted(grid, side="right")]
    return found


def _total(run: Digest, axis: Axis) -> float | None:
    """At least what it had spent at its last score: a grade may come after the agent's end."""
    whole: float | None = run.submissions if axis == "submissions" else getattr(run.total, axis)
    last: float | None = _AT[axis](run.curve[-1]) if run.curve else 0.0
    return None if whole is None or last is None else max(whole, last)


def _rounded(values: Floats) -> tuple[float, ...]:
    return tuple(round(float(value), 6) for value in values)
