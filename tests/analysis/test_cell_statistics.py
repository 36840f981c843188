"""What the runs of a cell come to, against what is known."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from agent2rl.analysis.campaigns.cell_statistics import compute_cell, compute_cells
from agent2rl.analysis.campaigns.resampling import (
    NOT_ENOUGH,
    compute_p_value,
    estimate_shared_effects,
    estimate_with_student,
)
from agent2rl.core.grading_records import Interval
from tests.helpers.run_digests import make_digest, make_digests, make_ranked_digests, simulate_differences

GAINS = st.lists(st.floats(-50, 50).map(lambda value: round(value, 3)), min_size=5, max_size=12)


def width(interval: Interval | str) -> float:
    assert isinstance(interval, Interval)
    return interval.high - interval.low


@pytest.mark.parametrize("freedom", [1.0, 1.5, 2.0, 9.3, 100.0, 1e4, 1e6, 1e8])
def test_p_values_and_intervals_follow_students_distribution(freedom: float) -> None:
    draws = stats.norm.ppf(np.linspace(0, 1, 1_000_003)[1:-1])
    for level in (0.5, 0.9):
        interval = estimate_with_student(0.0, draws, freedom, level).interval
        assert isinstance(interval, Interval)
        furthest = min(stats.t.isf((1 - level) / 2, freedom), draws[-1])
        assert interval.high == pytest.approx(furthest, rel=1e-3)
        assert interval.low == pytest.approx(-furthest, rel=1e-3)
    for t in (0.0, 0.5, 2.0, 8.0):
        p_value = compute_p_value(-t * float(draws.std()), draws, freedom)
        assert p_value == pytest.approx(2 * stats.t.sf(t, freedom), rel=1e-8)


def test_a_cell_says_what_its_runs_gained() -> None:
    found = compute_cell([*make_digests([0, 10, 2, None, 8, 5]), make_digest(run_id="x", ending="failed")])
    assert (found.n, found.excluded) == (6, {"failed": 1})
    assert found.mean
    assert found.median
    assert found.mean.value == pytest.approx(25 / 6)
    assert found.median.value == 3.5
    assert (found.best, found.best_run) == (10.0, "r00001")
    assert found.sd == pytest.approx(np.std([0, 10, 2, 0, 8, 5], ddof=1))
    assert found.quartiles == pytest.approx((0.5, 7.25))


def test_the_share_of_successes_has_wilsons_interval() -> None:
    found = compute_cell(make_digests([0, 10, 2, None, 8, 5, 5, 5]))
    assert found.succeeded == 5
    assert found.success
    assert isinstance(found.success.interval, Interval)
    expected = stats.binomtest(5, 8).proportion_ci(method="wilson")
    assert found.success.interval.low == pytest.approx(100 * expected.low)
    assert found.success.interval.high == pytest.approx(100 * expected.high)


def test_few_runs_are_not_enough_to_say() -> None:
    found = compute_cell(make_digests([1, 2, 3, 4]))
    assert found.mean
    assert found.median
    assert found.success
    assert found.mean.value == 2.5
    assert [each.interval for each in (found.mean, found.median, found.success)] == [NOT_ENOUGH] * 3
    assert found.p_value is None


def test_a_cell_whose_runs_all_broke_has_no_numbers() -> None:
    found = compute_cell([make_digest(ending="failed")])
    assert (found.n, found.mean, found.best, found.success) == (0, None, None, None)
    assert found.excluded == {"failed": 1}


def test_success_under_the_papers_protocol_cannot_be_told() -> None:
    found = compute_cell(make_digests([5.0] * 6, protocol="paper", real=None))
    assert (found.succeeded, found.success) == (None, None)


def test_protocols_are_not_mixed() -> None:
    with pytest.raises(ValueError, match="protocols"):
        compute_cell([make_digest(1.0), make_digest(1.0, "s", protocol="paper")])


def test_cells_are_by_any_axes() -> None:
    found = compute_cells([*make_digests([1, 2], task="t"), *make_digests([3], "s", task="u")], ("task",))
    assert {key: each.n for key, each in found.items()} == {("t",): 2, ("u",): 1}


@settings(max_examples=25, deadline=None)
@given(GAINS, st.randoms(use_true_random=False))
def test_the_order_of_runs_changes_nothing_and_intervals_hold_their_figures(
    gains: list[float], random: st.DataObject
) -> None:
    members = make_digests(gains)
    found = compute_cell(members)
    shuffled = list(members)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert compute_cell(shuffled).model_dump_json() == found.model_dump_json()
    for each in (found.mean, found.median, found.success):
        assert each
        assert isinstance(each.interval, Interval)
        assert each.interval.low <= each.value <= each.interval.high


def test_the_interval_of_many_runs_is_students() -> None:
    gains = np.random.default_rng(1).normal(3, 2, size=80)
    found = compute_cell(make_digests(gains))
    assert found.mean
    assert isinstance(found.mean.interval, Interval)
    low, high = stats.t.interval(0.95, 79, loc=gains.mean(), scale=stats.sem(gains))
    assert found.mean.interval.low == pytest.approx(low, abs=0.06)
    assert found.mean.interval.high == pytest.approx(high, abs=0.06)
    assert found.p_value is not None
    assert np.log(found.p_value) == pytest.approx(np.log(stats.ttest_1samp(gains, 0).pvalue), rel=0.1)


def test_equal_gains_are_judged_by_their_signs() -> None:
    assert compute_cell(make_digests([3.0] * 6)).p_value == 2 / 2**6
    assert compute_cell(make_digests([0.0] * 6)).p_value == 1.0


def test_what_examples_do_to_all_runs_alike_widens_the_interval() -> None:
    random = np.random.default_rng(2)
    alike = compute_cell(make_ranked_digests(simulate_differences(random, 10, 100, 0.01, 0.3, 0.1)))
    apart = compute_cell(make_ranked_digests(simulate_differences(random, 10, 100, 0.01, 0.0, 0.3)))
    assert alike.mean
    assert apart.mean
    assert width(alike.mean.interval) == pytest.approx(2 * 2.26 * 3, rel=0.3)
    assert width(apart.mean.interval) == pytest.approx(2 * 2.26 * np.sqrt(3**2 + 1) / np.sqrt(10), rel=0.5)


def test_noise_that_is_each_runs_own_is_not_counted_twice() -> None:
    random = np.random.default_rng(3)
    own = np.array([estimate_shared_effects(random.normal(size=(8, 50))).std() for _ in range(100)])
    shared = np.array(
        [
            estimate_shared_effects(random.normal(size=(8, 50)) + random.normal(size=50)).std()
            for _ in range(100)
        ]
    )
    assert own.mean() < 0.15
    assert shared.mean() == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize(("run_sd", "example_sd", "noise_sd"), [(0.05, 0.0, 0.3), (0.02, 0.15, 0.2)])
def test_intervals_hold_the_truth_as_often_as_they_say(
    run_sd: float, example_sd: float, noise_sd: float
) -> None:
    random = np.random.default_rng(4)
    hits = 0
    for number in range(120):
        members = make_ranked_digests(
            simulate_differences(random, 8, 40, run_sd, example_sd, noise_sd), f"{number}-"
        )
        found = compute_cell(members).mean
        assert found
        assert isinstance(found.interval, Interval)
        hits += found.interval.low <= 0 <= found.interval.high
    assert hits >= 108
