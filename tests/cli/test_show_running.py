"""`agent2rl show` of a run that is not finished: how many environment steps are played and left."""

import json
import time
from pathlib import Path

import pytest

from tests.helpers.recorded_meter import open_recorded_meter
from tests.helpers.run_launcher import RunLauncher


@pytest.mark.parametrize(
    ("limit", "says"), [(100, "71 played, 29 left of 100"), (None, "71 played, unlimited")]
)
def test_a_running_run_shows_the_steps_that_are_played_and_left(
    launcher: RunLauncher, limit: int | None, says: str
) -> None:
    with open_recorded_meter(launcher.runs, limit) as one:
        one.recorder.record_start(deadline=time.time() + 60, instructions_version=1)
        one.meter.count_claim(one.report(1, episodes=2, steps=40, successes=1))
        one.meter.count_claim(one.report(1, "another", episodes=1, steps=30))
        one.meter.begin_episode()
        one.meter.count_step(won=True)
        one.meter._flush_counts()
        shown = launcher.cli("show", "latest").stdout
        assert "state              running" in shown
        assert f"environment steps  {says}" in shown
        assert "3 episodes, 70 steps" in shown
        told = json.loads(launcher.cli("show", "latest", "--json").stdout)
        assert told["result"] is None
        assert told["rollouts"]["claimed"] == {"episodes": 3, "steps": 70, "successes": 1}
        assert told["rollouts"]["served"] == {"episodes": 1, "steps": 1, "successes": 1}
        assert told["environment_steps_left"] == (limit and limit - 71)


def test_a_running_run_with_a_limit_shows_it_before_the_first_step(launcher: RunLauncher) -> None:
    with open_recorded_meter(launcher.runs, 100):
        assert "environment steps  0 played, 100 left of 100" in launcher.cli("show", "latest").stdout
        assert json.loads(launcher.cli("show", "latest", "--json").stdout)["environment_steps_left"] == 100


def test_a_running_run_that_plays_nothing_shows_no_steps(launcher: RunLauncher, tmp_path: Path) -> None:
    with open_recorded_meter(launcher.runs):
        assert "environment steps" not in launcher.cli("show", "latest").stdout
        assert json.loads(launcher.cli("show", "latest", "--json").stdout)["rollouts"] is None
