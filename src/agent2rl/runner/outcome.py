"""What is known of a run so far. A result can be made of it at any point, and says no more than is known."""

import time
from dataclasses import dataclass, field
from pathlib import Path

from agent2rl.core.llm import Usage
from agent2rl.core.records import (
    Asset,
    Clock,
    Comparison,
    ContaminationSummary,
    Ending,
    Isolation,
    JudgeUse,
    Rollouts,
    RunResult,
    RunSpec,
    Score,
    Submission,
)
from agent2rl.grading.service import Service
from agent2rl.runner.driving import Driving
from agent2rl.runner.rounds import Ended

ENDINGS: dict[str, Ending] = {
    "deadline": "deadline",
    "stopped": "interrupted",
    "memory": "out-of-memory",
    "processes": "too-many-processes",
    "disk": "disk-full",
}


LAST_WORDS = 4000


@dataclass
class Outcome:
    run_id: str
    spec: RunSpec
    started_at: float = field(default_factory=time.time)
    ending: Ending = "failed"
    reason: str = ""
    isolation: Isolation | None = None
    assets: tuple[Asset, ...] = ()
    baseline: Score | None = None
    best: Submission | None = None
    baseline_heldout: Score | None = None
    best_heldout: Score | None = None
    heldout: Comparison | None = None
    submissions: int = 0
    scored: int = 0
    clock: Clock | None = None
    contamination: ContaminationSummary | None = None
    rollouts: Rollouts | None = None
    train_judge: JudgeUse | None = None
    usage: Usage | None = None
    judge_usage: Usage | None = None
    rounds: int = 0

    def agent_ended(self, ended: Ended, driving: Driving, service: Service, log: Path) -> None:
        """The agent is gone and everything it submitted has its verdict."""
        last, blame = ended.last, driving.blame()
        gave_up = last.reason in ("exited", "stopped") and last.code != 0
        in_vain = last.reason == "deadline" and not driving.answered()
        if blame and (gave_up or in_vain):
            self.ending, self.reason = blame
            self.reason += _last_words(log)
        elif last.reason == "exited" and last.code != 0:
            self.ending = "agent-failed"
            self.reason = (
                f"The agent ended with exit code {last.code}; agent.log says more.{_last_words(log)}"
            )
        elif last.reason == "exited":
            self.ending, self.reason = "completed", ""
        else:
            self.ending, self.reason = ENDINGS[last.reason], last.detail
        self.rounds, self.usage = ended.rounds, driving.usage()
        self.best = service.best()
        self.submissions = len(service.submissions())
        self.scored = sum(submission.verdict == "scored" for submission in service.submissions())
        self.clock = service.clock(ended.wall_seconds)

    def failed(self, reason: str) -> None:
        self.ending = "failed"
        self.reason = reason

    def result(self) -> RunResult:
        score, improvement, gap = None, None, None
        if self.best and self.spec.protocol == "paper":
            score = self.best.score.value if self.best.score else None
            improvement = self.best.improvement
        elif self.best and self.best_heldout and self.heldout and self.best.improvement is not None:
            score = self.best_heldout.value
            improvement = self.heldout.improvement
            gap = self.best.improvement - improvement
        return RunResult(
            run_id=self.run_id,
            spec=self.spec,
            ending=self.ending,
            reason=self.reason,
            started_at=self.started_at,
            ended_at=time.time(),
            isolation=self.isolation,
            assets=self.assets,
            baseline=self.baseline,
            best=self.best,
            baseline_heldout=self.baseline_heldout,
            best_heldout=self.best_heldout,
            heldout=self.heldout,
            optimism_gap=gap,
            score=score,
            improvement=improvement,
            submissions=self.submissions,
            scored=self.scored,
            clock=self.clock,
            contamination=self.contamination,
            rollouts=self.rollouts,
            train_judge=self.train_judge,
            usage=self.usage,
            judge_usage=self.judge_usage,
            rounds=self.rounds,
        )


def _last_words(log: Path) -> str:
    """Why an agent failed stands in its log, most likely at the end."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - LAST_WORDS))
        lines = file.read().decode(errors="replace").split("\n")
    said = [line.strip() for line in lines if line.strip()]
    return f" Its last line: {said[-1][:300]}" if said else ""
