"""Which of a run's GPUs the agent has, and which are kept for grading."""

import pytest

from agent2rl.core.errors import UserError
from agent2rl.run.machine import GpuAssignment, assign_gpus
from tests.helpers.run_launcher import RunLauncher


def test_the_agent_and_grading_share_all_gpus_unless_some_are_kept() -> None:
    assert assign_gpus(("0", "1"), None) == GpuAssignment(("0", "1"), ("0", "1"))
    assert assign_gpus((), None) == GpuAssignment((), ())


def test_gpus_are_kept_for_grading_by_name_or_as_the_last_ones() -> None:
    assert assign_gpus(("4", "5", "6", "7"), "6, 7") == GpuAssignment(("4", "5"), ("6", "7"))
    assert assign_gpus(("GPU-a", "GPU-b"), "last:1") == GpuAssignment(("GPU-a",), ("GPU-b",))


@pytest.mark.parametrize("kept", ["2", "0,2", "last:3", "last:0", "last:", ""])
def test_gpus_that_the_run_does_not_have_cannot_be_kept(kept: str) -> None:
    with pytest.raises(UserError, match="it has: 0, 1"):
        assign_gpus(("0", "1"), kept)


@pytest.mark.parametrize("kept", ["0,1", "last:2"])
def test_a_gpu_must_be_left_for_the_agent(kept: str) -> None:
    with pytest.raises(UserError, match="no GPU is left for the agent"):
        assign_gpus(("0", "1"), kept)


def test_an_agent_trains_on_its_own_gpus_and_submissions_are_graded_on_the_others(
    launcher: RunLauncher,
) -> None:
    run = launcher.run(
        """
answer = submit(trained("v1"))
say(gpus=os.environ["CUDA_VISIBLE_DEVICES"], health=call("GET", "/health"), verdict=answer["verdict"],
    second=call("POST", "/submissions", {"model_path": str(OUTPUT / "v1"), "gpu": 0})["http"],
    third=call("POST", "/submissions", {"model_path": str(OUTPUT / "v1"), "gpu": "5"})["http"])
""",
        *("--sandbox", "local", "--grading-gpus", "last:1"),
        CUDA_VISIBLE_DEVICES="4,5,6",
    )
    assert (run.said["verdict"], run.said["gpus"]) == ("scored", "4,5")
    assert run.said["health"]["available_gpus"] == ["6"]
    assert (run.said["second"], run.said["third"]) == (202, 400)
    assert run.result.best is not None
    assert run.result.best.gpu == "6"
    assert run.result.clock is not None
    assert run.result.clock.gpu == pytest.approx(2 * run.result.clock.agent, abs=2)


def test_a_run_without_the_gpus_for_grading_does_not_start(launcher: RunLauncher) -> None:
    options = ("--task", "gsm8k-mini", "--agent", "nop", "--grading-gpus", "3")
    refused = launcher.cli("run", *options, CUDA_VISIBLE_DEVICES="0,1")
    assert refused.returncode != 0
    assert "does not have the GPUs '3' to keep for grading" in refused.stderr
    assert not list(launcher.runs.glob("*"))
