"""Choose a balanced part of a campaign.

All combinations get one fixed order, and a fraction takes the first ones of it. So the same fraction is
always the same part, and a larger fraction contains a smaller one. The order takes from the tasks in turn.
Within the task whose turn it is, it takes the combination whose values on the other axes, and then whose
pairs of values, were taken least so far.
"""

from collections.abc import Sequence
from itertools import combinations
from math import ceil

import numpy as np
from numpy.typing import NDArray

from agent2rl.campaign.campaign_file import Cell, Experiment

FIRST = "task"
Integers = NDArray[np.int64]


def select_fraction(experiments: Sequence[Experiment], fraction: float) -> tuple[Experiment, ...]:
    """Return this part of the experiments, at least one, in their own order."""
    count = count_part(len(experiments), fraction)
    chosen = order_cells([experiment.cell for experiment in experiments], count)
    return tuple(experiments[place] for place in sorted(chosen))


def count_part(count: int, fraction: float) -> int:
    """Return how many of `count` a fraction is, rounded up. 0.1 of 30 is 3, whatever floating point says."""
    return min(count, max(1, ceil(round(count * fraction, 6))))


def order_cells(cells: Sequence[Cell], count: int) -> list[int]:
    """Return the places of the first `count` combinations in the balanced order."""
    axes = [axis for axis in cells[0] if len({cell[axis] for cell in cells}) > 1]
    codes = {axis: _encode([cell[axis] for cell in cells]) for axis in axes}
    task = codes.pop(FIRST, np.zeros(len(cells), dtype=np.int64))
    pairs = [_join(first, second) for first, second in combinations([task, *codes.values()], 2)]
    usages = [_Usage([task]), *(_Usage(each) for each in (list(codes.values()), pairs) if each)]
    left = np.ones(len(cells), dtype=np.bool_)
    order = []
    for _ in range(count):
        places = np.flatnonzero(left)
        for usage in usages:
            places = places[usage.weights[places] == usage.weights[places].min()]
        order.append(place := int(places[0]))
        left[place] = False
        for usage in usages:
            usage.take(place)
    return order


class _Usage:
    """How often the values of each combination were taken. On an axis with many values, a use weighs more."""

    def __init__(self, codes: Sequence[Integers]) -> None:
        self._codes = [(each, int(each.max()) + 1) for each in codes]
        self.weights: Integers = np.zeros(len(codes[0]), dtype=np.int64)

    def take(self, place: int) -> None:
        for codes, size in self._codes:
            self.weights += size * (codes == codes[place])


def _encode(values: Sequence[str | int]) -> Integers:
    """Number the values in the order of the campaign file."""
    numbers = {value: number for number, value in enumerate(dict.fromkeys(values))}
    return np.array([numbers[value] for value in values], dtype=np.int64)


def _join(first: Integers, second: Integers) -> Integers:
    codes: Integers = np.unique(first * (int(second.max()) + 1) + second, return_inverse=True)[1]
    return codes
