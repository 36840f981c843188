"""Whether a gain is real is a paired question over the same examples."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from agent2rl.analysis.gain import compare_examples, mcnemar, sign_permutation
from agent2rl.core.grading_records import ExampleResult, HeldoutComparison, Interval


def results(scores: Sequence[float], output: str = "x") -> list[ExampleResult]:
    return [
        ExampleResult(id=f"e{i}", output=f"{output} {i}", score=score, group="even" if i % 2 == 0 else "odd")
        for i, score in enumerate(scores)
    ]


def test_flips_are_counted_each_way() -> None:
    found = compare_examples("heldout", results([0, 0, 1, 1]), results([1, 1, 0, 1]), None, 2.5)
    assert found
    assert (found.better, found.worse, found.same, found.n) == (2, 1, 1, 4)
    assert found.comparison.improvement == 25.0
    assert found.test == "mcnemar"
    assert found.optimism_gap == 2.5
    assert found.groups == {"even": (50.0, 50.0), "odd": (50.0, 100.0)}


def test_what_was_lost_is_shown_with_what_was_said_before_and_after() -> None:
    found = compare_examples("heldout", results([1, 0], "before"), results([0, 0], "after"), None, None)
    assert found
    (flip,) = found.flips
    assert (flip.id, flip.before, flip.after) == ("e0", 1, 0)
    assert (flip.output_before, flip.output_after) == ("before 0", "after 0")


def test_a_gain_on_the_split_that_chose_it_is_never_called_real() -> None:
    found = compare_examples("feedback", results([0] * 50), results([1] * 50), None, None)
    assert found
    assert found.real is None


def test_a_clear_gain_on_the_held_out_split_is_real_and_a_small_one_is_not() -> None:
    clear = compare_examples("heldout", results([0] * 50), results([1] * 30 + [0] * 20), None, None)
    small = compare_examples("heldout", results([0, 1] * 25), results([1, 1, 0, 1] * 12 + [0, 1]), None, None)
    assert clear
    assert small
    assert clear.real is True
    assert clear.p_value < 0.001
    assert small.real is True or small.p_value > 0.01


def test_four_better_and_none_worse_may_be_chance_though_the_interval_is_above_zero() -> None:
    found = compare_examples("heldout", results([0] * 50), results([1] * 4 + [0] * 46), None, None)
    assert found
    assert found.comparison.ci.low > 0
    assert found.p_value == 0.125
    assert found.real is False


def test_what_the_run_recorded_is_taken_over() -> None:
    recorded = HeldoutComparison(improvement=7.0, ci=Interval(low=-1, high=15, method="paired-bootstrap"))
    found = compare_examples("heldout", results([0, 1]), results([1, 1]), recorded, None)
    assert found
    assert found.comparison == recorded
    assert found.real is False


def test_examples_that_one_side_misses_are_left_out() -> None:
    found = compare_examples("heldout", results([0, 0, 0]), results([1, 1]), None, None)
    assert found
    assert found.n == 2


def test_without_a_common_example_there_is_no_gain_to_speak_of() -> None:
    assert compare_examples("heldout", [], results([1]), None, None) is None


@given(st.integers(0, 400), st.integers(0, 400))
def test_mcnemars_test_agrees_with_the_binomial_test(better: int, worse: int) -> None:
    expected = stats.binomtest(better, better + worse, 0.5).pvalue if better + worse else 1.0
    assert mcnemar(better, worse) == pytest.approx(expected, abs=1e-12)


def test_the_permutation_of_signs_agrees_with_scipy() -> None:
    differences = [0.3, -0.1, 0.2, 0.25, 0.0, -0.05, 0.4, 0.1, 0.15, -0.2, 0.35, 0.05]
    expected = stats.permutation_test(
        (differences,), lambda x, axis: x.mean(axis=axis), permutation_type="samples", n_resamples=10_000
    ).pvalue
    assert sign_permutation(differences) == pytest.approx(expected, abs=0.02)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(-1, 1), max_size=30))
def test_a_p_value_is_a_share_and_never_zero(differences: list[float]) -> None:
    assert 0 < sign_permutation(differences) <= 1


def test_what_a_regression_expects_of_every_example_alike_is_no_evidence_of_its_own() -> None:
    """Scores are expectations, what was seen lies around them: here it is the same before and after."""
    seen = [0.0, 1.0] * 20
    before = [
        each.model_copy(update={"score": 0.4, "residual": s - 0.4})
        for each, s in zip(results(seen), seen, strict=True)
    ]
    after = [
        each.model_copy(update={"score": 0.6, "residual": s - 0.6})
        for each, s in zip(results(seen), seen, strict=True)
    ]
    found = compare_examples("heldout", before, after, None, None)
    assert found
    assert (found.better, found.worse, found.p_value) == (0, 0, 1.0)
    assert found.real is False
    assert found.flips == ()
