"""What the best of k runs can be expected to gain: over all choices of k of the runs that there are.

The mean over all choices is a weighted sum of the sorted gains: the i-th of n is the best of C(i-1, k-1) of
the C(n, k) choices. So nothing is drawn to find it, and it is unbiased for k runs of the same kind.
"""

from collections.abc import Sequence

import numpy as np

from agent2rl.analysis.campaigns.resampling import (
    LEAST_RUNS,
    NOT_ENOUGH,
    Floats,
    IntervalEstimate,
    collect_gains,
    estimate_with_percentiles,
    select_counted,
)
from agent2rl.analysis.campaigns.run_digest import RunDigest, count_excluded
from agent2rl.core.record import Record

ALL_UP_TO = 32


class BestOfK(Record):
    n: int
    excluded: dict[str, int]
    expected: dict[int, IntervalEstimate]
    """By k: gain in points."""


def estimate_best_of_k(digests: Sequence[RunDigest], ks: Sequence[int] | None = None) -> BestOfK:
    """For these k, none above the number of runs; None: every k, but ever fewer beyond 32."""
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
    """Of n sorted values, the lowest first: in which share of the choices of k each is the best."""
    places = np.arange(n, 1, -1)
    steps = np.concatenate([[k / n], np.maximum(0, places - k) / (places - 1)])
    weights: Floats = np.cumprod(steps)[::-1]
    return weights


def _choose_ks(n: int) -> list[int]:
    grown = {round(ALL_UP_TO * 1.25**step) for step in range(200)}
    return [*range(1, min(n, ALL_UP_TO) + 1), *sorted(k for k in {*grown, n} if ALL_UP_TO < k <= n)]
