"""What is known of a run as it goes on, and the result made of it."""

import time
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Self

from agent2rl.core.grading_records import (
    ContaminationSummary,
    EvalScore,
    HeldoutComparison,
    JudgeUsage,
    PanelResult,
    Submission,
)
from agent2rl.core.llm import LlmUsage
from agent2rl.core.network import NetworkUsage
from agent2rl.core.records import Asset, Ending, Isolation, Rollouts, RunResult, RunSpec, TimeBreakdown
from agent2rl.grading.service import GradingService
from agent2rl.record.crash_recovery import AgentEnd, ResumeState
from agent2rl.run.driver_session import DriverSession


@dataclass
class RunOutcome:
    """What is known of a run so far. A result can be made of it at any point."""

    run_id: str
    spec: RunSpec
    started_at: float = field(default_factory=time.time)
    # Until more is known: an error of our own must never pass for a finished run.
    ending: Ending = "failed"
    reason: str = ""
    isolation: Isolation | None = None
    assets: tuple[Asset, ...] = ()
    baseline: EvalScore | None = None
    best: Submission | None = None
    baseline_heldout: EvalScore | None = None
    best_heldout: EvalScore | None = None
    ablated_heldout: EvalScore | None = None
    heldout: HeldoutComparison | None = None
    also: tuple[PanelResult, ...] = ()
    submissions: int = 0
    scored: int = 0
    clock: TimeBreakdown | None = None
    contamination: ContaminationSummary | None = None
    rollouts: Rollouts | None = None
    train_judge: JudgeUsage | None = None
    usage: LlmUsage | None = None
    judge_usage: LlmUsage | None = None
    network: NetworkUsage | None = None
    rounds: int = 0
    resumed: int = 0
    dead_seconds: float = 0.0

    @classmethod
    def from_resume_state(cls, run_id: str, spec: RunSpec, resume_state: ResumeState) -> Self:
        """Return the outcome of a run so far, with what a crashed harness recorded."""
        outcome = cls(run_id, spec, resumed=resume_state.resumed, dead_seconds=resume_state.dead_seconds)
        outcome.started_at = resume_state.opened_at or outcome.started_at
        outcome.baseline = resume_state.baselines.get("feedback")
        outcome.count_submissions(resume_state.submissions.values())
        return outcome

    def record_agent_end(self, end: AgentEnd, driver: DriverSession, service: GradingService) -> None:
        """Fill in the results of the agent's time. All its submissions must have a verdict."""
        self.ending, self.reason, self.rounds = end.ending, end.reason, end.rounds
        self.usage = driver.read_usage()
        self.best = service.find_best()
        self.count_submissions(service.list_submissions())
        self.clock = service.sum_clock(end)

    def count_submissions(self, submissions: Collection[Submission]) -> None:
        self.submissions = len(submissions)
        self.scored = sum(submission.verdict == "scored" for submission in submissions)

    def mark_failed(self, reason: str) -> None:
        self.ending = "failed"
        self.reason = reason

    def make_result(self) -> RunResult:
        score, improvement, gap = None, None, None
        if self.best and self.spec.protocol == "paper":
            score = _subtract_ablation(self.best.score, self.baseline, self.best.ablated)
            improvement = self.best.improvement
        elif self.best and self.best_heldout and self.heldout and self.best.improvement is not None:
            score = _subtract_ablation(self.best_heldout, self.baseline_heldout, self.ablated_heldout)
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
            ablated_heldout=self.ablated_heldout,
            heldout=self.heldout,
            optimism_gap=gap,
            score=score,
            improvement=improvement,
            also=self.also,
            submissions=self.submissions,
            scored=self.scored,
            clock=self.clock,
            contamination=self.contamination,
            rollouts=self.rollouts,
            train_judge=self.train_judge,
            usage=self.usage,
            judge_usage=self.judge_usage,
            network=self.network,
            rounds=self.rounds,
            resumed=self.resumed,
            dead_seconds=self.dead_seconds,
        )


def _subtract_ablation(
    score: EvalScore | None, baseline: EvalScore | None, ablated: EvalScore | None
) -> float | None:
    """Return a score without what the base model's own weights gain with the same chat format and tokens."""
    if score is None or baseline is None or ablated is None:
        return score.value if score else None
    return max(0.0, score.value - max(0.0, ablated.value - baseline.value))
