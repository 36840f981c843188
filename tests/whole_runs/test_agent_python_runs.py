"""Whole runs of agents that have a Python environment of their own."""

import json
import shutil
from pathlib import Path

import pytest

from agent2rl.record.reader import read_run
from tests.helpers.python_environments import add_package, get_packages, make_conda_prefix, make_venv
from tests.helpers.run_launcher import RunLauncher

LOOK = """
import importlib.util
import tiny

def write(path):
    try:
        path.write_text("")
        return "written"
    except OSError as error:
        return error.strerror

LOAD = "import sys, agent2rl.models.abacus; print(sys.prefix)"
own = subprocess.run([os.environ["AGENT2RL_PYTHON"], "-c", LOAD], capture_output=True, text=True)
say(
    prefix=sys.prefix,
    which=shutil.which("python"),
    word=tiny.WORD,
    variables={name: os.environ.get(name) for name in ("VIRTUAL_ENV", "CONDA_PREFIX")},
    libraries=[name for name in ("agent2rl", "numpy") if importlib.util.find_spec(name)],
    programs=[name for name in ("agent2rl", "pytest") if shutil.which(name)],
    write=write(pathlib.Path(tiny.__file__)),
    agent2rl_at=own.stdout.strip(),
    instructions=(WORKSPACE / "instructions.md").read_text(),
    packages=(WORKSPACE / "installed_packages.txt").read_text().splitlines(),
)
"""
TRAIN = """
code = pathlib.Path("code/train.py")
code.write_text(open(__file__).read().partition("# train")[0] + "\\ntrained('v1')")
subprocess.run([os.environ["AGENT2RL_PYTHON"], code], check=True)
say(verdict=submit("output/v1")["verdict"])
"""


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    place = make_venv(tmp_path / "agents" / "env")
    add_package(place, "tiny", "1.2", "WORD = 'its own'")
    return place


def test_an_agent_sees_its_own_packages_and_trains_with_those_of_the_harness(
    launcher: RunLauncher, environment: Path
) -> None:
    add_package(environment, "peft", "0.18.0")
    run = launcher.run("# train" + LOOK + TRAIN, "--agent-python", str(environment))
    said = run.said
    assert run.result.ending == "completed", run.log
    assert (said["prefix"], said["which"]) == (str(environment), f"{environment}/bin/python")
    assert (said["word"], said["libraries"], said["programs"]) == ("its own", [], [])
    assert said["variables"] == {"VIRTUAL_ENV": str(environment), "CONDA_PREFIX": None}
    assert said["write"] in ("Read-only file system", "Permission denied")
    assert said["agent2rl_at"]
    assert said["verdict"] == "scored"
    told = " ".join(said["instructions"].split())
    assert "with peft 0.18.0. Not installed: torch, transformers, trl, accelerate" in told
    assert "It does not have the package `agent2rl`." in told
    assert said["packages"][1:] == ["peft==0.18.0", "tiny==1.2"]
    view = read_run(run.paths)
    assert view.agent_python is not None
    assert view.agent_python.packages == ("peft==0.18.0", "tiny==1.2")
    assert view.spec.agent_python == str(environment)
    assert view.spec.agent_python_lock == view.agent_python.sha256
    assert launcher.cli("verify", run.result.run_id).returncode == 0
    launcher.report(run)
    assert (
        f"peft 0.18.0, 2 packages, lock {view.agent_python.sha256[:12]}" in run.paths.report_page.read_text()
    )


def test_a_conda_prefix_is_the_agents_python(launcher: RunLauncher, tmp_path: Path) -> None:
    prefix = make_conda_prefix(tmp_path / "conda" / "envs" / "trl")
    add_package(prefix, "tiny", "1.2", "WORD = 'its own'")
    run = launcher.run(LOOK, "--agent-python", str(prefix))
    assert run.result.ending == "completed", run.log
    assert (run.said["prefix"], run.said["word"], run.said["libraries"]) == (str(prefix), "its own", [])
    assert run.said["variables"] == {"VIRTUAL_ENV": None, "CONDA_PREFIX": str(prefix)}
    python = read_run(run.paths).agent_python
    assert python is not None
    assert python.kind == "conda"


def test_evaluation_data_in_an_agents_own_copy_of_agent2rl_is_hidden(
    launcher: RunLauncher, environment: Path
) -> None:
    copy = add_package(environment, "agent2rl", "0.1.0")
    (copy / "tasks").mkdir()
    (copy / "tasks" / "answers.jsonl").write_text("42\n")
    look = "import agent2rl; place = pathlib.Path(agent2rl.__file__).parent\n"
    say = "say(place=str(place), tasks=os.listdir(place / 'tasks'))"
    run = launcher.run(look + say, "--agent-python", str(environment))
    assert run.said == {"place": str(copy), "tasks": []}, run.log


@pytest.mark.thorough
def test_shipped_agents_run_with_the_python_that_has_their_package(
    launcher: RunLauncher, environment: Path
) -> None:
    command = ("run", "--task", "gsm8k-mini", "--agent", "script", "--json", "--no-report")
    done = launcher.cli(*command, "--agent-python", str(environment))
    result = json.loads(done.stdout)
    assert (result["ending"], result["scored"] > 0) == ("completed", True), result["reason"]


def test_a_wrong_environment_is_refused_before_a_run_exists(launcher: RunLauncher, environment: Path) -> None:
    shutil.rmtree(environment / "bin")
    done = launcher.cli("run", "--task", "gsm8k-mini", "--agent", "nop", "--agent-python", str(environment))
    assert done.returncode == 2
    assert "has no interpreter" in done.stderr
    assert not launcher.runs.exists()


def test_an_interpreter_that_does_not_start_in_the_sandbox_fails_the_run_at_once(
    launcher: RunLauncher, environment: Path
) -> None:
    (get_packages(environment) / "sitecustomize.py").write_text("import os; os._exit(3)\n")
    run = launcher.run("say(started=True)", "--agent-python", str(environment))
    assert run.result.ending == "failed"
    assert "does not start in the sandbox" in run.result.reason
    assert run.result.assets == ()
    assert run.said == {}
