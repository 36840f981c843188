"""Where nothing improves, little is claimed."""

import numpy as np
import pytest
from benchmarks.null_campaign_simulation import (
    NullScenario,
    compute_false_real_rate,
    compute_interval,
    simulate_campaign,
    simulate_claims,
)

from agent2rl.analysis.campaigns.comparisons import build_heatmap

NULL = NullScenario(feedback=30, heldout=30, accuracy=0.3, churn=0.3, submissions=8)


def test_our_rule_claims_little_and_the_best_of_the_test_set_claims_nearly_always() -> None:
    said = simulate_claims(NULL, 2000, np.random.default_rng(0))
    assert said.improved.mean() <= 0.05
    assert np.all(said.p_value[~said.better] == 1)
    assert np.all(said.p_value[said.improved] <= 0.05)
    assert said.best_of_test.mean() > 0.8
    assert said.best_of_test_interval.mean() > 0.05
    assert abs(said.heldout_gain.mean()) < 0.5
    assert said.test_gain.mean() > 2


def test_the_rate_of_one_submission_is_that_of_its_simulation() -> None:
    one = NullScenario(feedback=30, heldout=30, accuracy=0.5, churn=0.2, submissions=1)
    said = simulate_claims(one, 20_000, np.random.default_rng(1))
    assert said.improved.mean() == pytest.approx(said.better.mean() * compute_false_real_rate(one), abs=0.003)
    assert compute_false_real_rate(one) <= 0.05


@pytest.mark.parametrize("accuracy", [0.01, 0.3, 0.9, 0.99])
def test_nothing_improves_in_a_null(accuracy: float) -> None:
    won, lost = NullScenario(10, 10, accuracy, 0.5, 1).changed
    assert (1 - accuracy) * won == pytest.approx(accuracy * lost)
    assert 0 <= won <= 1
    assert 0 <= lost <= 1


def test_four_changes_for_the_better_are_said_to_be_above_zero_and_three_are_not() -> None:
    assert compute_interval(3, 0, 150).low == 0
    assert compute_interval(4, 0, 150).low > 0


def test_a_campaign_of_nulls_has_few_stars() -> None:
    tables = [build_heatmap(simulate_campaign(NULL, 2, 2, 5, number), "mode") for number in range(30)]
    assert sum(any(each.star for each in table.cells) for table in tables) <= 4
    assert simulate_campaign(NULL, 2, 2, 5, 0) == simulate_campaign(NULL, 2, 2, 5, 0)
