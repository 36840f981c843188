"""Grade the submission of a Harbor trial and write its reward. Runs in the verifier's container.

The grading is a run of agent2rl whose agent submits the directory and does nothing else. So the submission is
frozen, checked, traced and graded on the held-out split exactly as in any run. Without a submission, or with
one that the grader refuses, the reward is 0. If the grader fails, no reward is written, and Harbor reports
an error: a failure is never a number.
"""

import os
import stat
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from agent2rl.core.errors import Agent2RLError, GradingError, MachineError
from agent2rl.core.grading_records import Submission
from agent2rl.core.records import Record, RunResult
from agent2rl.grading.freeze import compute_manifest
from agent2rl.interop.harbor_task import GRADING_FILE, MODEL_PATH, SUBMISSION, HarborGrading
from agent2rl.record.files import write_atomically, write_record
from agent2rl.record.paths import RunPaths
from agent2rl.record.reader import read_run

COPY_SECONDS = 3600
"""Time for copying the submission into the run; its grading does not count."""


class HarborReward(Record):
    """What Harbor reads: /logs/verifier/reward.json. All values are numbers; unknown ones are left out."""

    reward: float
    """Improvement on the held-out split, as a share."""
    scored: int
    """1 if the submission counts, else 0."""
    score: float | None = None
    baseline: float | None = None


def grade_trial(tests: Path, submission: Path, model: Path, logs: Path) -> HarborReward:
    """Grade the submission and write the reward and the run's result below `logs`."""
    grading = HarborGrading.model_validate_json((tests / GRADING_FILE).read_bytes())
    logs.mkdir(parents=True, exist_ok=True)
    _require_model(grading, model)
    if not submission.is_dir() or submission.is_symlink():
        print(f"There is no submission: {submission} is not a directory.", flush=True)
        reward = HarborReward(reward=0.0, scored=0)
    else:
        _make_readable(submission)
        result = _run_grading(grading, tests, submission, model, logs)
        write_record(logs / "agent2rl.json", result)
        run = read_run(RunPaths(logs / "runs" / result.run_id))
        reward = _make_reward(result, run.submissions)
    write_atomically(logs / "reward.json", reward.model_dump_json(exclude_none=True) + "\n")
    return reward


def _require_model(grading: HarborGrading, model: Path) -> None:
    if not model.is_dir() or not any(model.iterdir()):
        raise MachineError(f"There is no base model at {model}.", "Fill the volume: README.md says how.")
    if compute_manifest(model).sha256 != grading.model_sha256:
        raise MachineError(
            f"The model at {model} is not {grading.model}, with which the task was exported.",
            "Fill the volume with the files that README.md names.",
        )


def _make_readable(submission: Path) -> None:
    """Let the sandbox's user read the copy that Harbor made. Links are left alone, and refused later."""
    for path in (submission, *submission.rglob("*")):
        mode = path.lstat().st_mode
        if stat.S_ISDIR(mode) or stat.S_ISREG(mode):
            path.chmod(stat.S_IMODE(mode) | (0o555 if stat.S_ISDIR(mode) else 0o444))


def _run_grading(grading: HarborGrading, tests: Path, submission: Path, model: Path, logs: Path) -> RunResult:
    arguments = [
        *("run", "--task", f"{grading.task}:{tests / 'task'}" if grading.is_folder else grading.task),
        *("--agent", f"submit:{submission}", "--model", str(model), "--engine", grading.engine),
        *("--sandbox", "auto", "--budget", f"{COPY_SECONDS}s", "--clock", "training"),
        *("--grading-time", f"{grading.grading_seconds:g}s", "--seed", str(grading.seed)),
        *("--max-submissions", "1", "--keep", "none", "--no-report", "--json"),
        *(("--data-dir", str(tests / "data")) if grading.has_data else ()),
    ]
    done = subprocess.run(
        [sys.executable, "-m", "agent2rl.cli.main", *arguments],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        env={**os.environ, "AGENT2RL_RUNS": str(logs / "runs")},
    )
    try:
        result = RunResult.model_validate_json(done.stdout)
    except ValidationError:
        raise GradingError(f"The grader failed (exit code {done.returncode}); its output says why.") from None
    if result.ending != "completed":
        raise GradingError(f"The grader failed: {result.ending}: {result.reason}")
    return result


def _make_reward(result: RunResult, submissions: Sequence[Submission]) -> HarborReward:
    """Return the reward of a completed grading; raise GradingError without a score or a refusal."""
    if ungraded := [each for each in submissions if each.verdict not in ("scored", "rejected")]:
        raise GradingError(f"The submission was not graded: {ungraded[0].message}")
    if result.score is None or result.improvement is None:
        return HarborReward(reward=0.0, scored=0)
    baseline = result.baseline_heldout or result.baseline
    return HarborReward(
        reward=result.improvement / 100,
        scored=1,
        score=result.score / 100,
        baseline=baseline.value / 100 if baseline else None,
    )


def main() -> int:
    logs = Path("/logs/verifier")
    try:
        reward = grade_trial(Path("/tests"), Path(SUBMISSION), Path(MODEL_PATH), logs)
    except (Agent2RLError, OSError, ValidationError) as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return 1
    print(reward.model_dump_json(), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
