"""Permutation tests of no difference, two-sided: exact where there are few ways, else by seeded draws, and of
very many runs by the normal distribution that the ways then have.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import combinations, islice
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from agent2rl.analysis.campaigns.resampling import BLOCK_VALUES, Floats

MOST_WAYS = 1 << 16
DRAWS = 20_000
MANY_RUNS = 500
SAME = 1e-9
"""Sums that differ by less, relative to what is summed, are the same sum."""


def permute_signs(differences: Floats, weights: Floats) -> float:
    """How often a weighted sum so far from 0 comes about where each difference may be its opposite."""
    terms = differences * weights
    terms = terms[terms != 0]
    if not len(terms):
        return 1.0
    if len(terms) > MANY_RUNS:
        return _normal_p_value(float(terms.sum()), float(np.square(terms).sum()))
    exact = 2 ** len(terms) <= MOST_WAYS
    ways = _enumerate_signs(len(terms)) if exact else _draw_signs(len(terms))
    return _share_as_extreme((np.abs(block @ terms) for block in ways), abs(float(terms.sum())), terms, exact)


def permute_labels(strata: Sequence[tuple[Floats, Floats]]) -> float:
    """How often a mean difference of two samples so far from 0 comes about where their runs are mixed: within
    each stratum, and averaged over strata."""
    target = abs(float(np.mean([first.mean() - second.mean() for first, second in strata])))
    scale = np.concatenate([np.concatenate(pair) for pair in strata])
    if len(scale) > MANY_RUNS:
        return _normal_p_value(
            target, sum(_permutation_variance(*pair) for pair in strata) / len(strata) ** 2
        )
    if len(strata) == 1 and math.comb(sum(map(len, strata[0])), len(strata[0][0])) <= MOST_WAYS:
        ways, exact = _enumerate_choices(*strata[0]), True
    else:
        ways, exact = _draw_choices(strata), False
    return _share_as_extreme((np.abs(block) for block in ways), target, scale, exact)


def _normal_p_value(value: float, variance: float) -> float:
    return 2 * NormalDist().cdf(-abs(value) / math.sqrt(variance)) if variance > 0 else 1.0


def _permutation_variance(first: Floats, second: Floats) -> float:
    """Of the difference of two means over all ways to mix them: known without trying any."""
    pool = np.concatenate([first, second])
    return float(pool.var(ddof=1)) * (1 / len(first) + 1 / len(second)) if len(pool) > 1 else 0.0


def _share_as_extreme(blocks: Iterator[Floats], target: float, scale: Floats, exact: bool) -> float:
    least = target - SAME * float(np.abs(scale).sum())
    hits = total = 0
    for block in blocks:
        hits += int(np.sum(block >= least))
        total += len(block)
    return hits / total if exact else (1 + hits) / (1 + total)


def _enumerate_signs(n: int) -> Iterator[NDArray[np.int8]]:
    step = max(1, BLOCK_VALUES // n)
    for first in range(0, 2**n, step):
        numbers = np.arange(first, min(2**n, first + step))
        yield (1 - 2 * ((numbers[:, None] >> np.arange(n)) & 1)).astype(np.int8)


def _draw_signs(n: int) -> Iterator[NDArray[np.int8]]:
    random = np.random.default_rng(0)
    step = max(1, BLOCK_VALUES // n)
    for first in range(0, DRAWS, step):
        rows = min(DRAWS, first + step) - first
        yield (1 - 2 * random.integers(0, 2, size=(rows, n))).astype(np.int8)


def _enumerate_choices(first: Floats, second: Floats) -> Iterator[Floats]:
    """Every difference of means that a choice of the first sample's runs gives."""
    pool, n = np.concatenate([first, second]), len(first)
    every = combinations(range(len(pool)), n)
    while some := list(islice(every, max(1, BLOCK_VALUES // n))):
        yield _difference_of_means(pool[np.array(some)].sum(axis=1), pool, n)


def _draw_choices(strata: Sequence[tuple[Floats, Floats]]) -> Iterator[Floats]:
    random = np.random.default_rng(0)
    largest = max(len(first) + len(second) for first, second in strata)
    step = max(1, BLOCK_VALUES // largest)
    for start in range(0, DRAWS, step):
        rows = min(DRAWS, start + step) - start
        found = np.zeros(rows)
        for first, second in strata:
            pool, n = np.concatenate([first, second]), len(first)
            mixed = random.permuted(np.broadcast_to(pool, (rows, len(pool))), axis=1)
            found += _difference_of_means(mixed[:, :n].sum(axis=1), pool, n)
        yield found / len(strata)


def _difference_of_means(sums: Floats, pool: Floats, n: int) -> Floats:
    found: Floats = sums / n - (pool.sum() - sums) / (len(pool) - n)
    return found
