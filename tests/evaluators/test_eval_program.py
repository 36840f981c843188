"""`eval.py` of the workspace: it grades training games as the grader does, with any engine."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from agent2rl.core.engine import Sampling
from agent2rl.evaluators.episodes import Episodes
from tests.helpers.stairs_environment import STAIRS_PROMPT, StairsEnvironment

ROOT = Path(__file__).resolve().parents[2]
WORLD = """\
from agent2rl.core.environment import World
from tests.helpers.stairs_environment import STAIRS_EXAMPLES, StairsEnvironment

def WORLD(data):
    return World(tuple(STAIRS_EXAMPLES), environment=StairsEnvironment)
"""
ENGINE = """\
from agent2rl.core.engine import Completion

class OneWordEngine:
    def __init__(self, files):
        self.word = (files / "word.txt").read_text()

    def generate(self, chats, sampling):
        return [Completion(self.word, tokens=1) for chat in chats]

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

ENGINE = OneWordEngine
"""


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """A workspace with an eval.py, a world, and somebody's own engine on the import path."""
    evaluator = Episodes("stairs-1", StairsEnvironment, STAIRS_PROMPT, "kind", Sampling(16, stop=("\n",)))
    files = {
        "eval.py": evaluator.export_program(),
        "data/world.json": '{"world": "own_world:WORLD"}',
        "plugins/own_world.py": WORLD,
        "plugins/own_engine.py": ENGINE,
        "model/word.txt": "up",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def run_eval(workspace: Path, *options: str) -> subprocess.CompletedProcess[str]:
    environment = {"DATA_PATH": str(workspace / "data"), "PYTHONPATH": f"{workspace / 'plugins'}:{ROOT}"}
    return subprocess.run(
        [sys.executable, "eval.py", "model", *options],
        cwd=workspace,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )


def test_an_engine_of_the_users_own_is_named_by_module_and_attribute(workspace: Path) -> None:
    done = run_eval(
        workspace, "--engine", "own_engine:ENGINE", "--games", "7", "--episodes", "episodes.jsonl"
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {"score": pytest.approx(100 * 6 / 7)}
    episodes = [json.loads(line) for line in (workspace / "episodes.jsonl").read_text().splitlines()]
    actions = [[turn["action"] for turn in episode["trajectory"]] for episode in episodes]
    assert actions == [["", *["up"] * min(goal, 6)] for goal in range(1, 8)]


def test_an_engine_that_does_not_exist_is_named_with_those_that_do(workspace: Path) -> None:
    done = run_eval(workspace, "--engine", "parrot")
    assert done.returncode != 0
    assert "'parrot'" in done.stderr
    assert "transformers" in done.stderr
