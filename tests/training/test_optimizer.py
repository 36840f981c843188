"""The course of the learning rate."""

import pytest

from agent2rl.training.optimizer import compute_rate_factor


@pytest.mark.parametrize("hold", [0.0, 0.7, 1.0])
def test_a_held_learning_rate_stays_at_its_peak_and_then_falls(hold: float) -> None:
    factors = [compute_rate_factor(share / 100, hold) for share in range(5, 101)]
    assert factors == sorted(factors, reverse=True)
    assert all(factor == 1.0 for factor in factors[: max(0, int(100 * hold) - 5)])
    assert factors[-1] == pytest.approx(1.0 if hold == 1.0 else 0.1)
