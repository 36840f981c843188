"""Scores and intervals."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from agent2rl.analysis.statistics import compare_evaluations, score_evaluation, wilson_interval
from agent2rl.core.grading_records import EvalResult, ExampleResult


def results(*scores: float) -> list[ExampleResult]:
    return [ExampleResult(id=str(index), output="", score=value) for index, value in enumerate(scores)]


def evaluation(*scores: float) -> EvalResult:
    return EvalResult(results=tuple(results(*scores)))


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [(0, 10, 0.0, 27.75), (5, 10, 23.66, 76.34), (10, 10, 72.25, 100.0), (81, 263, 25.53, 36.62)],
)
def test_wilson_agrees_with_published_values(successes: int, n: int, low: float, high: float) -> None:
    interval = wilson_interval(successes, n)
    assert interval.low == pytest.approx(low, abs=0.01)
    assert interval.high == pytest.approx(high, abs=0.01)


@given(st.integers(1, 500).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_holds_the_rate_and_stays_in_range(case: tuple[int, int]) -> None:
    successes, n = case
    interval = wilson_interval(successes, n)
    assert 0 <= interval.low <= 100 * successes / n <= interval.high <= 100


def test_a_rate_gets_wilson_and_a_graded_score_a_bootstrap() -> None:
    assert score_evaluation(evaluation(0, 1, 1), "feedback").ci.method == "wilson"
    assert score_evaluation(evaluation(0, 0.5, 1), "feedback").ci.method == "bootstrap"


def test_further_metrics_are_means_over_the_same_examples() -> None:
    one = ExampleResult(id="1", output="", score=0.5, metrics={"pass@2": 1.0, "maj@2": 0.0})
    two = ExampleResult(id="2", output="", score=0.0, metrics={"pass@2": 0.0, "maj@2": 0.0})
    found = score_evaluation(EvalResult(results=(one, two), how={"samples": 2}), "feedback")
    assert (found.value, found.metrics, found.how) == (25, {"pass@2": 50, "maj@2": 0}, {"samples": 2})
    with pytest.raises(ValidationError, match="same metrics"):
        EvalResult(results=(one, *results(1)))


def test_the_same_results_give_the_same_interval() -> None:
    values = evaluation(*np.random.default_rng(1).random(50))
    assert score_evaluation(values, "heldout") == score_evaluation(values, "heldout")


def test_a_paired_comparison_is_sharper_than_two_intervals() -> None:
    before = evaluation(*([0] * 50 + [1] * 50))
    after = evaluation(*([0] * 40 + [1] * 60))
    compared = compare_evaluations(before, after)
    assert compared.improvement == pytest.approx(10)
    assert 0 < compared.ci.low < 10 < compared.ci.high
    assert wilson_interval(50, 100).high > wilson_interval(60, 100).low


def test_different_examples_cannot_be_paired() -> None:
    with pytest.raises(ValueError, match="same examples"):
        compare_evaluations(
            evaluation(1),
            EvalResult(results=(ExampleResult(id="other", output="", score=1),)),
        )


def test_what_one_side_misses_is_left_out_of_a_comparison() -> None:
    before = EvalResult(results=tuple(results(0, 1, 1)), missing={"3": "no answer"})
    after = EvalResult(results=tuple(results(1, 1)[1:]), missing={"0": "no answer", "2": "", "3": ""})
    assert compare_evaluations(before, after).improvement == 0
    with pytest.raises(ValueError, match="both sides"):
        compare_evaluations(before, EvalResult(results=(), missing=dict.fromkeys("0123", "")))
    with pytest.raises(ValidationError, match="not both"):
        EvalResult(results=tuple(results(1)), missing={"0": "no answer"})


def test_a_score_says_how_many_examples_are_missing() -> None:
    found = score_evaluation(EvalResult(results=tuple(results(0, 1)), missing={"2": "no answer"}), "feedback")
    assert (found.value, found.n, found.missing) == (50, 2, 1)


def test_the_bootstrap_covers_the_mean_as_often_as_it_says() -> None:
    random = np.random.default_rng(2)
    hits = 0
    for _ in range(200):
        sample = score_evaluation(evaluation(*random.beta(2, 3, size=60)), "feedback")
        hits += sample.ci.low <= 40 <= sample.ci.high
    assert 178 <= hits <= 200


def averaged(score: float, problems: int) -> EvalResult:
    return EvalResult(results=(ExampleResult(id="test", output="", score=score, averaged=problems),))


def test_a_mean_that_the_evaluator_computed_has_the_interval_of_its_number_of_problems() -> None:
    score = score_evaluation(averaged(0.5, 100), "feedback")
    assert (score.value, score.n) == (50.0, 100)
    assert score.ci == wilson_interval(50, 100)


def test_a_mean_over_an_unknown_number_of_problems_says_nothing_about_its_interval() -> None:
    score = score_evaluation(averaged(0.5, 0), "feedback")
    assert (score.n, score.ci.low, score.ci.high) == (1, 0.0, 100.0)
    compared = compare_evaluations(averaged(0.5, 0), averaged(0.9, 0))
    assert compared.improvement == pytest.approx(40)
    assert compared.ci.low < 0


def test_two_means_are_compared_by_newcombes_interval() -> None:
    """Newcombe (1998), method 10: 56 of 70 against 48 of 80 gives 0.0524 to 0.3339."""
    compared = compare_evaluations(averaged(48 / 80, 80), averaged(56 / 70, 70))
    assert compared.ci.method == "newcombe"
    assert compared.ci.low == pytest.approx(5.24, abs=0.01)
    assert compared.ci.high == pytest.approx(33.39, abs=0.01)
