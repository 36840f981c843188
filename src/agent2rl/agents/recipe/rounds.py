"""What the parts of the recipe's program tell each other: a round, who learns in it, and what from."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from agent2rl.agents.recipe import plan
from agent2rl.training import models
from agent2rl.training.grpo import GrpoSettings
from agent2rl.training.optimizer import TrainingSchedule
from agent2rl.training.progress import TrainingProgress

ATTEMPTS_PER_PROMPT = 8
"""Attempts at a question or a game in GRPO."""


@dataclass(frozen=True)
class PolicyLearner:
    model: Any
    tokenizer: Any

    def choose_learning_rate(self, kind: str) -> float:
        return plan.choose_learning_rate(kind, models.count_parameters(self.model))


@dataclass(frozen=True)
class TrainingRound:
    number: int
    stage: str
    start: Path
    """The model that it goes on from."""
    path: Path
    """Where it leaves its own."""
    seconds: float
    factor: float
    """Of the usual learning rate."""
    seed: int
    log: Path
    """Where it says how it goes."""

    @property
    def progress(self) -> TrainingProgress:
        return TrainingProgress(self.stage, self.log)

    def plan_grpo(self, seconds: float, each: float, rate: float, **more: Any) -> GrpoSettings | None:
        """GRPO that fits, where the attempts at one question or game take `each`; None where no step does."""
        if seconds <= 0 or plan.count_grpo_steps(seconds, each) < 1:
            return None
        shape = GrpoSettings(
            learning_rate=self.factor * rate,
            steps=10**6,
            seconds=seconds,
            prompts=plan.choose_prompts_per_step(seconds, each),
            group=ATTEMPTS_PER_PROMPT,
            seed=self.seed,
            **more,
        )
        print(f"grpo: {shape.prompts} a step, rate {shape.learning_rate:.1e}", flush=True)
        return shape


class TrainingSubject(Protocol):
    """What there is to learn from: questions, or games. Each stage trains the learner and gives the seconds
    that it took; None where there is not time for a step."""

    def stages(self, wanted: Sequence[str]) -> list[str]:
        """Those that are possible; an error where none is."""
        ...

    def sft(self, now: TrainingRound, learner: PolicyLearner) -> float | None: ...

    def grpo(
        self, now: TrainingRound, learner: PolicyLearner, look: Callable[[TrainingSchedule], None]
    ) -> float | None: ...
