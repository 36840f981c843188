"""Where nothing improves, little is claimed."""

import numpy as np
import pytest

from agent2rl.analysis.campaigns.heatmap import heatmap
from agent2rl.analysis.campaigns.nulls import Null, campaign, claims, interval, rate_real

NULL = Null(feedback=30, heldout=30, accuracy=0.3, churn=0.3, submissions=8)


def test_our_rule_claims_little_and_the_best_of_the_test_set_claims_nearly_always() -> None:
    said = claims(NULL, 2000, np.random.default_rng(0))
    assert said.improved.mean() <= 0.05
    assert np.all(said.p_value[~said.better] == 1)
    assert np.all(said.p_value[said.improved] <= 0.05)
    assert said.best_of_test.mean() > 0.8
    assert said.best_of_test_interval.mean() > 0.05
    assert abs(said.heldout_gain.mean()) < 0.5
    assert said.test_gain.mean() > 2


def test_the_rate_of_one_submission_is_that_of_its_simulation() -> None:
    one = Null(feedback=30, heldout=30, accuracy=0.5, churn=0.2, submissions=1)
    said = claims(one, 20_000, np.random.default_rng(1))
    assert said.improved.mean() == pytest.approx(said.better.mean() * rate_real(one), abs=0.003)
    assert rate_real(one) <= 0.05


@pytest.mark.parametrize("accuracy", [0.01, 0.3, 0.9, 0.99])
def test_nothing_improves_in_a_null(accuracy: float) -> None:
    won, lost = Null(10, 10, accuracy, 0.5, 1).changed
    assert (1 - accuracy) * won == pytest.approx(accuracy * lost)
    assert 0 <= won <= 1
    assert 0 <= lost <= 1


def test_four_changes_for_the_better_are_said_to_be_above_zero_and_three_are_not() -> None:
    assert interval(3, 0, 150).low == 0
    assert interval(4, 0, 150).low > 0


def test_a_campaign_of_nulls_has_few_stars() -> None:
    tables = [heatmap(campaign(NULL, 2, 2, 5, number), "mode", "task") for number in range(30)]
    assert sum(any(each.star for each in table.cells) for table in tables) <= 4
    assert campaign(NULL, 2, 2, 5, 0) == campaign(NULL, 2, 2, 5, 0)
