"""Report the progress of a training: a line every few seconds, and the same as JSON lines in a file."""

import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from agent2rl.core.records import Record


class TrainingProgressEntry(Record):
    """The state of a training. Loss, reward and the optional metrics are means since the last entry."""

    stage: str
    step: int
    time: float | None = None
    """When the entry was written, in seconds since the epoch. Entries of earlier versions have none."""
    seconds: float
    """Since the start of the stage."""
    loss: float | None
    """None if no step updated the model, because all answers to each question had the same reward."""
    reward: float | None = None
    tokens_per_second: float
    left_seconds: float
    entropy: float | None = None
    """Of the policy's next-token distribution, in nats."""
    kl: float | None = None
    """Divergence from the reference model, or from the model that sampled the answers."""
    response_length: float | None = None
    """Sampled tokens of an answer or an episode."""
    groups_without_signal: float | None = None
    """Share of groups in which all attempts have the same reward."""
    clip_fraction: float | None = None
    """Share of tokens whose importance ratio is clipped."""
    gradient_norm: float | None = None
    learning_rate: float | None = None

    def __str__(self) -> str:
        parts = [f"{self.stage}: step {self.step}"]
        parts += [f"loss {self.loss:.4f}"] if self.loss is not None else []
        parts += [f"reward {self.reward:.3f}"] if self.reward is not None else []
        return ", ".join(
            [*parts, f"{self.tokens_per_second:.0f} tokens/s", f"{self.left_seconds:.0f} s left"]
        )


METRIC_NAMES = (
    "entropy",
    "kl",
    "response_length",
    "groups_without_signal",
    "clip_fraction",
    "gradient_norm",
    "learning_rate",
)
"""Names of the optional metrics of a step."""
NO_METRICS: Mapping[str, float] = MappingProxyType({})


class TrainingProgress:
    """The progress of one stage. Appends to `path`, so that stages can share a file."""

    def __init__(self, stage: str, path: Path | None = None, every_seconds: float = 5.0) -> None:
        self.tokens = 0
        self._stage, self._path, self._every = stage, path, every_seconds
        self._began = self._last = time.monotonic()
        self._losses: list[float] = []
        self._rewards: list[float] = []
        self._metrics: dict[str, list[float]] = {name: [] for name in METRIC_NAMES}
        self._fresh = 0

    def record_step(
        self,
        step: int,
        tokens: int,
        left_seconds: float,
        loss: float | None,
        reward: float | None = None,
        metrics: Mapping[str, float] = NO_METRICS,
    ) -> None:
        """Record a finished step with this many tokens. The keys of `metrics` are `METRIC_NAMES`."""
        self.tokens += tokens
        self._fresh += tokens
        self._losses += [] if loss is None else [loss]
        self._rewards += [] if reward is None else [reward]
        for name, value in metrics.items():
            self._metrics[name].append(value)
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
            time=round(time.time(), 3),
            seconds=round(now - self._began, 3),
            loss=_mean_or_none(self._losses),
            reward=_mean_or_none(self._rewards),
            tokens_per_second=round(self._fresh / max(now - self._last, 1e-9), 1),
            left_seconds=round(left_seconds, 3),
            **{name: _mean_or_none(values) for name, values in self._metrics.items()},
        )
        print(entry, flush=True)
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(entry.model_dump_json() + "\n")
        self._last, self._fresh = now, 0
        self._losses, self._rewards = [], []
        self._metrics = {name: [] for name in METRIC_NAMES}


def _mean_or_none(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None
