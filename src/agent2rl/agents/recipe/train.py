"""The recipe's program: train, submit, read the score, and continue from the best model until time is up.

It runs inside the sandbox and has what any agent has: the workspace, the grading API and this Python. A round
is SFT or GRPO from the best model so far; a long GRPO also submits halfway. A model that does not improve is
deleted, and after a round without improvement the next one of its kind uses half the learning rate.
In mode rl-oriented, the SFT model is not submitted: it would break the mode if GRPO did not beat it.
`subjects` has the training data.
"""

import json
import os
import shutil
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from pathlib import Path
from typing import Any

from agent2rl.agents.recipe import plan
from agent2rl.agents.recipe.subjects import (
    PolicyLearner,
    QuestionSubject,
    TrainingRound,
    TrainingSubject,
    WorldSubject,
)
from agent2rl.core.errors import Agent2RLError, UserError
from agent2rl.core.records import Mode
from agent2rl.environments.adapters import StepsUsedUp
from agent2rl.environments.adapters.episodes import WORLD_FILE
from agent2rl.training import models
from agent2rl.training.optimizer import TrainingSchedule

# Client of the grading API


def submit_model(path: Path) -> dict[str, Any]:
    """Submit a model and return the grader's answer; empty if the submission was refused."""
    try:
        answer = call_grading_api("/submit", {"model_path": str(path)})
    except urllib.error.HTTPError as error:
        print(f"{path.name}: {error.read().decode(errors='replace')}", flush=True)
        return {}
    print(
        f"{path.name}: {answer['verdict']}, score {format_score(answer['score'])}. {answer['message']}",
        flush=True,
    )
    return answer


def format_score(score: float | None) -> str:
    return "none" if score is None else f"{score:.2f}"


def fetch_remaining_seconds() -> float:
    """Return the seconds until the end; 0 if no submission, or no step in the task's world, is left."""
    clock = call_grading_api("/time")
    spent = 0 in (clock["submissions_left"], clock["environment_steps_left"])
    return 0.0 if spent else float(clock["remaining"])


def is_last_submission() -> bool:
    """Check whether exactly one submission is left."""
    return bool(call_grading_api("/time")["submissions_left"] == 1)


def call_grading_api(path: str, body: dict[str, str] | None = None) -> dict[str, Any]:
    request = urllib.request.Request(
        os.environ["GRADING_SERVER_URL"] + path,
        None if body is None else json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as response:
        answer: dict[str, Any] = json.load(response)
        return answer


# Rounds of training

FIRST_COST = 0.1
"""Estimated share of the budget for loading, saving and grading, until the first round measures it."""
HALF = 0.5


@dataclass(frozen=True)
class RecipeJob:
    """The job, as the workspace and the environment describe it."""

    subject: TrainingSubject
    base: Path
    output: Path
    progress: Path
    seed: int
    mode: Mode

    @classmethod
    def read(cls) -> "RecipeJob":
        workspace, data = Path(os.environ["WORKSPACE"]), Path(os.environ["DATA_PATH"])
        subject: type[WorldSubject | QuestionSubject] = (
            WorldSubject if (data / WORLD_FILE).is_file() else QuestionSubject
        )
        meta = json.loads((workspace / "run_meta.json").read_text(encoding="utf-8"))
        return cls(
            subject=subject.read(workspace, data),
            base=Path(os.environ["MODEL_PATH"]),
            output=Path(os.environ["OUTPUT_DIR"]),
            progress=workspace / "progress.jsonl",
            seed=meta["seed"],
            mode=meta["mode"],
        )

    @property
    def first(self) -> float:
        """The share of the first round."""
        return plan.FIRST_ROUND_SHARE_IN_WORLD if isinstance(self.subject, WorldSubject) else plan.ROUND_SHARE

    @property
    def submits_warm_up(self) -> bool:
        return self.mode != "rl-oriented"

    def derive_round_seed(self, number: int) -> int:
        return 1000 * self.seed + number


@dataclass
class BestModel:
    """The best model so far: at first the untouched one, with a score that the first answer reports."""

    job: RecipeJob
    path: Path
    score: float | None = None

    def submit_candidate(self, path: Path) -> None:
        """Submit a model; it becomes the best if its score is higher, and is deleted otherwise."""
        answer = submit_model(path)
        won = beats_best_score(answer, self.score)
        delete_checkpoint(self.path if won else path, self.job)
        if won:
            self.path, self.score = path, answer["score"]

    def continue_from(self, path: Path) -> None:
        """Let the next round start from a model that is not submitted."""
        self.path = path


def main() -> None:
    job = RecipeJob.read()
    leader = BestModel(job, job.base)
    factors = {"sft": 1.0, "grpo": 1.0}
    cost = FIRST_COST * fetch_remaining_seconds()
    for number, stage in enumerate(order_stages(sys.argv[1:], job.subject, job.mode), start=1):
        remaining = fetch_remaining_seconds()
        submissions = plan.count_submissions(stage, remaining, cost)
        seconds = plan.plan_training_seconds(remaining, submissions * cost, job.first if number == 1 else 0.0)
        if not seconds:
            break
        is_warm_up = stage == "sft" and "grpo" in sys.argv[1:]
        is_submitted = job.submits_warm_up or not is_warm_up
        if not is_submitted and not plan.leaves_another_round(remaining, seconds, cost):
            print(f"skipping {stage}: there is no time for GRPO after it", flush=True)
            continue
        path, factor = job.output / f"{number}-{stage}", factors[stage]
        this_round = TrainingRound(
            number,
            stage,
            leader.path,
            path,
            seconds,
            factor,
            job.derive_round_seed(number),
            job.progress,
            submits_halfway=submissions > 1,
            is_warm_up=is_warm_up,
        )
        print(
            f"round {number}: {stage} from {this_round.start.name}, {seconds:.0f} s, rate x {factor:g}",
            flush=True,
        )
        began, before = time.monotonic(), leader.score
        trained = train_round(job.subject, this_round, leader)
        if trained is None:
            print(f"round {number}: not enough time for a step", flush=True)
            break
        if trained and is_submitted:
            leader.submit_candidate(this_round.path)
            cost = (time.monotonic() - began - trained) / submissions
        elif trained:
            leader.continue_from(this_round.path)
            cost = max(cost, time.monotonic() - began - trained)  # grading is not measured yet
        if leader.score == before:
            factors[stage] /= 2
    print(f"the end: best is {leader.path.name} with {format_score(leader.score)}", flush=True)


def order_stages(wanted: Sequence[str], subject: TrainingSubject, mode: Mode = "free") -> Iterator[str]:
    """Yield each stage once, then repeat the last one."""
    possible = subject.stages(wanted)
    if mode == "rl-oriented" and possible[-1] != "grpo":
        raise UserError("This task has no eval.py, so there is no reward for RL.", "Choose another mode.")
    return chain(possible, repeat(possible[-1]))


def train_round(subject: TrainingSubject, this_round: TrainingRound, leader: BestModel) -> float | None:
    """Train and save; return the training seconds, 0 if it failed, None if there was no time."""
    learner = PolicyLearner(*models.load(this_round.start))
    began = time.monotonic()

    half = this_round.path.with_name(f"{this_round.path.name}-half")
    submitted_halfway = False

    def submit_halfway(schedule: TrainingSchedule) -> None:
        """Submit once, in the middle, unless there is only one submission left for the end."""
        nonlocal submitted_halfway
        if (
            submitted_halfway
            or not this_round.submits_halfway
            or schedule.share < HALF
            or is_last_submission()
        ):
            return
        submitted_halfway = True
        models.save(learner.model, learner.tokenizer, half)
        leader.submit_candidate(half)

    try:
        spent = (
            subject.sft(this_round, learner)
            if this_round.stage == "sft"
            else subject.grpo(this_round, learner, submit_halfway)
        )
    except StepsUsedUp as error:
        print(f"round {this_round.number}: {error}", flush=True)
        spent = time.monotonic() - began  # keep the model as trained so far
    except Agent2RLError as error:
        print(f"round {this_round.number}: {error}", flush=True)
        return 0.0
    if spent:
        models.save(learner.model, learner.tokenizer, this_round.path)
    return spent


def delete_checkpoint(path: Path, job: RecipeJob) -> None:
    """Free disk space: submitted models have been copied."""
    if path != job.base and path.exists():
        shutil.rmtree(path)


def beats_best_score(answer: dict[str, Any], score: float | None) -> bool:
    """Check whether a submission beats the best so far, which at first is the untouched model."""
    floor = answer.get("baseline_score") if score is None else score
    return floor is not None and answer.get("score") is not None and answer["score"] > floor


if __name__ == "__main__":
    main()
