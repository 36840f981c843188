"""The best so far on a common grid; tables of cells; shares and coverage."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent2rl.analysis.campaigns.comparisons import build_heatmap
from agent2rl.analysis.campaigns.route_shares import (
    TaskTraits,
    count_routes,
    count_routes_by,
    list_unknown_tasks,
    measure_coverage,
)
from agent2rl.analysis.campaigns.scaling import compute_all_scalings, compute_scaling
from tests.helpers.run_digests import SPENDING, make_digest, make_digests, make_score_course


def test_a_run_is_worth_its_best_so_far_and_keeps_it() -> None:
    one = make_digest(1, "a", curve=make_score_course((10, 5.0), (50, 20.0)))
    found = compute_scaling([one], "seconds", grid=[0, 9, 10, 49, 50, 1000])
    assert found.quantiles[0.5] == (0.0, 0.0, 5.0, 5.0, 20.0, 20.0)
    assert found.reached == (1, 1, 1, 1, 1, 0)


def test_the_median_and_the_band_are_over_runs() -> None:
    many = [make_digest(1, str(place), curve=make_score_course((10, float(place)))) for place in range(5)]
    found = compute_scaling(many, "seconds", grid=[5, 20], quantiles=(0.0, 0.5, 1.0))
    assert found.quantiles == {0.0: (0.0, 0.0), 0.5: (0.0, 2.0), 1.0: (0.0, 4.0)}
    assert found.mean == (0.0, 2.0)


def test_a_run_without_scores_stays_at_the_untouched_model() -> None:
    found = compute_scaling([make_digest(None)], "tokens")
    assert set(found.mean) == {0.0}
    assert found.grid[-1] == 1000


def test_runs_of_which_the_cost_is_unknown_are_counted_and_left_out() -> None:
    unknown = make_digest(1, "u", total=SPENDING.model_copy(update={"usd": None}))
    found = compute_scaling([make_digest(1, "k"), unknown, make_digest(1, "f", ending="failed")], "usd")
    assert (found.n, found.unknown, found.excluded) == (1, 1, {"failed": 1})
    assert compute_scaling([unknown], "usd").grid == ()
    assert compute_scaling([unknown], "seconds").n == 1


def test_a_grade_after_the_agents_end_is_still_reached() -> None:
    found = compute_scaling([make_digest(1, curve=make_score_course((120, 5.0)))], "seconds")
    assert (found.grid[-1], found.mean[-1], found.reached[-1]) == (120.0, 5.0, 1)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.lists(st.tuples(st.floats(0, 200), st.floats(0, 50)), max_size=6), min_size=1, max_size=6))
def test_lines_never_fall(curves: list[list[tuple[float, float]]]) -> None:
    many = []
    for place, points in enumerate(curves):
        times, gains = sorted(at for at, _ in points), sorted(gain for _, gain in points)
        many.append(make_digest(1, str(place), curve=make_score_course(*zip(times, gains, strict=True))))
    for found in compute_all_scalings(many).values():
        for line in (*found.quantiles.values(), found.mean):
            assert all(after >= before - 1e-5 for before, after in pairwise(line))
        assert list(found.reached) == sorted(found.reached, reverse=True)
    assert compute_scaling(many[::-1], "seconds") == compute_scaling(many, "seconds")


def test_stars_are_for_gains_that_stay_clear_in_the_whole_table() -> None:
    digests = [
        *make_digests([10, 11, 12, 13, 14, 12], "a", task="x", mode="free"),
        *make_digests([-4, 5, -3, 4, 0, -1], "b", task="x", mode="sft-only"),
        *make_digests([1, 0], "c", task="y", mode="free"),
        *make_digests([-9, -10, -11, -10, -9, -10], "d", task="z", mode="free"),
    ]
    found = build_heatmap(digests, "mode")
    assert (found.rows, found.columns, found.tested) == (("free", "sft-only"), ("x", "y", "z"), 3)
    assert {(each.row, each.column): each.star for each in found.cells} == {
        ("free", "x"): True,
        ("free", "y"): False,
        ("free", "z"): True,
        ("sft-only", "x"): False,
    }
    assert all((each.p_holm is None) == (each.cell.n < 5) for each in found.cells)


def test_one_clear_cell_among_many_is_held_to_a_higher_standard() -> None:
    borderline = make_digests([4, 1, 5, -1, 4], "a", task="x")
    nothing = [
        each for k in range(20) for each in make_digests([1, -1, 2, -2, 0.5], f"{k}-", task=f"t{k:02d}")
    ]
    alone, among = (
        build_heatmap(borderline, "mode"),
        build_heatmap([*borderline, *nothing], "mode"),
    )
    p_alone = next(each.p_holm for each in alone.cells)
    p_among = next(each.p_holm for each in among.cells if each.column == "x")
    assert p_alone is not None
    assert p_among == pytest.approx(min(1.0, 21 * p_alone))


def test_routes_are_those_of_the_models_that_runs_left() -> None:
    members = [
        *make_digests([5, 6, 7], "a", route="sft"),
        make_digest(8, "b", route=None),
        make_digest(-1, "c", chosen_gain=-1.0),
        make_digest(run_id="d", ending="failed"),
    ]
    found = count_routes(members)
    assert found.counts == {"sft": 3, "unknown": 1, "untouched model": 1}
    assert found.shares["sft"].value == 60.0
    assert (found.n, found.excluded) == (5, {"failed": 1})
    assert list(count_routes_by(members)) == [("sums", "tester")]


def test_coverage_tells_which_kinds_of_task_were_run() -> None:
    tasks = [
        TaskTraits("sums", 1, world=False),
        TaskTraits("essays", 2, world=False, judged=True, judge_offered=True),
        TaskTraits("house", 3, world=True),
        TaskTraits("quiz", 3, world=True, judge_offered=True),
    ]
    digests = [
        *make_digests([1, 2]),
        make_digest(run_id="x", task="house", ending="failed"),
        make_digest(run_id="y", task="odd"),
    ]
    found = {(each.dimension, each.value): each for each in measure_coverage(tasks, digests)}
    assert found["data", "static"].tasks == ("essays", "sums")
    assert (found["data", "static"].run, found["data", "static"].runs) == (("sums",), 2)
    assert (found["data", "interactive"].runs, found["data", "interactive"].excluded) == (0, 1)
    assert found["grading", "rule or judge"].tasks == ("quiz",)
    assert found["grading", "judge"].tasks == ("essays",)
    assert found["level", "3"].tasks == ("house", "quiz")
    assert list_unknown_tasks(tasks, digests) == ("odd",)
