"""Campaigns on a Slurm cluster of one node: the real slurmctld and slurmd, where they are installed.

`make test-campaigns` installs submitit. Debian's packages are slurmctld, slurmd, slurm-client and munge;
slurmd has to be root.
"""

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent2rl.campaign.campaign_file import RunResources, compute_experiment_id
from agent2rl.campaign.claims_and_sessions import CampaignSession, ExperimentClaim
from agent2rl.campaign.jobs import JobOutcome, make_jobs
from agent2rl.campaign.plan import CostEstimator
from agent2rl.cli.opened_campaign import open_campaign
from agent2rl.record.reader import read_run
from tests.helpers.run_launcher import RunLauncher
from tests.helpers.small_campaigns import (
    count_resumed_runs,
    has_agent_started,
    list_run_states,
    list_runs,
    start_campaign,
    write_campaign,
)
from tests.helpers.waiting import wait_until

PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch", "squeue")
missing = importlib.util.find_spec("submitit") is None
needs_submitit = pytest.mark.skipif(missing, reason="submitit is not installed")
needs_slurm = pytest.mark.skipif(
    missing
    or os.geteuid() != 0
    or not all(shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin") for name in PROGRAMS),
    reason="no Slurm here, or no right to start one",
)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A controller and a node with two cores; jobs of the partition `urgent` preempt those of `main`."""
    place = tmp_path_factory.mktemp("slurm")
    host, munge = socket.gethostname().partition(".")[0], place / "munge.socket"
    (place / "munge.key").write_bytes(os.urandom(128))
    (place / "munge.key").chmod(0o600)
    config = place / "slurm.conf"
    config.write_text(
        f"""
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={munge}
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
KillWait=3
SlurmctldPort={free_port()}
SlurmdPort={free_port()}
SlurmctldPidFile={place}/slurmctld.pid
SlurmdPidFile={place}/slurmd.pid
SlurmdSpoolDir={place}/spool
StateSaveLocation={place}/state
PreemptMode=REQUEUE
PreemptType=preempt/partition_prio
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES State=UP PriorityTier=1
PartitionName=urgent Nodes=ALL State=UP PriorityTier=10
"""
    )
    where = f"{os.environ['PATH']}:/usr/sbin"
    environment = {"PATH": where, "SLURM_CONF": str(config)}
    own = [f"--{name}-file={place}/munge.{name}" for name in ("key", "pid", "log", "seed")]
    commands = (
        ["munged", "--foreground", "--force", f"--socket={munge}", *own],
        ["slurmctld", "-D", "-c"],
        ["slurmd", "-D", "-c"],
    )
    processes = []
    try:
        for command in commands:
            with (place / f"{command[0]}.log").open("wb") as log:
                processes.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
            time.sleep(1)
        wait_until(lambda: "idle" in _said(["sinfo", "--noheader"], environment), 30)
        yield config
    finally:
        for process in reversed(processes):
            process.terminate()
            process.wait(30)


def _said(command: list[str], environment: dict[str, str]) -> str:
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False).stdout


@pytest.mark.clusters
@needs_slurm
def test_a_preempted_job_is_queued_again_and_each_run_is_done_once(
    launcher: RunLauncher, slurm: Path
) -> None:
    conf = {"SLURM_CONF": str(slurm)}
    script = launcher.script("print('here', flush=True)\ntime.sleep(600)")
    file = write_campaign(
        launcher, [f"script:{script}"], seeds=2, more='budget = "4s"\n[resources]\ncpus = 1\n'
    )
    environment = launcher.environment(**conf)
    with start_campaign(launcher, "run", file, "--executor", "slurm", **conf) as campaign:
        wait_until(lambda: has_agent_started(launcher))
        urgent = [
            "sbatch",
            "--partition=urgent",
            "--exclusive",
            f"--output={launcher.home}/urgent",
            "--wrap=sleep 1",
        ]
        assert "Submitted" in _said(urgent, environment)
        pending = ["squeue", "--noheader", "--array", "--format=%i", "--states=PENDING"]
        while campaign.poll() is None:  # Slurm lets jobs that it queued again wait for two minutes
            for name in _said(pending, environment).split():
                _said(["scontrol", "update", f"jobid={name}", "starttime=now"], environment)
            time.sleep(1)
        output, _ = campaign.communicate(timeout=600)
    assert campaign.returncode == 0, output
    assert list_run_states(launcher, file) == ["done", "done"]
    views = [read_run(paths) for paths in list_runs(launcher)]
    assert [view.state for view in views] == ["finished"] * 2
    assert len({compute_experiment_id(view.spec) for view in views}) == 2
    assert count_resumed_runs(launcher) >= 1, "nothing was preempted"
    (batch,) = launcher.runs.glob(".campaigns/small/*/jobs/*_submission.sh")
    assert "#SBATCH --array=0-1" in batch.read_text()


@pytest.mark.clusters
@needs_slurm
def test_stop_takes_waiting_jobs_out_of_the_queue(launcher: RunLauncher, slurm: Path) -> None:
    conf = {"SLURM_CONF": str(slurm)}
    script = launcher.script("print('here', flush=True)\ntime.sleep(600)")
    file = write_campaign(launcher, [f"script:{script}"], seeds=2, more="[resources]\ncpus = 1\n")
    with start_campaign(launcher, "run", file, "--executor", "slurm", "--parallel", "1", **conf) as campaign:
        wait_until(lambda: has_agent_started(launcher))
        stopped = launcher.cli("campaign", "stop", file, **conf)
        campaign.communicate(timeout=600)
    assert "all have ended" in stopped.stdout
    assert campaign.returncode == 130
    assert list_run_states(launcher, file) == ["stopped", "todo"]
    wait_until(lambda: not _said(["squeue", "--noheader"], launcher.environment(**conf)), 30)


@pytest.mark.clusters
@needs_submitit
def test_a_job_that_is_told_of_its_end_leaves_its_run_to_its_successor(
    launcher: RunLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By submitit's own handler of the signal that it asks Slurm for, and its executor without a cluster."""
    import submitit

    from agent2rl.campaign.slurm_executor import SlurmJob

    for name, value in launcher.environment().items():
        monkeypatch.setenv(name, value)
    script = launcher.script("print('here', flush=True)\ntime.sleep(600)")
    file = write_campaign(launcher, [f"script:{script}"], more='budget = "2s"\nsandbox = "local"\n')
    campaign = open_campaign(Path(file), launcher.runs)
    session = CampaignSession.open(launcher.runs, "small", "slurm")
    resources = campaign.campaign.resources
    (job,) = make_jobs(
        campaign.find_statuses(), session, str(launcher.runs), resources, CostEstimator({}), True
    )
    executor = submitit.LocalExecutor(folder=session.paths.jobs)
    executor.update_parameters(timeout_min=60)
    sent = executor.submit(SlurmJob(job.model_dump_json()))
    wait_until(lambda: has_agent_started(launcher))
    holder = campaign.claims.find_holder(job.experiment)
    assert holder is not None
    os.kill(holder.pid, signal.SIGUSR2)
    outcome = JobOutcome.model_validate_json(sent.result())
    assert (outcome.kind, outcome.ending) == ("ran", "deadline")
    assert count_resumed_runs(launcher) == len(list_runs(launcher)) == 1
    successor = ExperimentClaim.model_validate_json(
        (launcher.runs / ".claims" / job.experiment / "2").read_text()
    )
    assert successor.pid != holder.pid


@needs_submitit
def test_what_sbatch_is_told_is_what_the_campaign_asks_for(tmp_path: Path) -> None:
    from submitit.slurm.slurm import _make_sbatch_string

    from agent2rl.campaign.slurm_executor import make_job_parameters

    told = make_job_parameters(
        RunResources(cpus=8, memory="64G", gpus=2), 4, {"partition": "gpu", "account": "lab"}
    )
    assert told["gpus_per_node"] == 2
    text = _make_sbatch_string(
        "PROGRAM",
        tmp_path,
        job_name=told["name"],
        time=780,
        cpus_per_task=told["cpus_per_task"],
        mem=f"{told['mem_gb']:g}GB",
        gpus_per_node=told["gpus_per_node"],
        array_parallelism=told["slurm_array_parallelism"],
        additional_parameters=told["slurm_additional_parameters"],
        map_count=6,
    )
    lines = {line.removeprefix("#SBATCH ") for line in text.splitlines() if line.startswith("#SBATCH")}
    assert {
        "--array=0-5%4",
        "--cpus-per-task=8",
        "--gpus-per-node=2",
        "--mem=64GB",
        "--time=780",
        "--partition=gpu",
        "--account=lab",
        "--requeue",
        "--signal=USR2@90",
    } <= lines
