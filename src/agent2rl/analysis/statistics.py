"""Compute scores with intervals. Resampling is seeded, so the same results give the same interval."""

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from agent2rl.core.grading_records import (
    EvalResult,
    EvalScore,
    ExampleResult,
    HeldoutComparison,
    Interval,
    Part,
)

RESAMPLES = 10_000
BLOCK = 200
NEAR = 1e-3


UNKNOWN_INTERVAL = Interval(low=0.0, high=100.0, method="wilson")
"""The limit of Wilson's interval for no examples."""


def wilson_interval(successes: float, n: int, level: float = 0.95) -> Interval:
    """Return Wilson's score interval of a rate, in percent."""
    z = NormalDist().inv_cdf(0.5 + level / 2)
    rate = successes / n
    middle = (rate + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(rate * (1 - rate) / n + z * z / (4 * n * n))
    # Exactly 0 and 1, which rounding could miss.
    low = 0.0 if successes == 0 else max(0.0, middle - half)
    high = 1.0 if successes == n else min(1.0, middle + half)
    return Interval(low=100 * low, high=100 * high, method="wilson", level=level)


def score_evaluation(evaluation: EvalResult, split: Part) -> EvalScore:
    """Return the mean score in percent, and the mean of each further metric."""
    results = evaluation.results
    averaged = results[0].averaged
    return EvalScore(
        value=_mean_percent([result.score for result in results]),
        ci=_score_interval([result.score + result.residual for result in results])
        if averaged is None
        else _averaged_interval(results[0]),
        n=averaged or len(results),
        missing=len(evaluation.missing),
        split=split,
        metrics={
            name: _mean_percent([result.metrics[name] for result in results]) for name in results[0].metrics
        },
        groups=_average_groups(results),
        how=evaluation.how,
    )


def _average_groups(results: Sequence[ExampleResult]) -> dict[str, float]:
    names = sorted({result.group for result in results} - {""})
    return {name: _mean_percent([each.score for each in results if each.group == name]) for name in names}


def _mean_percent(values: Sequence[float]) -> float:
    return 100 * min(1.0, math.fsum(values) / len(values))


def _score_interval(values: Sequence[float]) -> Interval:
    """Return Wilson's interval for rates, or a bootstrap over examples for graded scores.

    Expectations of a regression may be close to 0 or 1 without being equal. If all are, treat them as a rate:
    resampling nearly equal values would give an interval of no width.
    """
    if all(min(abs(value), abs(value - 1)) < NEAR for value in values):
        return wilson_interval(round(sum(values)), len(values))
    low, high = _bootstrap_interval(np.array(values))
    return Interval(low=100 * max(0.0, low), high=100 * min(1.0, high), method="bootstrap")


def _averaged_interval(result: ExampleResult) -> Interval:
    """Return the interval of a mean that the evaluator computed. Wilson's is wide enough for all scores."""
    if not result.averaged:
        return UNKNOWN_INTERVAL
    return wilson_interval(result.score * result.averaged, result.averaged)


def _compare_averages(old: ExampleResult, new: ExampleResult) -> HeldoutComparison:
    """Compare two means by Newcombe's interval: their examples cannot be paired."""
    before, after = 100 * old.score, 100 * new.score
    ci = difference_interval(before, _averaged_interval(old), after, _averaged_interval(new))
    return HeldoutComparison(improvement=after - before, ci=ci)


def difference_interval(before: float, was: Interval, after: float, now: Interval) -> Interval:
    """Return Newcombe's interval of `after` minus `before`, two percentages of different examples."""
    low = after - before - math.hypot(after - now.low, was.high - before)
    high = after - before + math.hypot(now.high - after, before - was.low)
    return Interval(low=max(-100.0, low), high=min(100.0, high), method="newcombe")


def compare_evaluations(before: EvalResult, after: EvalResult) -> HeldoutComparison:
    """Return the mean difference with a paired bootstrap. Examples that either side lacks are left out."""
    was = {result.id: result for result in before.results}
    now = {result.id: result for result in after.results}
    if {*was, *before.missing} != {*now, *after.missing}:
        raise ValueError("a paired comparison needs the same examples on both sides")
    both = [(was[name], now[name]) for name in now if name in was]
    if not both:
        raise ValueError("no example has a result on both sides")
    if both[0][0].averaged is not None and both[0][1].averaged is not None:
        return _compare_averages(*both[0])
    improvement = float(np.mean([new.score - old.score for old, new in both]))
    differences = np.array([new.score + new.residual - old.score - old.residual for old, new in both])
    low, high = _bootstrap_interval(differences)
    return HeldoutComparison(
        improvement=100 * improvement,
        ci=Interval(low=100 * low, high=100 * high, method="paired-bootstrap"),
    )


def ratio_interval(parts: Sequence[float], wholes: Sequence[float]) -> Interval:
    """Return a bootstrap interval of the sum of `parts` by the sum of `wholes`; these are above 0.

    A pair is resampled as one: the actions of an episode are alike.
    """
    low, high = _bootstrap_interval(np.array(parts), np.array(wholes))
    return Interval(low=low, high=high, method="bootstrap")


def _bootstrap_interval(
    values: NDArray[np.float64], wholes: NDArray[np.float64] | None = None, level: float = 0.95
) -> tuple[float, float]:
    """Return a percentile interval of the mean, or of the ratio of sums.

    Resamples in blocks to limit memory for any n.
    """
    random = np.random.default_rng(0)
    n = len(values)
    chosen = (random.integers(0, n, size=(BLOCK, n)) for _ in range(RESAMPLES // BLOCK))
    if wholes is None:
        means = np.concatenate([values[each].mean(axis=1) for each in chosen])
    else:
        means = np.concatenate([values[each].sum(axis=1) / wholes[each].sum(axis=1) for each in chosen])
    tail = (1 - level) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return float(low), float(high)
