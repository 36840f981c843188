"""The best of k runs, against all choices of k."""

from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent2rl.analysis.campaigns.resampling import NOT_ENOUGH
from agent2rl.analysis.campaigns.scaling import compute_choice_weights, estimate_best_of_k
from agent2rl.core.grading_records import Interval
from tests.helpers.run_digests import make_digest, make_digests

GAINS = st.lists(st.floats(-50, 50).map(lambda value: round(value, 3)), min_size=1, max_size=8)


@settings(max_examples=40, deadline=None)
@given(GAINS)
def test_it_is_the_mean_over_all_choices(gains: list[float]) -> None:
    found = estimate_best_of_k(make_digests(gains)).expected
    assert list(found) == list(range(1, len(gains) + 1))
    for k, each in found.items():
        expected = np.mean([max(chosen) for chosen in combinations(gains, k)])
        assert each.value == pytest.approx(expected, abs=1e-9)


@settings(max_examples=25, deadline=None)
@given(GAINS.filter(lambda gains: len(gains) >= 5))
def test_more_runs_are_never_expected_to_be_worse_and_intervals_hold_their_figures(
    gains: list[float],
) -> None:
    found = [*estimate_best_of_k(make_digests(gains)).expected.values()]
    values = [each.value for each in found]
    assert all(after >= before - 1e-9 for before, after in pairwise(values))
    assert values[-1] == max(gains)
    for each in found:
        assert isinstance(each.interval, Interval)
        assert each.interval.low <= each.value <= each.interval.high
    assert estimate_best_of_k(make_digests(gains)[::-1]) == estimate_best_of_k(make_digests(gains))


@pytest.mark.parametrize(("n", "k"), [(1, 1), (7, 3), (500, 1), (500, 250), (500, 500)])
def test_the_weights_of_a_choice_are_shares(n: int, k: int) -> None:
    weights = compute_choice_weights(n, k)
    assert weights.sum() == pytest.approx(1)
    assert np.all(weights[: k - 1] == 0)


def test_it_is_unbiased_for_runs_of_a_known_kind() -> None:
    random = np.random.default_rng(0)
    found = np.mean([np.sort(random.random(6)) @ compute_choice_weights(6, 3) for _ in range(4000)])
    assert found == pytest.approx(3 / 4, abs=0.01)  # the greatest of three uniform numbers


def test_few_runs_have_no_interval_and_broken_ones_are_counted() -> None:
    found = estimate_best_of_k(
        [*make_digests([1, 2]), make_digest(run_id="x", ending="failed")], ks=[1, 2, 3]
    )
    assert (found.n, found.excluded, list(found.expected)) == (2, {"failed": 1}, [1, 2])
    assert found.expected[2].interval == NOT_ENOUGH
    assert estimate_best_of_k([]).expected == {}


def test_of_many_runs_not_every_k_is_told() -> None:
    found = estimate_best_of_k(make_digests(np.arange(300.0)))
    assert len(found.expected) < 60
    assert found.expected[300].value == 299
