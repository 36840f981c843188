"""What a base model needs of this machine is checked before its weights are read."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from agent2rl import registry
from agent2rl.core.errors import MachineError, UserError
from agent2rl.core.records import Budget, RunSpec
from agent2rl.grading.submission_freezer import SPARE_BYTES
from agent2rl.models.abacus import Abacus
from agent2rl.record.recorder import Recorder
from agent2rl.run import machine, model_preflight
from agent2rl.run.machine import GpuMemory
from agent2rl.run.model_preflight import CopyPlan, check_model, require_model_fits
from agent2rl.run.preflight import PreflightFinding
from agent2rl.run.run_steps import prepare_assets
from agent2rl.run.settings import read_settings
from tests.helpers.run_launcher import RunLauncher

GB = 10**9


@pytest.fixture
def model(tmp_path: Path) -> Path:
    directory = tmp_path / "model"
    Abacus.base().save(directory)
    directory.chmod(0o755)
    for file in directory.iterdir():
        file.chmod(0o644)  # safetensors writes 0600
    return directory


@pytest.fixture
def no_shared_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_preflight, "can_share_blocks", lambda _: False)


def find_problems(model: Path, engine: str = "scripted", gpus: Sequence[str] = ()) -> list[PreflightFinding]:
    findings = check_model(model, model.parent, "bubblewrap", engine, gpus)
    return [finding for finding in findings if finding.state != "ok"]


def test_a_small_model_fits_everywhere(model: Path) -> None:
    findings = list(check_model(model, model.parent, "bubblewrap", "transformers", ()))
    assert [(finding.name, finding.state) for finding in findings] == [("model", "ok"), ("disk", "ok")]
    require_model_fits(iter(findings), pytest.fail)


def test_a_model_that_the_sandbox_cannot_read_is_named_with_the_command(model: Path) -> None:
    (model / "model.safetensors").chmod(0)
    (problem,) = find_problems(model)
    assert problem.state == "broken"
    assert str(model / "model.safetensors") in problem.detail
    assert problem.hint.startswith(f"Run `chmod -R o+rX {model}`")
    with pytest.raises(UserError, match="The sandbox must read"):
        require_model_fits(iter([problem]), pytest.fail)


def test_a_directory_without_weights_is_broken(model: Path) -> None:
    (model / "model.safetensors").unlink()
    (problem,) = find_problems(model)
    assert "There is neither model.safetensors nor" in problem.detail


@pytest.mark.usefixtures("no_shared_blocks")
def test_a_disk_without_room_for_one_submission_is_broken(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "read_free_disk_bytes", lambda _: GB // 2)
    (problem,) = find_problems(model)
    assert (problem.name, problem.state) == ("disk", "broken")
    assert problem.detail == "0.5 GB free for runs; the copy of a submission takes 0.5 GB"
    with pytest.raises(MachineError, match="GB free for runs"):
        require_model_fits(iter([problem]), pytest.fail)


@pytest.mark.usefixtures("no_shared_blocks")
def test_a_disk_with_room_for_one_submission_is_a_warning(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = (model / "model.safetensors").stat().st_size
    monkeypatch.setattr(machine, "read_free_disk_bytes", lambda _: SPARE_BYTES + size)
    (problem,) = find_problems(model)
    assert (problem.name, problem.state) == ("disk", "missing")
    warnings: list[str] = []
    require_model_fits(iter([problem]), warnings.append)
    assert "The best submission and the next one take" in warnings[0]


@pytest.mark.usefixtures("no_shared_blocks")
def test_a_disk_without_room_for_all_kept_submissions_is_a_warning_with_how_many_fit(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = (model / "model.safetensors").stat().st_size
    monkeypatch.setattr(machine, "read_free_disk_bytes", lambda _: SPARE_BYTES + 10 * size)

    def find_problem(max_submissions: int | None) -> list[PreflightFinding]:
        plan = CopyPlan("all", max_submissions)
        findings = check_model(model, model.parent, "bubblewrap", "scripted", (), plan)
        return [finding for finding in findings if finding.state != "ok"]

    assert not find_problem(10)
    for limit, most in ((11, 11), (None, 1000)):
        (problem,) = find_problem(limit)
        assert (problem.name, problem.state) == ("disk", "missing")
        assert f"--keep all keeps up to {most} submissions, and 10 fit" in problem.hint


def test_where_copies_share_blocks_they_need_no_room(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_preflight, "can_share_blocks", lambda _: True)
    monkeypatch.setattr(machine, "read_free_disk_bytes", lambda _: 0)
    assert not find_problems(model)


@pytest.fixture
def gpu_memory(monkeypatch: pytest.MonkeyPatch) -> dict[str, GpuMemory]:
    """GPU 0 and GPU 1, of which something else fills GPU 0."""
    memory = {"0": GpuMemory(60_000, 80 * GB), "1": GpuMemory(80 * GB, 80 * GB)}
    monkeypatch.setattr(machine, "read_gpu_memory", lambda names: {name: memory[name] for name in names})
    return memory


@pytest.mark.parametrize("engine", ["transformers", "vllm"])
def test_weights_must_fit_into_the_free_memory_of_the_gpu_that_grades_by_default(
    model: Path, gpu_memory: dict[str, GpuMemory], engine: str
) -> None:
    """A grading uses one GPU, with vLLM too."""
    (problem,) = find_problems(model, engine, ("0", "1"))
    assert (problem.name, problem.state) == ("gpu memory", "broken")
    assert problem.detail.startswith("GPU 0: 0.0 GB of 80.0 GB free")
    assert "stop what fills this one" in problem.hint
    with pytest.raises(MachineError, match="GPU 0: "):
        require_model_fits(iter([problem]), pytest.fail)
    gpu_memory["0"] = GpuMemory(60_000, 60_000)
    (problem,) = find_problems(model, engine, ("0", "1"))
    assert "take a smaller model" in problem.hint
    assert not find_problems(model, "scripted:package.module:function", ("0",))


def test_another_gpu_without_room_is_a_warning(model: Path, gpu_memory: dict[str, GpuMemory]) -> None:
    (problem,) = find_problems(model, "transformers", ("1", "0"))
    assert (problem.name, problem.state) == ("gpu memory", "missing")
    warnings: list[str] = []
    require_model_fits(iter([problem]), warnings.append)
    assert warnings[0].startswith("GPU 0: 0.0 GB of 80.0 GB free")
    assert "only if an agent names it" in warnings[0]


@pytest.mark.usefixtures("gpu_memory")
def test_a_run_checks_only_the_gpus_that_grade(
    launcher: RunLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.setenv("AGENT2RL_CACHE", str(launcher.cache))
    spec = RunSpec(
        task="gsm8k-mini",
        agent="nop",
        model="seedling",
        engine="transformers",
        sandbox="local",
        budget=Budget(wall_seconds=1),
    )

    def prepare(spec: RunSpec) -> None:
        with Recorder.create(launcher.runs, spec, lambda _: None) as recorder:
            task, sandbox = registry.find_task(spec.task), registry.find_sandbox(spec.sandbox)
            prepare_assets(spec, task, sandbox, read_settings(), recorder)

    prepare(spec.model_copy(update={"grading_gpus": "1"}))
    with pytest.raises(MachineError, match="GPU 0: "):
        prepare(spec)


def test_check_with_a_model_says_what_is_wrong_with_it(launcher: RunLauncher, model: Path) -> None:
    done = launcher.cli("check", "--model", str(model), "--json")
    findings = {finding["name"]: finding for finding in json.loads(done.stdout)}
    assert findings["model"]["state"] == "ok", done.stdout
    (model / "model.safetensors").chmod(0)
    done = launcher.cli("check", "--model", str(model), "--json")
    assert done.returncode == 1
    assert any("the sandbox must read" in finding["detail"] for finding in json.loads(done.stdout))
