"""The agent's time: how much is used, how much is left, and which limit ends it.

Two times are measured. Wall time runs from the agent's start. Training time stops while the harness holds a
submission: from the request until the verdict, so while it is frozen, queued, checked and graded. Submissions
that overlap stop it once, not twice.

A run's budget is counted on one of the two (`--clock all` or `--clock training`). The agent can work while a
submission is graded. On the training clock this work is free, so wall time has a limit too.

GPU time is the number of the agent's GPUs times its wall time, on both clocks: the GPUs are reserved for it.
"""

import threading
import time
from collections.abc import Callable, Hashable
from typing import Literal

from agent2rl.core.records import Budget, Clock, Ending
from agent2rl.record.crash_recovery import ResumeState

LimitName = Literal["time", "wall", "gpu"]


class AgentClock:
    """The clock of one agent. It continues from `resume_state` if the run was resumed."""

    def __init__(
        self,
        budget: Budget,
        clock: Clock = "all",
        gpus: int = 0,
        resume_state: ResumeState | None = None,
        read_time: Callable[[], float] = time.monotonic,
    ) -> None:
        """`gpus`: how many GPUs the agent has. `read_time` returns seconds."""
        self.clock = clock
        self.gpus = gpus
        self._budget = budget
        self._read_time = read_time
        self._before = resume_state or ResumeState()
        self._lock = threading.Lock()
        self._started: float | None = None
        self._ended: float | None = None
        self._held: set[Hashable] = set()
        """Submissions that the harness holds now."""
        self._held_since = 0.0
        self._held_seconds = 0.0

    def start(self) -> None:
        with self._lock:
            self._started = self._held_since = self._read_time()

    def end(self) -> None:
        """Stop both times. Later submissions change nothing."""
        with self._lock:
            if self._ended is None:
                self._ended = self._read_time()

    def hold_submission(self, number: Hashable) -> None:
        """Stop the training time for a submission, unless another one has stopped it."""
        with self._lock:
            if not self._held:
                self._held_since = self._read_time()
            self._held.add(number)

    def release_submission(self, number: Hashable) -> None:
        """Let the training time continue after a submission's verdict, if it was the last one held."""
        with self._lock:
            if number not in self._held:
                return
            self._held.remove(number)
            if not self._held:
                self._held_seconds += self._measure_since(self._held_since)

    def wall_seconds(self) -> float:
        with self._lock:
            return self._before.used_seconds + self._measure_since(self._started)

    def submission_seconds(self) -> float:
        """Return the wall time in which the harness held at least one submission."""
        with self._lock:
            held = self._held_seconds + (self._measure_since(self._held_since) if self._held else 0.0)
            return self._before.submission_seconds + held

    def training_seconds(self) -> float:
        submission_seconds = self.submission_seconds()
        return max(0.0, self.wall_seconds() - submission_seconds)

    def gpu_seconds(self) -> float | None:
        """Return the GPU time used; None if the agent has no GPU and never had one."""
        with self._lock:
            seconds = self._before.gpu_seconds + self.gpus * self._measure_since(self._started)
        return seconds if self.gpus or seconds else None

    def gpu_seconds_left(self) -> float | None:
        """Return the rest of the GPU budget; None if there is no limit."""
        if self._budget.gpu_seconds is None:
            return None
        return max(0.0, self._budget.gpu_seconds - (self.gpu_seconds() or 0.0))

    def remaining_seconds(self) -> float:
        """Return the time until the first limit, if no submission stops the training time until then."""
        return max(0.0, min(self._list_limits().values()))

    def describe_end(self) -> tuple[Ending, str]:
        """Return the ending and its reason for an agent that was interrupted at a limit."""
        limits = self._list_limits()
        reached = min(limits, key=limits.__getitem__)
        if reached == "gpu":
            used, most = (self.gpu_seconds() or 0.0) / 3600, (self._budget.gpu_seconds or 0.0) / 3600
            return "budget-exhausted", f"The GPU time is used up: {used:.4g} of {most:.4g} GPU hours."
        if reached == "wall":
            most = self._budget.max_wall_seconds(self.clock)
            reason = f"The wall time of a run on the training clock is limited to {most:g} s here."
            return "deadline", reason
        return "deadline", ""

    def _list_limits(self) -> dict[LimitName, float]:
        """Return the seconds left until each limit."""
        wall = self.wall_seconds()
        limits: dict[LimitName, float] = {"time": self._budget.wall_seconds - wall}
        if self.clock == "training":
            limits["time"] = self._budget.wall_seconds - self.training_seconds()
            limits["wall"] = self._budget.max_wall_seconds(self.clock) - wall
        if self.gpus and self._budget.gpu_seconds is not None:
            limits["gpu"] = (self._budget.gpu_seconds - (self.gpu_seconds() or 0.0)) / self.gpus
        return limits

    def _measure_since(self, begin: float | None) -> float:
        if self._started is None or begin is None:
            return 0.0
        until = self._read_time() if self._ended is None else self._ended
        # Negative for a submission that came after the agent's end, which must change nothing.
        return max(0.0, until - begin)
