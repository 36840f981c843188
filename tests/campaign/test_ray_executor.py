"""Campaigns on a Ray cluster: several processes on this machine. `make test-campaigns` installs Ray."""

import importlib.util
import os
import signal

import pytest

from agent2rl.campaign.campaign_file import compute_experiment_id
from agent2rl.campaign.claims_and_sessions import ExperimentClaims
from agent2rl.record.paths import claims_folder
from agent2rl.record.reader import read_run
from tests.helpers.run_launcher import RunLauncher
from tests.helpers.small_campaigns import (
    count_resumed_runs,
    has_agent_started,
    list_run_states,
    list_runs,
    read_campaign_status,
    start_campaign,
    write_campaign,
)
from tests.helpers.waiting import wait_until

pytestmark = [
    pytest.mark.clusters,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed"),
]


def test_the_run_of_a_killed_worker_is_done_in_the_end_and_none_is_done_twice(launcher: RunLauncher) -> None:
    script = launcher.script("print('here', flush=True)\ntime.sleep(600)")
    file = write_campaign(
        launcher, [f"script:{script}"], seeds=3, more='budget = "4s"\n[resources]\ncpus = 1\n'
    )
    claims = ExperimentClaims(claims_folder(launcher.runs))
    with start_campaign(launcher, "run", file, "--executor", "ray") as campaign:
        wait_until(lambda: has_agent_started(launcher))
        holders = [claims.find_holder(run["experiment"]) for run in read_campaign_status(launcher, file)]
        victim = next(holder.pid for holder in holders if holder)
        assert victim != campaign.pid
        os.kill(victim, signal.SIGKILL)
        output, _ = campaign.communicate(timeout=600)
    assert campaign.returncode == 0, output
    assert list_run_states(launcher, file) == ["done"] * 3
    views = [read_run(paths) for paths in list_runs(launcher)]
    assert [view.state for view in views] == ["finished"] * 3
    assert len({compute_experiment_id(view.spec) for view in views}) == 3
    assert count_resumed_runs(launcher) == 1


def test_runs_of_workers_that_share_nothing_are_fetched_whole(launcher: RunLauncher) -> None:
    file = write_campaign(launcher, ["nop"], seeds=2, more="[resources]\ncpus = 1\n")
    with start_campaign(launcher, "run", file, "--executor", "ray", "--fetch") as campaign:
        output, _ = campaign.communicate(timeout=600)
    assert campaign.returncode == 0, output
    assert list_run_states(launcher, file) == ["done", "done"]
    for paths in list_runs(launcher):
        assert launcher.cli("verify", paths.run_id).returncode == 0
    assert len((launcher.runs / "results.csv").read_text().splitlines()) == 3
