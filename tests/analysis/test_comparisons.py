"""Two groups of runs, families of tests, and rankings, against what is known."""

from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from agent2rl.analysis.campaigns import resampling
from agent2rl.analysis.campaigns.comparisons import cliffs_delta, compare_groups, correct_holm
from agent2rl.analysis.campaigns.leaderboard import rank_entries
from agent2rl.analysis.campaigns.resampling import NOT_ENOUGH
from agent2rl.core.grading_records import Interval
from tests.helpers.run_digests import make_digest, make_digests, make_ranked_digests

FEW = st.lists(st.integers(-5, 5).map(float), min_size=1, max_size=5)


@settings(max_examples=40, deadline=None)
@given(FEW)
def test_signs_are_tried_in_all_ways(differences: list[float]) -> None:
    target = abs(sum(differences))
    ways = [
        abs(sum(a * b for a, b in zip(signs, differences, strict=True)))
        for signs in product((1, -1), repeat=len(differences))
    ]
    expected = sum(way >= target - 1e-9 for way in ways) / len(ways)
    assert resampling.permute_signs(np.array(differences), np.ones(len(differences))) == pytest.approx(
        expected
    )


@settings(max_examples=40, deadline=None)
@given(FEW, FEW)
def test_labels_are_mixed_in_all_ways(first: list[float], second: list[float]) -> None:
    pool = first + second
    target = abs(np.mean(first) - np.mean(second))
    ways = []
    for chosen in combinations(range(len(pool)), len(first)):
        mine = [pool[place] for place in chosen]
        rest = [pool[place] for place in range(len(pool)) if place not in chosen]
        ways.append(abs(np.mean(mine) - np.mean(rest)))
    expected = sum(way >= target - 1e-9 for way in ways) / len(ways)
    assert resampling.permute_labels([(np.array(first), np.array(second))]) == pytest.approx(expected)


def test_every_way_is_tried_as_scipy_tries_it() -> None:
    random = np.random.default_rng(0)
    first, second = random.normal(0.4, 1, 8), random.normal(0, 1, 8)
    unpaired = stats.permutation_test(
        (first, second), lambda a, b, axis: a.mean(axis) - b.mean(axis), vectorized=True, n_resamples=np.inf
    )
    assert resampling.permute_labels([(first, second)]) == pytest.approx(unpaired.pvalue)
    weights = random.uniform(0.5, 2, 8)
    paired = stats.permutation_test(
        (second * weights,),
        lambda a, axis: a.sum(axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=np.inf,
    )
    assert resampling.permute_signs(second, weights) == pytest.approx(paired.pvalue)


@pytest.mark.parametrize("n", [12, 40, 400])
def test_permutations_agree_with_scipy_and_with_students_test(n: int) -> None:
    random = np.random.default_rng(n)
    first, second = random.normal(0.4, 1, n), random.normal(0, 1, n)
    unpaired, paired = stats.ttest_ind(first, second).pvalue, stats.ttest_rel(first, second).pvalue
    assert resampling.permute_labels([(first, second)]) == pytest.approx(unpaired, abs=0.015)
    assert resampling.permute_signs(first - second, np.ones(n)) == pytest.approx(paired, abs=0.015)


def test_strata_are_mixed_each_for_itself() -> None:
    easy, hard = np.array([50.0, 51.0]), np.array([0.0, 1.0])
    p = resampling.permute_labels([(easy + 1, easy), (hard + 1, hard)])
    ways = [(a + b) / 2 for a, b in product(_halves([50, 51, 51, 52]), _halves([0, 1, 1, 2]))]
    assert p == pytest.approx(np.mean([abs(way) >= 1 - 1e-9 for way in ways]), abs=0.02)


def _halves(pool: list[float]) -> list[float]:
    return [2 * sum(pair) / 2 - sum(pool) / 2 for pair in combinations(pool, 2)]


def test_holms_correction_by_hand() -> None:
    assert correct_holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx((0.03, 0.06, 0.06, 0.02))
    assert correct_holm([]) == ()


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_a_corrected_p_value_is_never_smaller_and_keeps_the_order(p_values: list[float]) -> None:
    found = correct_holm(p_values)
    assert all(raw <= corrected <= 1 for raw, corrected in zip(p_values, found, strict=True))
    pairs = sorted(zip(p_values, found, strict=True))
    assert [each for _, each in pairs] == sorted(found)


@given(FEW, FEW)
def test_cliffs_delta_counts_pairs(first: list[float], second: list[float]) -> None:
    expected = np.mean([np.sign(a - b) for a in first for b in second])
    assert cliffs_delta(np.array(first), np.array(second)) == pytest.approx(expected)


def test_runs_with_the_same_seeds_are_paired_in_any_order() -> None:
    first, second = make_digests([11, 2, 23, 4, 35, 6], "a"), make_digests([10, 1, 22, 3, 34, 5], "b")
    found = compare_groups(first[::-1], second)
    assert found.paired
    assert found.difference
    assert found.difference.value == pytest.approx(1.0)
    assert isinstance(found.difference.interval, Interval)
    assert found.difference.interval.low == pytest.approx(1.0)
    assert (found.effect, found.p_value, found.test, found.n) == (1.0, 2 / 2**6, "signs", (6, 6))


def test_runs_without_partners_are_compared_as_groups() -> None:
    first, second = make_digests([11, 12, 13, 14, 15], "a"), make_digests([1, 2, 3, 4, 5], "b", seed=99)
    found = compare_groups(first, second)
    assert not found.paired
    assert found.difference
    assert found.difference.value == 10
    assert (found.effect, found.test) == (1.0, "labels")
    assert found.p_value == pytest.approx(2 / 252)
    assert isinstance(found.difference.interval, Interval)
    welch = stats.ttest_ind([11, 12, 13, 14, 15], [1, 2, 3, 4, 5], equal_var=False).confidence_interval()
    assert found.difference.interval.low == pytest.approx(welch.low, abs=0.5)
    assert found.difference.interval.high == pytest.approx(welch.high, abs=0.5)


def test_what_is_left_out_of_a_comparison_is_counted() -> None:
    first = [*make_digests([1, 2, 3, 4, 5, 6], "a"), make_digest(9, "x", task="other")]
    second = [*make_digests([1, 2, 3, 4, 5], "b"), make_digest(run_id="y", ending="rate-limited")]
    found = compare_groups(first, second)
    assert (found.paired, found.n, found.unmatched) == (True, (5, 5), (2, 0))
    assert found.excluded == ({}, {"rate-limited": 1})
    assert found.tasks == ("sums",)


def test_a_group_is_not_better_for_having_more_runs_of_an_easy_task() -> None:
    first = [
        *make_digests([50] * 9, "a", task="easy", seed=1),
        *make_digests([0] * 3, "b", task="hard", seed=1),
    ]
    second = [
        *make_digests([50] * 3, "c", task="easy", seed=2),
        *make_digests([0] * 9, "d", task="hard", seed=2),
    ]
    found = compare_groups(first, second)
    assert found.difference
    assert (found.difference.value, found.p_value, found.effect) == (0.0, 1.0, 0.0)


def test_few_runs_or_none_are_not_enough_to_compare() -> None:
    found = compare_groups(make_digests([5, 6], "a"), make_digests([1, 2], "b"))
    assert found.difference
    assert (found.difference.value, found.difference.interval, found.p_value) == (4.0, NOT_ENOUGH, None)
    assert compare_groups(make_digests([1], task="x"), make_digests([1], task="y")).difference is None


def test_common_examples_cancel_in_a_comparison() -> None:
    random = np.random.default_rng(0)
    shared = random.normal(0, 0.5, size=60)
    own = random.normal(0, 0.02, size=(2, 6, 60))
    first = make_ranked_digests((own[0] + shared + 0.05).tolist(), "a")
    second = make_ranked_digests((own[1] + shared).tolist(), "b")
    found = compare_groups(first, second).difference
    assert found
    assert isinstance(found.interval, Interval)
    assert found.interval.high - found.interval.low < 2


def test_protocols_are_never_compared_with_each_other() -> None:
    with pytest.raises(ValueError, match="protocols"):
        compare_groups(make_digests([1]), make_digests([1], protocol="paper"))
    with pytest.raises(ValueError, match="protocols"):
        rank_entries({"a": make_digests([1]), "b": make_digests([1], protocol="paper")})


def test_a_clear_order_is_sure_and_equals_share_their_ranks() -> None:
    found = rank_entries(
        {
            "low": make_digests([0, 1] * 4, "l"),
            "high": make_digests([90, 91] * 4, "h"),
            "mid": make_digests([50] * 8, "m"),
        }
    )
    assert [(place.name, place.rank, place.chances) for place in found.places] == [
        ("high", 1.0, (1.0, 0.0, 0.0)),
        ("mid", 2.0, (0.0, 1.0, 0.0)),
        ("low", 3.0, (0.0, 0.0, 1.0)),
    ]
    same = rank_entries({"a": make_digests([0] * 6, "a"), "b": make_digests([0] * 6, "b")})
    assert [place.chances for place in same.places] == [(0.5, 0.5)] * 2
    assert [place.rank for place in same.places] == [1.5, 1.5]


def test_chances_of_ranks_agree_with_the_normal_distribution() -> None:
    random = np.random.default_rng(5)
    noise = [(each - each.mean()) / each.std(ddof=1) for each in random.normal(size=(2, 40))]
    found = rank_entries({"a": make_digests(noise[0] + 0.2, "a"), "b": make_digests(noise[1], "b")})
    expected = stats.norm.cdf(0.2 / np.sqrt(2 / 40))
    assert found.places[0].chances[0] == pytest.approx(expected, abs=0.03)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.lists(st.integers(-3, 3).map(float), min_size=5, max_size=7), min_size=1, max_size=5))
def test_every_rank_is_given_once(gains: list[list[float]]) -> None:
    entries = {f"e{place}": make_digests(each, f"{place}-") for place, each in enumerate(gains)}
    found = rank_entries(entries)
    table = np.array([place.chances for place in found.places])
    assert np.allclose(table.sum(axis=0), 1)
    assert np.allclose(table.sum(axis=1), 1)
    for place in found.places:
        assert isinstance(place.rank, float)
        assert isinstance(place.rank_interval, tuple)
        assert place.rank == pytest.approx(np.dot(place.chances, np.arange(1, len(gains) + 1)))
        assert 1 <= place.rank_interval[0] <= place.rank_interval[1] <= len(gains)
    assert rank_entries(dict(reversed(entries.items()))) == found


def test_an_entry_without_enough_runs_is_named_and_not_ranked() -> None:
    both = [*make_digests([1] * 5, "a", task="x"), *make_digests([1] * 5, "b", task="y")]
    found = rank_entries(
        {
            "full": both,
            "short": make_digests([9, 9], "c", task="x"),
            "one": [*both[:5], make_digest(1, "z", task="y")],
        }
    )
    places = {place.name: place for place in found.places}
    assert places["full"].chances == (1.0,)
    assert (places["short"].rank, places["short"].mean) == (NOT_ENOUGH, None)
    assert places["one"].rank == NOT_ENOUGH
    assert places["one"].mean
    assert found.places[0].name == "full"


def test_runs_with_different_expert_help_are_never_compared_or_ranked_together() -> None:
    helped = make_digests([40.0, 41.0, 42.0, 43.0, 44.0], "h", agent="helped", expert=96)
    alone = make_digests([10.0, 11.0, 12.0, 13.0, 14.0], "a", agent="alone", expert="none")
    found = compare_groups(helped, alone)
    assert (found.tasks, found.difference, found.unmatched) == ((), None, (5, 5))
    ranking = rank_entries({"helped": helped, "alone": alone})
    assert ranking.tasks == ("sums (expert 96)", "sums (expert none)")
    assert [place.rank for place in ranking.places] == [NOT_ENOUGH, NOT_ENOUGH]
    assert [place.mean for place in ranking.places] == [None, None]


def test_runs_on_different_clocks_are_never_compared_or_ranked_together() -> None:
    free = make_digests([40.0, 41.0, 42.0, 43.0, 44.0], "f", agent="free", clock="training")
    paid = make_digests([10.0, 11.0, 12.0, 13.0, 14.0], "p", agent="paid")
    assert compare_groups(free, paid).unmatched == (5, 5)
    ranking = rank_entries({"free": free, "paid": paid})
    assert ranking.tasks == ("sums", "sums (clock training)")
    assert [place.rank for place in ranking.places] == [NOT_ENOUGH, NOT_ENOUGH]


def test_runs_with_different_networks_are_never_compared_or_ranked_together() -> None:
    online = make_digests([40.0, 41.0, 42.0, 43.0, 44.0], "o", agent="online", network="packages")
    offline = make_digests([10.0, 11.0, 12.0, 13.0, 14.0], "p", agent="offline")
    assert compare_groups(online, offline).unmatched == (5, 5)
    ranking = rank_entries({"online": online, "offline": offline})
    assert ranking.tasks == ("sums", "sums (network packages)")
    assert [place.rank for place in ranking.places] == [NOT_ENOUGH, NOT_ENOUGH]


def test_entries_are_ranked_on_each_level_of_expert_help_by_itself() -> None:
    entries = {
        name: make_digests([gain + n for n in range(5)], f"{name}96", agent=name, expert=96)
        + make_digests([gain + n for n in range(5)], f"{name}full", agent=name)
        for name, gain in (("better", 30.0), ("worse", 10.0))
    }
    ranking = rank_entries(entries)
    assert ranking.tasks == ("sums", "sums (expert 96)")
    assert [(place.name, place.rank) for place in ranking.places] == [("better", 1.0), ("worse", 2.0)]
