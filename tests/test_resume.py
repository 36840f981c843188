"""A run whose harness died goes on: nothing that was acknowledged is lost, and nothing is done twice."""

import pytest

from tests.dying import Death, Dying, faults, kill_at_random
from tests.runs import Bench

KILLED = -9


def test_a_harness_that_dies_at_each_step_of_a_run_loses_nothing(bench: Bench) -> None:
    """Eleven harnesses after each other; what each finds is what the one before left."""
    dying = Dying(bench)
    deaths = (
        Death("limits"),
        Death("started", "torn"),
        Death("submitted", "no-head"),
        Death("grading", "told"),
        Death("results"),
        Death("graded", "torn"),
        Death("graded", which=2),
        Death("submitted", "told"),
        Death("ended"),
        Death("contamination", "before"),
        Death("heldout", "before"),
        Death("closed"),
    )
    for death in deaths:
        assert dying.live(death) == KILLED, (death, dying.errors)
    assert dying.live() == 0, dying.errors
    assert list(faults(dying, len(deaths))) == []
