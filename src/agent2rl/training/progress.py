"""Report the progress of a training: a line every few seconds, and the same as JSON lines in a file."""

import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from agent2rl.core.records import Record


class TrainingProgressEntry(Record):
    """The state of a training. Loss and reward are means since the last entry."""

    stage: str
    step: int
    seconds: float
    """Since the start of the stage."""
    loss: float | None
    """None if no step updated the model, because all answers to each question had the same reward."""
    reward: float | None = None
    tokens_per_second: float
    left_seconds: float

    def __str__(self) -> str:
        parts = [f"{self.stage}: step {self.step}"]
        parts += [f"loss {self.loss:.4f}"] if self.loss is not None else []
        parts += [f"reward {self.reward:.3f}"] if self.reward is not None else []
        return ", ".join(
            [*parts, f"{self.tokens_per_second:.0f} tokens/s", f"{self.left_seconds:.0f} s left"]
        )


class TrainingProgress:
    """The progress of one stage. Appends to `path`, so that stages can share a file."""

    def __init__(self, stage: str, path: Path | None = None, every_seconds: float = 5.0) -> None:
        self.tokens = 0
        self._stage, self._path, self._every = stage, path, every_seconds
        self._began = self._last = time.monotonic()
        self._losses: list[float] = []
        self._rewards: list[float] = []
        self._fresh = 0

    def record_step(
        self,
        step: int,
        tokens: int,
        left_seconds: float,
        loss: float | None,
        reward: float | None = None,
        metrics: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        """Record a finished step with this many tokens."""
        self.tokens += tokens
        self._fresh += tokens
        self._losses += [] if loss is None else [loss]
        self._rewards += [] if reward is None else [reward]
        if time.monotonic() - self._last >= self._every or left_seconds <= 0:
            self._report_progress(step, left_seconds)

    def exclude_seconds(self, seconds: float) -> None:
        """Exclude time that was spent on something else."""
        self._began += seconds
        self._last += seconds

    def _report_progress(self, step: int, left_seconds: float) -> None:
        now = time.monotonic()
        entry = TrainingProgressEntry(
            stage=self._stage,
            step=step,
            seconds=round(now - self._began, 3),
            loss=_mean_or_none(self._losses),
            reward=_mean_or_none(self._rewards),
            tokens_per_second=round(self._fresh / max(now - self._last, 1e-9), 1),
            left_seconds=round(left_seconds, 3),
        )
        print(entry, flush=True)
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(entry.model_dump_json() + "\n")
        self._last, self._fresh = now, 0
        self._losses, self._rewards = [], []


def _mean_or_none(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None
