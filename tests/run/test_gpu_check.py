"""Whether CUDA starts in the sandbox, on a machine without a GPU."""

import ctypes

import pytest

from agent2rl import registry
from agent2rl.record.reader import read_events
from agent2rl.run.gpu_check import find_gpu_failure
from agent2rl.run.preflight import check_machine
from agent2rl.run.settings import read_settings
from tests.helpers.run_launcher import RunLauncher


@pytest.fixture(autouse=True)
def no_cuda() -> None:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return
    pytest.skip("this machine has CUDA's library")


def test_a_gpu_that_programs_cannot_use_is_noticed_and_no_gpu_is_no_failure() -> None:
    sandbox = registry.find_sandbox("local")
    assert "libcuda.so.1" in find_gpu_failure(sandbox, ("0",))
    assert find_gpu_failure(sandbox, ()) == ""
    assert find_gpu_failure(sandbox, None) == ""


def test_check_says_that_cuda_does_not_start_in_the_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    findings = {each.name: each for each in check_machine(read_settings(), "local")}
    assert findings["gpu"].state == "ok"
    assert findings["CUDA in local"].state == "broken"
    assert "does not start: " in findings["CUDA in local"].detail
    assert "nvidia-smi" in findings["CUDA in local"].hint


def test_a_run_whose_gpus_do_not_work_warns_before_the_agent_starts(launcher: RunLauncher) -> None:
    run = launcher.run("", "--budget", "2s", CUDA_VISIBLE_DEVICES="0")
    warnings = [each.data["text"] for each in read_events(run.paths, []) if each.kind == "warning"]
    assert any("CUDA does not start in the sandbox" in str(text) for text in warnings)
