"""A world as a package for verifiers, loaded and evaluated by verifiers itself, with the scripted LLM."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from agent2rl.run.task_data import open_training_world
from tests.helpers.run_launcher import RunLauncher

pytestmark = pytest.mark.interop
NAME = "agent2rl-alfworld-mini"


@pytest.fixture(scope="module")
def packages(shared_launcher: RunLauncher) -> Path:
    """The folder of the exported package, for the import path."""
    folder = shared_launcher.home / "alfworld-mini"
    done = shared_launcher.cli("export", "verifiers", "--task", "alfworld-mini", "-o", str(folder))
    assert done.returncode == 0, done.stderr
    return folder


def write_expert_script(path: Path) -> int:
    """Write a script that wins the first training game, and return the number of its actions."""
    with open_training_world("alfworld-mini", None) as (_, world):
        assert world.expert is not None
        environment, expert = world.environment(), world.expert()
        step, actions = environment.reset(world.games[0]), []
        while not step.done:
            actions.append(expert.act(step.observation))
            step = environment.step(actions[-1])
    steps = "".join(f"\n[[step]]\nsay = {json.dumps(action)}\n" for action in actions)
    path.write_text(f'about = "Plays one game."\naudience = "anyone"\n{steps}')
    return len(actions)


@contextmanager
def serve_script(script: Path, launcher: RunLauncher) -> Iterator[str]:
    command = launcher.command("driver", "scripted", str(script))
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=launcher.environment()) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline().strip()
        finally:
            server.terminate()


def test_it_loads_the_environment(packages: Path) -> None:
    program = (
        "import verifiers.v1 as vf\n"
        "from verifiers.v1.utils.loaders import resolve_env_config\n"
        f"env = vf.load_environment(resolve_env_config({{'taskset': {{'id': '{NAME}'}}}}))\n"
        "print(type(env).__name__, len(list(env.taskset)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(packages)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows = (packages / "agent2rl_alfworld_mini" / "data" / "train.jsonl").read_text().splitlines()
    assert done.stdout.split() == ["WorldEnv", str(len(rows))]


@pytest.mark.skipif(
    shutil.which("uv", path=str(Path(sys.executable).parent)) is None, reason="its chat program needs uv"
)
def test_its_own_evaluation_plays_and_rewards_a_game(
    packages: Path, shared_launcher: RunLauncher, tmp_path: Path
) -> None:
    actions = write_expert_script(tmp_path / "script.toml")
    binaries = str(Path(sys.executable).parent)
    with serve_script(tmp_path / "script.toml", shared_launcher) as url:
        command = [f"{binaries}/vf-eval", NAME, "-n", "1", "--model", "scripted", "--no-push", "--no-rich"]
        client = ["--client.base-url", f"{url}/v1", "--client.api-key-var", "SCRIPT_KEY"]
        done = subprocess.run(
            [*command, *client, "-o", str(tmp_path / "out")],
            env={
                **os.environ,
                "PATH": f"{binaries}:{os.environ['PATH']}",
                "PYTHONPATH": str(packages),
                "SCRIPT_KEY": "none",
            },
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    (file,) = (tmp_path / "out").rglob("traces.jsonl")
    (line,) = file.read_text().splitlines()
    assert '"world_reward"' in line
    trace = find_trace(json.loads(line))
    assert trace["rewards"]["world_reward"]["score"] == 1.0
    assert trace["metrics"] == {"won": 1.0, "steps": float(actions)}
    assert trace["errors"] == []


def find_trace(record: dict[str, Any]) -> dict[str, Any]:
    """Return the trace of a line: the line itself, or the only trace of its episode."""
    if "rewards" in record:
        return record
    (trace,) = record["traces"]
    return dict(trace)
