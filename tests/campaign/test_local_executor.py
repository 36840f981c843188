"""Campaigns on this machine, through the command line, with whole runs."""

import json
import os
import shutil
import signal
from pathlib import Path

import pytest

from agent2rl.campaign.campaign_file import RunResources, compute_experiment_id
from agent2rl.campaign.claims_and_sessions import CampaignSession, StopRequest
from agent2rl.campaign.jobs import CampaignJob, JobOutcome, JobWorker, MachineShare
from agent2rl.core.records import Budget, RequestedLimits, RunSpec
from agent2rl.record.reader import read_run
from agent2rl.record.recorder import Recorder
from tests.helpers.run_launcher import RunLauncher
from tests.helpers.small_campaigns import (
    count_resumed_runs,
    has_agent_started,
    is_process_alive,
    list_run_states,
    list_runs,
    read_campaign_status,
    start_campaign,
    write_campaign,
)
from tests.helpers.waiting import wait_until


def test_two_that_run_the_same_campaign_share_it_and_a_third_has_nothing_to_do(launcher: RunLauncher) -> None:
    file = write_campaign(
        launcher, ["nop"], seeds=2, more='budget = "1m"\n[resources]\ncpus = 1\nmemory = "2G"\n'
    )
    before = json.loads(launcher.cli("campaign", "plan", file, "--parallel", "2", "--json").stdout)
    assert [run["state"] for run in before["runs"]] == ["todo"] * 2
    assert before["run_seconds"] == 120
    assert before["wall_seconds"] == 60
    assert not before["runs"][0]["beside_known"]
    with (
        start_campaign(launcher, "run", file, "--parallel", "1") as one,
        start_campaign(launcher, "run", file, "--parallel", "1") as two,
    ):
        outputs = [process.communicate(timeout=600)[0] for process in (one, two)]
    assert [one.returncode, two.returncode] == [0, 0], outputs
    assert len(list_runs(launcher)) == 2, outputs
    assert "Traceback" not in "".join(outputs)
    third = launcher.cli("campaign", "run", file, "--json")
    assert third.returncode == 0, third.stderr
    assert len(list_runs(launcher)) == 2
    after = json.loads(launcher.cli("campaign", "plan", file, "--json").stdout)
    assert [(run["state"], run["chosen"]) for run in after["runs"]] == [("done", False)] * 2
    assert after["runs"][0]["seconds"] > 60, "what grading takes is learnt from the runs there are"
    once_more = json.loads(launcher.cli("campaign", "plan", file, "--again", "--limit", "1", "--json").stdout)
    assert [run["chosen"] for run in once_more["runs"]] == [True, False]
    (view, *_) = [read_run(paths) for paths in list_runs(launcher)]
    assert view.spec.limits == RequestedLimits(memory_bytes=2 << 30), "no more than was asked for"
    (held,) = [entry.data for entry in view.chain.entries if entry.kind == "limits"]
    assert held["memory_bytes"] == 2 << 30
    assert held["disk_bytes"], "and what the machine made of it"


@pytest.mark.thorough
def test_stop_ends_runs_in_order_and_says_when_all_have_ended(launcher: RunLauncher) -> None:
    script = launcher.script("print('here', flush=True)\ntime.sleep(600)")
    file = write_campaign(launcher, [f"script:{script}"], seeds=2, more="[resources]\ncpus = 1\n")
    with start_campaign(launcher, "run", file, "--parallel", "1") as campaign:
        wait_until(lambda: has_agent_started(launcher))
        assert list_run_states(launcher, file) == ["running", "todo"]
        stopped = launcher.cli("campaign", "stop", file)
        output, _ = campaign.communicate(timeout=600)
    assert campaign.returncode == 130, output
    assert "all have ended" in stopped.stdout
    assert list_run_states(launcher, file) == ["stopped", "todo"]
    (paths,) = list_runs(launcher)
    assert read_run(paths).result is not None
    assert "nothing was running" in launcher.cli("campaign", "stop", file).stdout


def test_stop_waits_for_a_session_that_has_claimed_nothing_yet(launcher: RunLauncher) -> None:
    script = launcher.script("time.sleep(600)")
    file = write_campaign(launcher, [f"script:{script}"], seeds=2)
    with start_campaign(launcher, "run", file) as campaign:
        wait_until(lambda: list(launcher.runs.glob(".campaigns/small/*/session.json")))
        stopped = launcher.cli("campaign", "stop", file)
        assert list(launcher.runs.glob(".campaigns/small/*/ended"))
        output, _ = campaign.communicate(timeout=600)
    assert "all have ended" in stopped.stdout, (stopped.stdout, output)
    assert campaign.returncode == 130, output
    assert not is_process_alive(Path("--runs-dir=" + str(launcher.runs)))


def test_whoever_asks_for_the_end_is_heard_though_nothing_can_be_written(tmp_path: Path) -> None:
    session = CampaignSession.open(tmp_path, "small", "local")
    assert session.read_stop_request() == ""
    shutil.rmtree(session.paths.root)
    asking: tuple[StopRequest, ...] = ("stop", "now")
    for how in asking:
        with pytest.raises(OSError, match="No such file"):
            session.request_stop(how)
        assert session.read_stop_request() == how


@pytest.mark.thorough
def test_a_campaign_that_is_killed_leaves_no_run_behind_and_the_next_one_does_it(
    launcher: RunLauncher,
) -> None:
    script = launcher.script("print('here', flush=True)\ntime.sleep(600)", "sleeper.py")
    file = write_campaign(launcher, [f"script:{script}"], more='budget = "3s"\n')
    with start_campaign(launcher, "run", file) as campaign:
        wait_until(lambda: has_agent_started(launcher))
        os.kill(campaign.pid, signal.SIGKILL)
        campaign.wait()
        wait_until(lambda: not is_process_alive(Path("--runs-dir=" + str(launcher.runs))), 20)
    assert list_run_states(launcher, file) == ["crashed"]
    done = launcher.cli("campaign", "run", file)
    assert done.returncode == 0, done.stdout + done.stderr
    assert list_run_states(launcher, file) == ["done"]
    assert len(list_runs(launcher)) == 1
    assert count_resumed_runs(launcher) == 1


@pytest.mark.thorough
def test_what_the_harness_failed_waits_until_somebody_asks_for_it_again(
    launcher: RunLauncher, tmp_path: Path
) -> None:
    plugins = tmp_path / "plugins"
    plugins.mkdir()
    (plugins / "broken.py").write_text(
        "def open_model(directory):\n    raise RuntimeError('no such thing')\n"
    )
    file = write_campaign(launcher, ["nop"], more='engine = "scripted:broken:open_model"\n')
    path = {"PYTHONPATH": str(plugins)}
    assert launcher.cli("campaign", "run", file, **path).returncode == 1
    (found,) = read_campaign_status(launcher, file, **path)
    assert (found["state"], found["ending"]) == ("failed", "failed")
    assert "no such thing" in found["detail"]
    again = launcher.cli("campaign", "run", file, **path)
    assert again.returncode == 1
    assert "retry --failed" in again.stdout
    assert len(list_runs(launcher)) == 1
    (plugins / "broken.py").write_text("from agent2rl.models.abacus import solver as open_model\n")
    mended = launcher.cli("campaign", "retry", "--failed", file, **path)
    assert mended.returncode == 0, mended.stdout + mended.stderr
    assert len(list_runs(launcher)) == 2
    assert launcher.cli("campaign", "retry", file).returncode == 2


def test_what_run_refuses_is_refused_before_anything_is_begun(launcher: RunLauncher) -> None:
    wrong = launcher.cli("campaign", "plan", write_campaign(launcher, ["nop"], more='bugdet = "1m"\n'))
    assert wrong.returncode == 2
    assert "small, task=gsm8k-mini agent=nop seed=0: No such option '--bugdet'" in wrong.stderr
    for setting, says in (
        ("max-usd = inf", "'inf' is not a valid amount"),
        ('budget = "9999999999999h"', "longer than ten years"),
        ('samples = ["1", "2"]', "samples takes only one value"),
        ('sandbox = "cardboard"', "There is no sandbox named 'cardboard'"),
    ):
        wrong = launcher.cli("campaign", "plan", write_campaign(launcher, ["nop"], more=f"{setting}\n"))
        assert wrong.returncode == 2
        assert says in wrong.stderr
    wrong = launcher.cli("campaign", "plan", write_campaign(launcher, ["nobody"]))
    assert "task=gsm8k-mini agent=nobody seed=0: There is no agent named 'nobody'" in wrong.stderr
    many = launcher.cli("campaign", "run", write_campaign(launcher, ["nop"], more="[resources]\ngpus = 64\n"))
    assert many.returncode == 1
    assert "needs 64 GPUs" in many.stderr
    assert not launcher.runs.exists()


def test_a_run_that_cannot_begin_is_said_and_not_held_against_the_experiment(launcher: RunLauncher) -> None:
    file = write_campaign(launcher, ["nop"], more="max-usd = 3\n")
    done = launcher.cli("campaign", "run", file)
    assert done.returncode == 1
    assert "Without a driver there is nothing to limit" in done.stderr
    assert list_run_states(launcher, file) == ["todo"]


def test_a_run_that_somebody_began_by_hand_is_waited_for_without_a_claim(tmp_path: Path) -> None:
    spec = RunSpec(task="t", agent="a", model="m", engine="e", budget=Budget(wall_seconds=60))
    job = CampaignJob(
        experiment=compute_experiment_id(spec),
        label="",
        arguments=(),
        runs=str(tmp_path),
        session=str(tmp_path / "session"),
        directory="",
        settled=0,
        resume=True,
        resources=RunResources(),
        wall_seconds=60,
    )
    with Recorder.create(tmp_path, spec, lambda _: None):
        assert JobWorker(job, MachineShare()).run() == JobOutcome(kind="busy")
    assert not (tmp_path / ".claims").exists(), "claims stay for good, and many looks would leave many"
