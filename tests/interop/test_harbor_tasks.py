"""Tasks in Harbor's format, and their verifier. tests/interop/test_with_harbor.py runs them with Harbor."""

import json
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from agent2rl.core.errors import MachineError, UserError
from agent2rl.interop.harbor_export import HarborOptions, export_harbor_task
from agent2rl.interop.harbor_task import HarborGrading, Table, format_toml, read_grading
from agent2rl.interop.harbor_verifier import grade_trial
from agent2rl.models.abacus import MODEL, Abacus
from agent2rl.run.settings import Settings
from tests.helpers.run_launcher import RunLauncher


@pytest.fixture(scope="module")
def task(shared_launcher: RunLauncher) -> Path:
    folder = shared_launcher.home / "gsm8k-mini"
    done = shared_launcher.cli(
        "export", "harbor", "--task", "gsm8k-mini", "-o", str(folder), "--budget", "5m"
    )
    assert done.returncode == 0, done.stderr
    assert str(shared_launcher.cache) in done.stdout  # what the volume is to be filled with
    return folder


@pytest.fixture(scope="module")
def model(task: Path, shared_launcher: RunLauncher) -> Path:
    return shared_launcher.cache / "models" / "abacus"


def read_training_rows(task: Path) -> list[dict[str, str]]:
    """Return what the agent of a task trains on."""
    lines = (task / "environment/workspace/data/train.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def grade(task: Path, model: Path, submission: Path, logs: Path, launcher: RunLauncher) -> dict[str, float]:
    """Grade as the verifier's container does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AGENT2RL_CACHE", str(launcher.cache))
        grade_trial(task / "tests", submission, model, logs)
    reward: dict[str, float] = json.loads((logs / "reward.json").read_text())
    return reward


def test_a_task_has_what_harbor_needs(task: Path) -> None:
    config = tomllib.loads((task / "task.toml").read_text())
    assert config["task"]["name"] == "agent2rl/gsm8k-mini"
    assert config["agent"] == {"timeout_sec": 300.0, "user": "agent"}
    assert config["verifier"]["environment_mode"] == "separate"
    assert config["environment"]["network_mode"] == "no-network"
    assert config["artifacts"] == ["/workspace/output/final"]
    assert "/workspace/output/final" in (task / "instruction.md").read_text()
    for side in ("environment", "tests"):
        compose = (task / side / "docker-compose.yaml").read_text()
        assert "read_only: true" in compose
        assert "target: /models/base" in compose
    assert (task / "tests" / "test.sh").stat().st_mode & 0o111


def test_the_side_of_the_agent_has_no_evaluation_data_and_no_code_that_makes_it(task: Path) -> None:
    package = task / "environment" / "package" / "agent2rl"
    assert [path.name for path in (package / "tasks").iterdir()] == ["__init__.py"]
    assert (task / "tests" / "package" / "agent2rl" / "tasks" / "gsm8k" / "mini.py").is_file()
    program = "from agent2rl.registry import find_task; find_task('gsm8k-mini')"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": str(package.parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "gsm8k-mini" in done.stderr
    rows = read_training_rows(task)
    assert rows
    assert all("train" in row["id"] for row in rows)


def test_a_task_says_nothing_of_this_machine(task: Path, shared_launcher: RunLauncher) -> None:
    written = [path for path in task.rglob("*") if path.is_file() and "package" not in path.parts]
    texts = "".join(path.read_text() for path in written)
    assert str(shared_launcher.home) not in texts
    assert str(shared_launcher.cache) not in texts
    assert not [path for path in task.rglob("*") if path.is_symlink()]


def test_an_export_replaces_nothing(task: Path, shared_launcher: RunLauncher) -> None:
    before = sorted(task.rglob("*"))
    done = shared_launcher.cli("export", "harbor", "--task", "gsm8k-mini", "-o", str(task))
    assert done.returncode == 2
    assert "already exists" in done.stderr
    assert sorted(task.rglob("*")) == before


def test_an_export_that_fails_leaves_nothing(launcher: RunLauncher) -> None:
    target = launcher.home / "new" / "task"
    done = launcher.cli("export", "harbor", "--task", "gsm8k-mini", "--model", "./none", "-o", str(target))
    assert done.returncode == 2
    assert list(launcher.home.rglob("*task*")) == []


def test_a_trained_submission_is_rewarded_with_its_heldout_improvement(
    task: Path, model: Path, tmp_path: Path, shared_launcher: RunLauncher
) -> None:
    rows = read_training_rows(task)[:100]
    trained = Abacus.load(model)
    trained.fit([row["question"] for row in rows], [row["answer"] for row in rows], seed=0)
    (tmp_path / "final").mkdir()
    trained.save(tmp_path / "final")
    reward = grade(task, model, tmp_path / "final", tmp_path / "logs", shared_launcher)
    assert reward["scored"] == 1
    assert reward["reward"] > 0.2
    assert reward["score"] == pytest.approx(reward["baseline"] + reward["reward"])
    result = json.loads((tmp_path / "logs" / "agent2rl.json").read_text())
    assert result["ending"] == "completed"


def test_no_submission_is_worth_nothing(
    task: Path, model: Path, tmp_path: Path, shared_launcher: RunLauncher
) -> None:
    reward = grade(task, model, tmp_path / "final", tmp_path / "logs", shared_launcher)
    assert reward == {"reward": 0.0, "scored": 0}


@pytest.mark.parametrize(
    ("task_name", "engine", "message"),
    [
        ("alpacaeval", "transformers", "scored by a judge"),
        ("gsm8k-mini", "steam", "Known engines|There is no engine"),
        ("gsm9k", "transformers", "There is no task"),
    ],
)
def test_what_cannot_be_graded_there_is_refused_and_leaves_nothing(
    task_name: str, engine: str, message: str, tmp_path: Path
) -> None:
    options = HarborOptions(task_name, "abacus", engine, wall_seconds=60, grading_seconds=60)
    with pytest.raises(UserError, match=message):
        export_harbor_task(options, tmp_path / "new", Settings(tmp_path / "runs", tmp_path / "cache"), print)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.thorough
def test_a_refused_submission_is_worth_nothing_and_a_link_leads_nowhere(
    task: Path, model: Path, tmp_path: Path, shared_launcher: RunLauncher
) -> None:
    (tmp_path / "final").mkdir()
    (tmp_path / "final" / "model.safetensors").symlink_to(model / "model.safetensors")
    reward = grade(task, model, tmp_path / "final", tmp_path / "logs", shared_launcher)
    assert reward == {"reward": 0.0, "scored": 0}
    (log,) = (tmp_path / "logs" / "runs").glob("*/agent.log")
    assert "link" in log.read_text()


def test_another_base_model_is_an_error_and_no_reward(task: Path, model: Path, tmp_path: Path) -> None:
    shutil.copytree(model, tmp_path / "model")
    (tmp_path / "model" / "more.txt").write_text("more")
    with pytest.raises(MachineError, match="not abacus, with which the task was exported"):
        grade_trial(task / "tests", tmp_path, tmp_path / "model", tmp_path / "logs")
    assert not (tmp_path / "logs" / "reward.json").exists()


def test_import_runs_the_agent_of_an_exported_task(task: Path, shared_launcher: RunLauncher) -> None:
    done = shared_launcher.cli("import", "harbor", str(task), "--agent", "nop", "--json", "--no-report")
    assert done.returncode == 0, done.stderr
    spec = json.loads(done.stdout)["spec"]
    assert (spec["task"], spec["model"], spec["budget"]["wall_seconds"]) == ("gsm8k-mini", "abacus", 300.0)


def test_import_refuses_other_tasks_and_says_what_they_need(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"not a Harbor task: it has no task\.toml"):
        read_grading(tmp_path)
    (tmp_path / "task.toml").write_text('schema_version = "1.4"\n[environment]\ndocker_image = "alpine"\n')
    with pytest.raises(UserError, match="a container image"):
        read_grading(tmp_path)
    (tmp_path / "task.toml").write_text("[")
    with pytest.raises(UserError, match="Cannot read"):
        read_grading(tmp_path)


def test_import_refuses_a_grading_of_another_version(task: Path, tmp_path: Path) -> None:
    shutil.copy(task / "task.toml", tmp_path)
    (tmp_path / "tests").mkdir()
    grading = json.loads((task / "tests" / "grading.json").read_text())
    (tmp_path / "tests" / "grading.json").write_text(json.dumps({**grading, "format": 2}))
    with pytest.raises(UserError, match="another version of agent2rl wrote it"):
        read_grading(tmp_path)


def test_a_table_is_read_as_it_was_written() -> None:
    table: Table = {"a": 'quote " \\ \x7f \n é', "b": [1, 2.5, True], "c": {"d": "e"}}
    assert tomllib.loads(format_toml({"": {"x": 1}, "t": table})) == {"x": 1, "t": table}


def test_the_grading_of_a_task_is_a_strict_record(task: Path) -> None:
    grading = read_grading(task)
    assert HarborGrading.model_validate_json(grading.model_dump_json()) == grading
    assert grading.model == MODEL.id
