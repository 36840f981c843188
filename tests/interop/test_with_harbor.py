"""An exported task, run by Harbor itself: its agent, its artifacts, its separate verifier, our grader.

The containers are bubblewrap's (bubblewrap_container.py), because this suite must not need Docker. They see
the packages of this Python in place of those that the Dockerfile installs.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agent2rl.interop.harbor_task import SUBMISSION
from tests.helpers.run_launcher import RunLauncher

pytestmark = pytest.mark.interop
ROOT = Path(__file__).resolve().parents[2]
CONTAINER = "tests.interop.bubblewrap_container:BubblewrapContainer"
TRAIN = f"""#!/bin/bash
set -euo pipefail
python - <<'PROGRAM'
import json, os, pathlib
from agent2rl.models.abacus import Abacus
rows = [json.loads(line) for line in open(os.environ["DATA_PATH"] + "/train.jsonl")][:100]
model = Abacus.load(pathlib.Path(os.environ["MODEL_PATH"]))
model.fit([row["question"] for row in rows], [row["answer"] for row in rows], seed=0)
target = pathlib.Path("{SUBMISSION}")
target.mkdir(parents=True)
model.save(target)
assert not pathlib.Path("/tests").exists()
PROGRAM
"""


@pytest.fixture(scope="module")
def task(shared_launcher: RunLauncher) -> Path:
    folder = shared_launcher.home / "gsm8k-mini"
    done = shared_launcher.cli("export", "harbor", "--task", "gsm8k-mini", "-o", str(folder))
    assert done.returncode == 0, done.stderr
    return folder


def run_trial(task: Path, jobs: Path, launcher: RunLauncher) -> dict[str, Any]:
    """Let Harbor run its oracle agent, which runs solution/solve.sh, and return the trial's result."""
    (volume,) = (
        line.split()[-1]
        for line in (task / "tests" / "docker-compose.yaml").read_text().splitlines()
        if "name: agent2rl-" in line
    )
    volumes = json.dumps({volume: str(launcher.cache / "models" / "abacus")})
    command = [str(Path(sys.executable).with_name("harbor")), "run", "--path", str(task), "--agent", "oracle"]
    command += ["-e", CONTAINER, "--ek", f"volumes={volumes}", "-o", str(jobs), "-n", "1", "-q", "--yes"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (result,) = jobs.glob("*/*/result.json")
    parsed: dict[str, Any] = json.loads(result.read_text())
    assert parsed["exception_info"] is None, parsed["exception_info"]
    return parsed


def test_its_model_of_a_task_accepts_the_folder(task: Path) -> None:
    harbor_task = pytest.importorskip("harbor.models.task.task")
    read = harbor_task.Task(task)
    assert read.name == "agent2rl/gsm8k-mini"
    assert read.config.verifier.environment_mode.value == "separate"


def test_the_untouched_base_model_earns_nothing(
    task: Path, tmp_path: Path, shared_launcher: RunLauncher
) -> None:
    rewards = run_trial(task, tmp_path, shared_launcher)["verifier_result"]["rewards"]
    assert rewards == {"reward": 0.0, "scored": 0}


def test_a_model_that_was_trained_in_the_container_earns_its_improvement(
    task: Path, tmp_path: Path, shared_launcher: RunLauncher
) -> None:
    (task / "solution" / "solve.sh").write_text(TRAIN)
    rewards = run_trial(task, tmp_path, shared_launcher)["verifier_result"]["rewards"]
    assert rewards["scored"] == 1
    assert rewards["reward"] > 0.2
    assert rewards["score"] == pytest.approx(rewards["baseline"] + rewards["reward"])
