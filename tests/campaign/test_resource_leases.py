"""What of this machine a run gets, and that it does not outlive whoever waits for it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agent2rl.campaign.campaign_file import RunResources
from agent2rl.campaign.executors import CoreLeases, GpuLeases, count_parallel_runs
from agent2rl.campaign.jobs import LAUNCH
from agent2rl.core.errors import MachineError
from agent2rl.run.machine import list_visible_gpus


def never() -> bool:
    return False


def test_two_campaigns_never_have_the_same_gpu(tmp_path: Path) -> None:
    mine, theirs = GpuLeases(["0", "1", "2"], tmp_path), GpuLeases(["0", "1", "2"], tmp_path)
    with mine.lease_gpus(2, never) as first, theirs.lease_gpus(1, never) as second:
        assert first is not None
        assert second is not None
        assert {*first, *second} == {"0", "1", "2"}
        with theirs.lease_gpus(1, never) as third:
            assert third is None
    with theirs.lease_gpus(3, never) as all_of_them:
        assert all_of_them is not None


def test_a_gpu_is_the_same_by_its_number_and_by_its_name(tmp_path: Path) -> None:
    known = ("GPU-0a55aa7a-0f32", "GPU-1b66bb8b-1e43")
    numbers, names = GpuLeases(["0", "1"], tmp_path, known), GpuLeases(["GPU-1b66", "MIG-2"], tmp_path, known)
    with numbers.lease_gpus(2, never) as both, names.lease_gpus(1, never) as other:
        assert both is not None
        assert tuple(other or ()) == ("MIG-2",), "what the driver does not know is called as it is"
    with names.lease_gpus(1, never) as first, numbers.lease_gpus(1, never) as second:
        assert (tuple(first or ()), tuple(second or ())) == (("GPU-1b66",), ("0",))


def test_a_gpu_that_is_named_twice_is_one() -> None:
    assert list_visible_gpus("1, 3,1") == ("1", "3")
    assert list_visible_gpus("GPU-1b66,-1,0") == ("GPU-1b66",)


def test_leases_that_somebody_else_has_shut_are_said_to_be(tmp_path: Path) -> None:
    (tmp_path / "gpus").symlink_to("/nowhere")
    with (
        pytest.raises(MachineError, match="Cannot lease a GPU"),
        GpuLeases(["0"], tmp_path / "gpus").lease_gpus(1, never),
    ):
        pass


def test_whoever_waits_for_several_gpus_holds_none_meanwhile(tmp_path: Path) -> None:
    gpus, asked = GpuLeases(["0", "1"], tmp_path), []

    def wait() -> bool:
        with gpus.lease_gpus(1, never) as other:
            asked.append(other is not None)
        return len(asked) < 3

    with gpus.lease_gpus(1, never), gpus.lease_gpus(2, wait) as both:
        assert both is None
    assert asked == [True, True, True]


def test_a_gpu_is_leased_as_long_as_the_run_lives_that_was_given_it(tmp_path: Path) -> None:
    gpus = GpuLeases(["0"], tmp_path)
    with gpus.lease_gpus(1, never) as leased:
        assert leased is not None
        run = subprocess.Popen(["sleep", "60"], pass_fds=tuple(leased.values()))
    with gpus.lease_gpus(1, never) as taken:
        assert taken is None
    run.kill()
    run.wait()
    with gpus.lease_gpus(1, never) as free:
        assert free is not None


def test_runs_that_fit_have_cores_of_their_own() -> None:
    cores = CoreLeases(1, len(os.sched_getaffinity(0)))
    with cores.lease_cores() as first:
        assert first is not None
        assert len(first) == 1
    with CoreLeases(10**6, 1).lease_cores() as none:
        assert none is None


def test_as_many_runs_go_at_once_as_fit() -> None:
    every = len(os.sched_getaffinity(0))
    assert count_parallel_runs(RunResources(), ()) == 1
    assert count_parallel_runs(RunResources(cpus=1), ()) == every
    assert count_parallel_runs(RunResources(cpus=every), ()) == 1
    assert count_parallel_runs(RunResources(gpus=1), ("0",)) == 1
    with pytest.raises(MachineError, match="needs 3 GPUs, but this machine has 2"):
        count_parallel_runs(RunResources(gpus=3), ("0", "1"))
    with pytest.raises(MachineError, match="G of memory"):
        count_parallel_runs(RunResources(memory="900T"), ())


def test_what_is_launched_has_its_cores_and_its_gpus_and_dies_with_its_parent(tmp_path: Path) -> None:
    core = min(os.sched_getaffinity(0))
    code = (
        'import os, pathlib, sys, time; pathlib.Path(sys.argv[1]).write_text(f"{os.getpid()} '
        "{sorted(os.sched_getaffinity(0))} {os.environ['CUDA_VISIBLE_DEVICES']}\"); time.sleep(60)"
    )
    parent = (
        "import os, subprocess, sys; subprocess.Popen([sys.executable, sys.argv[1], str(os.getpid()), "
        "*sys.argv[2:]]).wait()"
    )
    said = tmp_path / "said"
    launch = [str(LAUNCH), str(core), "CUDA_VISIBLE_DEVICES=3", "--", sys.executable, "-c", code, str(said)]
    process = subprocess.Popen([sys.executable, "-c", parent, *launch])
    until = time.monotonic() + 120
    while (not said.exists() or not said.read_text()) and time.monotonic() < until:
        time.sleep(0.02)
    pid, what = said.read_text().split(" ", 1)
    assert what == f"[{core}] 3"
    process.send_signal(signal.SIGKILL)
    process.wait()
    while _alive(int(pid)) and time.monotonic() < until:
        time.sleep(0.02)
    assert not _alive(int(pid))


def _alive(pid: int) -> bool:
    try:
        return ") Z" not in Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
