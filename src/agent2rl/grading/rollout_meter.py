"""Count what an agent plays in its task's world, and enforce the budget of steps.

    witnessed   in the world that the harness serves: every step passes through here
    claimed     in the agent's own processes: reported by the adapters, signed with the run's key

Claims are not trusted. The signature shows that a report comes from this run and is intact. But the agent has
the key, so it can play without reporting, or report what it did not play. Sequence numbers prevent counting a
report twice.
"""

import hmac
import secrets
import threading
import time
from typing import Annotated

from pydantic import Field, StrictInt

from agent2rl.core.errors import Agent2RLError, Refusal
from agent2rl.core.records import Budget, Record, RolloutCounts, Rollouts
from agent2rl.environments.adapters.episodes import StepsUsedUp
from agent2rl.environments.adapters.rollout_reports import COUNT_NAMES, sign_report
from agent2rl.record.recorder import Recorder

FLUSH_SECONDS = 2.0
REPORTERS, REPORTS = 10_000, 100_000
"""Limits of one run, so that the record does not grow without bound."""
STEPS_PER_SECOND = 1_000_000
"""Limit of one reporter: more than ten times the speed of the fastest engine."""

Count = Annotated[StrictInt, Field(ge=0, le=10**12)]


class RolloutReport(Record):
    """Counts of a process since its last report."""

    reporter: Annotated[str, Field(pattern=r"^[0-9a-zA-Z_-]{1,64}$")]
    """Names the process."""
    sequence: Annotated[StrictInt, Field(ge=1, le=10**9)]
    """Number of the report: 1, 2, 3 …, separate for each reporter."""
    episodes: Count
    steps: Count
    successes: Count
    signature: Annotated[str, Field(max_length=64)]
    """HMAC-SHA256 with $ROLLOUT_KEY of `reporter:sequence:episodes:steps:successes`, in hexadecimal."""


class Forged(Agent2RLError):
    """A report with a wrong signature."""


class OutOfOrder(Agent2RLError):
    """A report that was already counted, or is not the next one."""


class TooMany(Agent2RLError):
    """More reports than one run may send."""


class RolloutMeter:
    """Counts steps and episodes; also the counter of the world that the harness serves."""

    def __init__(self, budget: Budget, recorder: Recorder) -> None:
        self.key = secrets.token_hex(32)
        """The key with which the agent's adapters sign reports."""
        self._limit = budget.environment_steps
        self._recorder = recorder
        self._lock = threading.Lock()
        resume_state = recorder.resume_state
        self._began = time.monotonic() - resume_state.used_seconds
        self._claimed: dict[str, tuple[int, RolloutCounts]] = dict(resume_state.played.claimed)
        """By reporter: its last sequence number and the sum of its reports."""
        self._reports = resume_state.played.reports
        self._total = sum((mine for _, mine in self._claimed.values()), RolloutCounts())
        self._witnessed: dict[str, int] = resume_state.played.witnessed.model_dump()
        self._flushed = dict(self._witnessed)
        self._flushed_at = time.monotonic()

    def steps_left(self) -> int | None:
        """Return the remaining steps, or None without a limit."""
        if self._limit is None:
            return None
        return max(0, self._limit - self._total.steps - self._witnessed["steps"])

    def sum_totals(self) -> Rollouts:
        with self._lock:
            return Rollouts(claimed=self._total, witnessed=RolloutCounts(**self._witnessed))

    def close(self) -> Rollouts:
        """Record the totals in the ledger and return them."""
        with self._lock:
            self._flush_counts()
        totals = self.sum_totals()
        self._recorder.record_entry("rollout_totals", **totals.model_dump())
        return totals

    # Claims of the agent

    def count_claim(self, report: RolloutReport) -> None:
        """Count a report, or raise if it is invalid."""
        counts = report.model_dump(include=set(COUNT_NAMES))
        right = sign_report(self.key, report.reporter, report.sequence, counts)
        if not hmac.compare_digest(right.encode(), report.signature.encode()):
            raise Forged("The signature does not match the report.", "Sign with the key in $ROLLOUT_KEY.")
        with self._lock:
            last, sum_so_far = self._claimed.get(report.reporter, (0, RolloutCounts()))
            if report.sequence != last + 1:
                raise OutOfOrder(
                    f"Report {report.sequence} is not counted. The next number is {last + 1}.",
                    "Send each report once, in order.",
                )
            if self._reports >= REPORTS or (last == 0 and len(self._claimed) >= REPORTERS):
                raise TooMany("This run has sent too many reports.", "Report less often.")
            mine = sum_so_far + RolloutCounts(**counts)
            self._refuse_impossible_counts(mine)
            self._claimed[report.reporter] = (report.sequence, mine)
            self._total = self._total + RolloutCounts(**counts)
            self._reports += 1
            self._recorder.record_event(
                "rollouts", source="claimed", reporter=report.reporter, sequence=report.sequence, **counts
            )

    def _refuse_impossible_counts(self, mine: RolloutCounts) -> None:
        most = int(STEPS_PER_SECOND * (1 + time.monotonic() - self._began))
        if mine.steps > most or mine.episodes > most:
            raise Refusal(
                f"Too many steps for the elapsed time: at most {most} are possible.",
                "Report the actual steps.",
            )
        if mine.successes > min(mine.episodes, mine.steps):
            raise Refusal("More episodes were won than played.", "Report the actual episodes.")

    # Steps in the served world

    def begin(self) -> None:
        with self._lock:
            self._require_steps_left()
            self._count_witnessed("episodes")

    def allow(self) -> None:
        with self._lock:
            self._require_steps_left()

    def stepped(self, won: bool) -> None:
        with self._lock:
            self._count_witnessed("steps")
            if won:
                self._count_witnessed("successes")

    def _require_steps_left(self) -> None:
        if self.steps_left() == 0:
            raise StepsUsedUp

    def _count_witnessed(self, what: str) -> None:
        self._witnessed[what] += 1
        if time.monotonic() - self._flushed_at >= FLUSH_SECONDS:
            self._flush_counts()

    def _flush_counts(self) -> None:
        new = {name: self._witnessed[name] - self._flushed[name] for name in COUNT_NAMES}
        if any(new.values()):
            self._recorder.record_event("rollouts", source="witnessed", **new)
        self._flushed, self._flushed_at = dict(self._witnessed), time.monotonic()
