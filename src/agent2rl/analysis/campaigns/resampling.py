"""Bootstrap over runs and examples, with Student's distribution, and permutation tests.

A mean over runs has two sources of chance: which runs there were, and which examples ranked them. Runs are
resampled with replacement, each with its own noise. Examples are resampled too, once for all runs that were
ranked on the same ones: the common effect of an example does not average out over runs. Runs without known
differences keep their gain whatever the examples.

Seeds derive from what is drawn: the same runs, in any order, give the same numbers.
"""

import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations, islice
from statistics import NormalDist
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from agent2rl.analysis.campaigns.run_digest import RunDigest
from agent2rl.core.base_record import Record
from agent2rl.core.grading_records import Interval

Floats = NDArray[np.float64]
Places = NDArray[np.intp]

RESAMPLES = 4000
BLOCK_VALUES = 1 << 21
"""Approximate limit on numbers in memory at once."""
MANY_EXAMPLES = 2000
"""With more examples, draws are stored as small integers, which is slower."""
LEAST_RUNS = 5
"""With fewer runs there is no interval: see docs/design/statistics.md."""
LEVEL = 0.95


def choose_draw_count(runs: int) -> int:
    """Return the number of draws: fewer for many runs, whose intervals do not end far out in the tails."""
    return max(RESAMPLES // 4, min(RESAMPLES, 50 * RESAMPLES // max(1, runs)))


NotEnough = Literal["not enough runs to say"]
NOT_ENOUGH: NotEnough = "not enough runs to say"


class IntervalEstimate(Record):
    """A number with its interval."""

    value: float
    interval: Interval | NotEnough

    @property
    def excludes_zero(self) -> bool:
        return isinstance(self.interval, Interval) and (self.interval.low > 0 or self.interval.high < 0)


@dataclass(frozen=True)
class ExampleSet:
    """Runs that were ranked on the same examples, and the common effects of these examples."""

    name: str
    rows: Places
    """Indices of the runs."""
    effects: Floats
    """For each example, in points: how much more it gained than the mean."""

    def draw_shifts(self, resamples: int) -> Floats:
        """Return the shift of all these runs together under each draw of examples."""
        return _compute_shifts(self.name, self.effects.astype(np.float32).tobytes(), resamples)


@dataclass(frozen=True)
class GainSample:
    """Gains of runs as arrays, with what is needed to resample them."""

    values: Floats
    sets: tuple[ExampleSet, ...]
    seed: int

    def __len__(self) -> int:
        return len(self.values)

    @property
    def mean(self) -> float:
        return float(self.values.mean())

    def draw_blocks(self, resamples: int | None = None) -> Iterator[Floats]:
        """Yield blocks of resampled gains: draws × runs. Each draw uses the same examples for all runs."""
        many = resamples or choose_draw_count(len(self))
        random = np.random.default_rng(self.seed)
        mine = np.zeros(len(self), dtype=np.intp)
        shifts = np.zeros((many, len(self.sets) + 1))
        for number, each in enumerate(self.sets, 1):
            mine[each.rows] = number
            shifts[:, number] = each.draw_shifts(many)
        common = bool(len(self.sets) == 1 and mine.all())
        step = max(1, BLOCK_VALUES // len(self))
        for first in range(0, many, step):
            last = min(many, first + step)
            places = random.integers(0, len(self), size=(last - first, len(self)), dtype=np.int32)
            found = self.values[places]
            if common:
                found += shifts[first:last, 1:]
            elif self.sets:
                found += np.take_along_axis(shifts[first:last], mine[places], axis=1)
            yield found

    def draw_means(self, resamples: int | None = None) -> Floats:
        return self.widen_means(np.concatenate([block.mean(axis=1) for block in self.draw_blocks(resamples)]))

    def widen_means(self, means: Floats) -> Floats:
        """Correct the spread of bootstrap means, whose variance from n runs is too small by (n - 1) / n.

        The examples' part needs no correction but is widened as well: the degrees of freedom are only
        estimated, and without this, campaigns without any improvement would have a star in 6% of cases
        instead of 5%.
        """
        n = len(self)
        return self.mean + (means - self.mean) * float(np.sqrt(n / (n - 1))) if n > 1 else means

    def split_variance(self) -> list[tuple[float, int]]:
        """Return the contributions of the runs and of each example set to the variance of the mean, each with
        its degrees of freedom."""
        n = len(self)
        found = [(float(self.values.var(ddof=1)) / n, n - 1)]
        for each in self.sets:
            m, share = len(each.effects), len(each.rows) / n
            found.append((share**2 * float(np.square(each.effects).sum()) / m**2, m - 1))
        return found


def degrees_of_freedom(samples: Sequence[GainSample]) -> float:
    """Return the Welch–Satterthwaite degrees of freedom of a sum of means."""
    parts = [part for each in samples for part in each.split_variance()]
    below = sum(variance**2 / degrees for variance, degrees in parts)
    least = min(len(each) for each in samples) - 1
    return max(1.0, sum(variance for variance, _ in parts) ** 2 / below) if below > 0 else float(least)


def select_counted(digests: Iterable[RunDigest]) -> tuple[RunDigest, ...]:
    """Return the runs that have a gain, sorted by id. They must be under one protocol: gains under two are
    not the same quantity."""
    runs = tuple(sorted((each for each in digests if not each.excluded), key=lambda each: each.run_id))
    if len({each.protocol for each in runs}) > 1:
        raise ValueError("runs under different protocols cannot be combined")
    return runs


def collect_gains(runs: Sequence[RunDigest]) -> GainSample:
    """Return the gains of counted runs as a sample."""
    names: dict[str, list[int]] = {}
    for place, each in enumerate(runs):
        if each.examples_sha256 and each.differences and not each.left_base:
            names.setdefault(each.examples_sha256, []).append(place)
    sets = [
        ExampleSet(
            name,
            np.array(places),
            estimate_shared_effects(np.array([runs[place].points for place in places])),
        )
        for name, places in sorted(names.items())
        if len(places) > 1
    ]
    values = np.array([each.gain for each in runs], dtype=np.float64)
    return GainSample(values, tuple(sets), hash_seed(*(each.run_id for each in runs)))


def estimate_shared_effects(differences: Floats) -> Floats:
    """Estimate from runs × examples by how much each example gains more than the mean in every run.

    The mean of an example over k runs contains 1/k of the runs' own noise, which resampling runs already
    covers. So the means are shrunk until only the common spread is left. One run gives no estimate and needs
    none: the noise of its examples is in its gain, and gains are resampled.
    """
    runs, examples = differences.shape
    means = differences.mean(axis=0)
    effects = means - means.mean()
    if runs < 2 or examples < 2:
        return np.zeros(examples)
    rest = differences - differences.mean(axis=1, keepdims=True) - effects
    noise = float(np.square(rest).sum()) / ((runs - 1) * (examples - 1))
    spread = float(np.square(effects).sum()) / (examples - 1)
    kept = max(0.0, 1 - noise / (runs * spread)) if spread > 0 else 0.0
    shrunk: Floats = effects * np.sqrt(kept)
    return shrunk


@lru_cache(maxsize=8)
def draw_examples(name: str, n: int) -> NDArray[np.float32] | NDArray[np.uint8]:
    """Return how often each example is drawn: draws × examples. The same for all callers."""
    random = np.random.default_rng(hash_seed(name))
    found = np.empty((RESAMPLES, n), dtype=np.float32 if n <= MANY_EXAMPLES else np.uint8)
    step = max(1, BLOCK_VALUES // n)
    for first in range(0, RESAMPLES, step):
        rows = min(RESAMPLES, first + step) - first
        places = random.integers(0, n, size=(rows, n)) + n * np.arange(rows)[:, None]
        counts = np.bincount(places.ravel(), minlength=n * rows)
        # Of more than 2,000 examples, none is drawn as often as a small integer can count.
        found[first : first + rows] = np.minimum(counts, 255).reshape(rows, n)
    return found


@lru_cache(maxsize=1024)
def _compute_shifts(name: str, effects: bytes, resamples: int) -> Floats:
    """Return shifts. Cached, since a cell, its rank and its table use the same draws."""
    values = np.frombuffer(effects, dtype=np.float32)
    n = len(values)
    drawn = draw_examples(name, n)[:resamples]
    step = max(1, BLOCK_VALUES // n)
    blocks = [drawn[first : first + step] @ values for first in range(0, resamples, step)]
    return np.concatenate(blocks).astype(np.float64) / n


def hash_seed(*names: str) -> int:
    return int.from_bytes(hashlib.sha256("\n".join(names).encode()).digest()[:8])


def estimate_with_student(
    value: float, draws: Floats, freedom: float, level: float = LEVEL
) -> IntervalEstimate:
    """Return percentiles of draws, as far out as Student's quantiles for these degrees of freedom."""
    outside = NormalDist().cdf(float(_load_special_functions().stdtrit(freedom, (1 - level) / 2)))
    low, high = np.quantile(draws, [outside, 1 - outside])
    return IntervalEstimate(value=value, interval=_enclose_value(value, float(low), float(high), level))


def estimate_with_percentiles(value: float, draws: Floats, level: float = LEVEL) -> IntervalEstimate:
    """Return plain percentiles of draws, for statistics other than means."""
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2])
    return IntervalEstimate(value=value, interval=_enclose_value(value, float(low), float(high), level))


def _enclose_value(value: float, low: float, high: float, level: float) -> Interval:
    """Return an interval that contains the value."""
    return Interval(low=min(low, value), high=max(high, value), method="bootstrap", level=level)


def compute_p_value(value: float, draws: Floats, freedom: float) -> float:
    """Return the two-sided p-value of no gain: Student's test with the spread of the draws.

    If nothing varies, every run gained the same: then it is the p-value of as many equal signs.
    """
    error = float(draws.std())
    if error <= 1e-12 * max(1.0, abs(value)):
        return 1.0 if value == 0 else float(2.0 ** -min(freedom, 1000.0))
    return min(1.0, 2 * float(_load_special_functions().stdtr(freedom, -abs(value) / error)))


def _load_special_functions() -> Any:
    # Only here: loading it takes a fifth of the time in which `run` starts, and few commands need it.
    # scipy.stats takes three times as long.
    from scipy import special

    return special


# Two-sided permutation tests of no difference: exact for few permutations, else by seeded draws, and for
# very many runs by a normal approximation.

MOST_WAYS = 1 << 16
DRAWS = 20_000
MANY_RUNS = 500
SAME = 1e-9
"""Relative tolerance for equal sums."""


def permute_signs(differences: Floats, weights: Floats) -> float:
    """Return the p-value of a weighted sum of differences under random signs."""
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
    """Return the p-value of a difference of means under random relabelling within each stratum, averaged over
    strata."""
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
    """Return the variance of a difference of means over all relabellings, in closed form."""
    pool = np.concatenate([first, second])
    return float(pool.var(ddof=1)) * (1 / len(first) + 1 / len(second)) if len(pool) > 1 else 0.0


def _share_as_extreme(blocks: Iterator[Floats], target: float, scale: Floats, exact: bool) -> float:
    # Sums in another order differ by rounding, and must count as equal.
    least = target - SAME * float(np.abs(scale).sum())
    hits = total = 0
    for block in blocks:
        hits += int(np.sum(block >= least))
        total += len(block)
    # The order that was observed is one of all, so drawn orders never give a p-value of 0.
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
    """Yield the difference of means for every choice of the first sample's runs."""
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
