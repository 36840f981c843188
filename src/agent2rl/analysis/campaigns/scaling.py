"""Compute scaling curves: the best gain so far by resources spent, and the expected best of k runs.

Gains are those on the feedback split, which the agent was told. Selection biases them upwards a little. Every
run starts at 0, the untouched model. A run that ended earlier keeps its last best. Each point has the number
of runs that got as far, because beyond most of them the curve says little.

The mean over all choices of k runs is a weighted sum of the sorted gains: the i-th of n is the best of
C(i-1, k-1) of the C(n, k) choices. So it needs no draws, and it is unbiased for k runs of the same kind.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from agent2rl.analysis.campaigns.resampling import (
    BLOCK_VALUES,
    LEAST_RUNS,
    NOT_ENOUGH,
    Floats,
    IntervalEstimate,
    collect_gains,
    estimate_with_percentiles,
    select_counted,
)
from agent2rl.analysis.campaigns.run_digest import RunDigest, count_excluded
from agent2rl.core.base_record import Record

Axis = Literal["seconds", "tokens", "usd", "gpu_seconds", "submissions", "environment_steps"]
QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)
STEPS = 100
AXES: tuple[Axis, ...] = get_args(Axis)
_POINT = attrgetter(*(axis if axis == "submissions" else f"spent.{axis}" for axis in AXES), "best")
_TOTAL = attrgetter(*(axis if axis == "submissions" else f"total.{axis}" for axis in AXES))


class ScalingCurve(Record):
    axis: Axis
    n: int
    excluded: dict[str, int]
    unknown: int
    """Number of runs that have a gain but unknown spending."""
    grid: tuple[float, ...] = ()
    quantiles: dict[float, tuple[float, ...]] = Field(default_factory=dict)
    """Quantiles over runs of the best so far, at each point of the grid."""
    mean: tuple[float, ...] = ()
    reached: tuple[int, ...] = ()
    """Number of runs that spent at least this much."""


@dataclass(frozen=True)
class _ScoreTable:
    """All points of all runs in one table: a column for each axis, then the best so far."""

    points: Floats
    starts: NDArray[np.intp]
    """Index of the first point of each run, then the number of points."""
    totals: Floats
    """Total of each run on each axis; NaN if unknown."""
    excluded: dict[str, int]

    def select_best_so_far(self, chosen: NDArray[np.bool_], axis: int, grid: Floats) -> Floats:
        """Return the best so far of some runs at each point of the grid: runs × grid."""
        blocks = []
        places = np.flatnonzero(chosen)
        step = max(1, BLOCK_VALUES // (len(grid) * max(1, int(np.diff(self.starts).max(initial=0)))))
        for first in range(0, len(places), step):
            blocks.append(self._select_block(places[first : first + step], axis, grid))
        return np.concatenate(blocks)

    def _select_block(self, places: NDArray[np.intp], axis: int, grid: Floats) -> Floats:
        low, high = self.starts[places[0]], self.starts[places[-1] + 1]
        passed = self.points[low:high, axis, None] <= grid
        counts = np.zeros((high - low + 1, len(grid)), dtype=np.int32)
        np.cumsum(passed, axis=0, out=counts[1:])
        mine = counts[self.starts[places + 1] - low] - counts[self.starts[places] - low]
        # Where a run has no score yet, it has what it began with: a gain of 0.
        best = np.append(self.points[:, -1], 0.0)
        found: Floats = best[np.where(mine > 0, self.starts[places][:, None] + mine - 1, len(best) - 1)]
        return found


def _tabulate_runs(digests: Sequence[RunDigest]) -> _ScoreTable:
    runs = select_counted(digests)
    points = [_POINT(point) for run in runs for point in run.curve]
    starts = np.cumsum([0, *(len(run.curve) for run in runs)])
    table = np.array(points, dtype=np.float64).reshape(-1, len(AXES) + 1)
    totals = np.array([_TOTAL(run) for run in runs], dtype=np.float64).reshape(-1, len(AXES))
    has = np.diff(starts) > 0
    # A verdict may come after the agent's end: a run spent at least as much as at its last score.
    totals[has] = np.maximum(totals[has], table[starts[1:][has] - 1, :-1])
    return _ScoreTable(table, starts, totals, count_excluded(digests))


def compute_scaling(
    digests: Sequence[RunDigest],
    axis: Axis,
    grid: Sequence[float] | None = None,
    quantiles: Sequence[float] = QUANTILES,
) -> ScalingCurve:
    """Compute a curve on the given grid, or on one from 0 to the most that any run spent."""
    return _compute_axis_scaling(_tabulate_runs(digests), axis, grid, quantiles)


def compute_all_scalings(digests: Sequence[RunDigest]) -> dict[Axis, ScalingCurve]:
    courses = _tabulate_runs(digests)
    return {axis: _compute_axis_scaling(courses, axis, None, QUANTILES) for axis in AXES}


def _compute_axis_scaling(
    courses: _ScoreTable, axis: Axis, grid: Sequence[float] | None, quantiles: Sequence[float]
) -> ScalingCurve:
    column = AXES.index(axis)
    known = ~np.isnan(courses.totals[:, column])
    counts = {"n": int(known.sum()), "unknown": int((~known).sum())}
    if not known.any():
        return ScalingCurve(axis=axis, excluded=courses.excluded, **counts)
    ends = np.sort(courses.totals[known, column])
    places = np.linspace(0, ends[-1], STEPS + 1) if grid is None else np.asarray(grid, np.float64)
    found = courses.select_best_so_far(known, column, places)
    bands = _column_quantiles(found, quantiles)
    return ScalingCurve(
        axis=axis,
        excluded=courses.excluded,
        grid=_round_values(places),
        quantiles={share: _round_values(band) for share, band in zip(quantiles, bands, strict=True)},
        mean=_round_values(found.mean(axis=0)),
        reached=tuple(int(each) for each in len(ends) - np.searchsorted(ends, places, side="left")),
        **counts,
    )


def _column_quantiles(values: Floats, shares: Sequence[float]) -> Floats:
    """Return quantiles of each column, like np.quantile but many times faster."""
    ordered = np.sort(np.ascontiguousarray(values.T), axis=1)
    at = np.asarray(shares) * (len(values) - 1)
    below = np.floor(at).astype(np.intp)
    above = np.minimum(below + 1, len(values) - 1)
    found: Floats = ordered[:, below] + (at - below) * (ordered[:, above] - ordered[:, below])
    return found.T


def _round_values(values: Floats) -> tuple[float, ...]:
    return tuple(round(float(value), 6) for value in values)


# Expected gain of the best of k runs, over all choices of k of the runs.

ALL_UP_TO = 32


class BestOfK(Record):
    n: int
    excluded: dict[str, int]
    expected: dict[int, IntervalEstimate]
    """By k: gain in points."""


def estimate_best_of_k(digests: Sequence[RunDigest], ks: Sequence[int] | None = None) -> BestOfK:
    """Estimate for these k up to the number of runs. None: every k up to 32, then ever fewer."""
    runs = select_counted(digests)
    excluded = count_excluded(digests)
    if not runs:
        return BestOfK(n=0, excluded=excluded, expected={})
    wanted = tuple(k for k in (_choose_ks(len(runs)) if ks is None else ks) if 1 <= k <= len(runs))
    sample = collect_gains(runs)
    weights: Floats = (
        np.array([compute_choice_weights(len(runs), k) for k in wanted]).reshape(-1, len(runs)).T
    )
    values: Floats = np.sort(sample.values) @ weights
    if len(runs) < LEAST_RUNS:
        found = [IntervalEstimate(value=float(value), interval=NOT_ENOUGH) for value in values]
    else:
        draws: Floats = np.concatenate([np.sort(block, axis=1) @ weights for block in sample.draw_blocks()])
        found = [
            estimate_with_percentiles(float(value), draws[:, place]) for place, value in enumerate(values)
        ]
    return BestOfK(n=len(runs), excluded=excluded, expected=dict(zip(wanted, found, strict=True)))


def compute_choice_weights(n: int, k: int) -> Floats:
    """Return for each of n ascending values the share of choices of k in which it is the best."""
    places = np.arange(n, 1, -1)
    steps = np.concatenate([[k / n], np.maximum(0, places - k) / (places - 1)])
    weights: Floats = np.cumprod(steps)[::-1]
    return weights


def _choose_ks(n: int) -> list[int]:
    grown = {round(ALL_UP_TO * 1.25**step) for step in range(200)}
    return [*range(1, min(n, ALL_UP_TO) + 1), *sorted(k for k in {*grown, n} if ALL_UP_TO < k <= n)]
