"""Test whether a gain is real: compare the best submission with the untouched model example by example."""

import math
from collections.abc import Sequence

import numpy as np

from agent2rl.analysis import statistics
from agent2rl.analysis.findings import Gain, GainFlip
from agent2rl.core.grading_records import EvalResult, ExampleResult, HeldoutComparison

MOST_FLIPS = 50
LONGEST_OUTPUT = 600
DIFFERENT = 1e-9
RESAMPLES = 10_000
ALPHA = 0.05


def compare_examples(
    split: str,
    before: Sequence[ExampleResult],
    after: Sequence[ExampleResult],
    recorded: HeldoutComparison | None,
    optimism_gap: float | None,
) -> Gain | None:
    """Compare results on the same examples; return None if there are none.

    `recorded` is the comparison that the run itself made.
    """
    was = {result.id: result for result in before}
    both = [(was[result.id], result) for result in after if result.id in was]
    if not both:
        return None
    differences = [_observed_score(new) - _observed_score(old) for old, new in both]
    exact = all(
        min(abs(_observed_score(each)), abs(_observed_score(each) - 1)) < DIFFERENT
        for pair in both
        for each in pair
    )
    comparison = recorded or _compare_paired(both)
    better = sum(each > DIFFERENT for each in differences)
    worse = sum(each < -DIFFERENT for each in differences)
    p_value = mcnemar(better, worse) if exact else sign_permutation(differences)
    sure = (
        comparison.ci.low > 0 and p_value <= ALPHA
    )  # with few changed examples, the interval alone is too optimistic
    return Gain.model_validate(
        {
            "split": split,
            "comparison": comparison,
            "n": len(both),
            "better": better,
            "worse": worse,
            "same": len(both) - better - worse,
            "p_value": p_value,
            "test": "mcnemar" if exact else "sign-permutation",
            "optimism_gap": optimism_gap,
            "real": sure if split == "heldout" else None,
            "groups": _average_groups(both),
            "flips": _select_flips(both),
        }
    )


def mcnemar(better: int, worse: int) -> float:
    """Return the two-sided exact p-value of McNemar's test for the examples that changed."""
    n, least = better + worse, min(better, worse)
    if n == 0:
        return 1.0
    tail = sum(math.comb(n, k) for k in range(least + 1))
    return float(min(1.0, 2 * tail / 2**n))


def sign_permutation(differences: Sequence[float]) -> float:
    """Return the two-sided p-value of a permutation test that flips the signs of differences."""
    seen = np.array([each for each in differences if abs(each) > DIFFERENT])
    if not len(seen):
        return 1.0
    random = np.random.default_rng(0)
    target = abs(math.fsum(seen)) - DIFFERENT
    sums = np.zeros(RESAMPLES)
    for value in seen:  # one example at a time: needs little memory and sums alike on every machine
        sums += value * random.choice((-1.0, 1.0), RESAMPLES)
    return (1 + int(np.sum(np.abs(sums) >= target))) / (1 + RESAMPLES)


def _observed_score(result: ExampleResult) -> float:
    """Return what an answer was worth.

    If the score is the expectation of a regression, which moves all examples alike, this undoes that.
    """
    return result.score + result.residual


def _compare_paired(both: Sequence[tuple[ExampleResult, ExampleResult]]) -> HeldoutComparison:
    found = statistics.compare_evaluations(
        EvalResult(results=tuple(old for old, _ in both)), EvalResult(results=tuple(new for _, new in both))
    )
    ci = found.ci.model_copy(update={"low": round(found.ci.low, 6), "high": round(found.ci.high, 6)})
    return HeldoutComparison(improvement=round(found.improvement, 6), ci=ci)


def _average_groups(both: Sequence[tuple[ExampleResult, ExampleResult]]) -> dict[str, tuple[float, float]]:
    found = {}
    for name in sorted({new.group for _, new in both} - {""}):
        mine = [(old.score, new.score) for old, new in both if new.group == name]
        found[name] = tuple(round(100 * math.fsum(side) / len(mine), 6) for side in zip(*mine, strict=True))
    return {name: (sides[0], sides[1]) for name, sides in found.items()}


def _select_flips(both: Sequence[tuple[ExampleResult, ExampleResult]]) -> tuple[GainFlip, ...]:
    """Select losses, then wins, the largest changes first."""
    changed = [pair for pair in both if abs(_observed_score(pair[1]) - _observed_score(pair[0])) > DIFFERENT]
    lost = sorted(
        (pair for pair in changed if _observed_score(pair[1]) < _observed_score(pair[0])), key=_flip_sort_key
    )
    won = sorted(
        (pair for pair in changed if _observed_score(pair[1]) > _observed_score(pair[0])), key=_flip_sort_key
    )
    half = MOST_FLIPS // 2
    kept = [*lost[: max(half, MOST_FLIPS - len(won))], *won[: max(half, MOST_FLIPS - len(lost))]]
    return tuple(_build_flip(old, new) for old, new in kept)


def _flip_sort_key(pair: tuple[ExampleResult, ExampleResult]) -> tuple[float, str]:
    return -abs(_observed_score(pair[1]) - _observed_score(pair[0])), pair[1].id


def _build_flip(old: ExampleResult, new: ExampleResult) -> GainFlip:
    return GainFlip(
        id=new.id,
        group=new.group,
        before=min(1.0, max(0.0, _observed_score(old))),
        after=min(1.0, max(0.0, _observed_score(new))),
        output_before=_truncate_output(old.output),
        output_after=_truncate_output(new.output),
    )


def _truncate_output(text: str) -> str:
    return text if len(text) <= LONGEST_OUTPUT else text[: LONGEST_OUTPUT - 1] + "…"
