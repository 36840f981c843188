"""Counts what an agent plays in its task's world, and keeps the budget of steps.

    witnessed   in the world that the harness serves: every step passes through here
    claimed     in the agent's own processes: what their faces report, signed with the run's key

A claim is only a claim. The signature shows that it comes from this run and was not mangled; the agent holds
the key, and can play without reporting or report what it did not play. The sequence numbers keep a report
that is sent twice from counting twice.
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
"""In one run, at most: the record must not grow without end."""
STEPS_PER_SECOND = 1_000_000
"""Of one reporter: more than ten times what the fastest engine does."""

Count = Annotated[StrictInt, Field(ge=0, le=10**12)]


class RolloutReport(Record):
    """What a process played since its last report."""

    reporter: Annotated[str, Field(pattern=r"^[0-9a-zA-Z_-]{1,64}$")]
    """Names the process."""
    sequence: Annotated[StrictInt, Field(ge=1, le=10**9)]
    """1, 2, 3 …: of this reporter's reports."""
    episodes: Count
    steps: Count
    successes: Count
    signature: Annotated[str, Field(max_length=64)]
    """HMAC-SHA256 with $ROLLOUT_KEY of `reporter:sequence:episodes:steps:successes`, in hexadecimal."""


class Forged(Agent2RLError):
    """A report whose signature is wrong."""


class OutOfOrder(Agent2RLError):
    """A report that was counted before, or comes before its turn."""


class TooMany(Agent2RLError):
    """More reports than one run can have."""


class RolloutMeter:
    """Serves as the counter of the world that the harness serves (`faces.seat.Counter`)."""

    def __init__(self, budget: Budget, recorder: Recorder) -> None:
        self.key = secrets.token_hex(32)
        """The agent's faces sign with it."""
        self._limit = budget.environment_steps
        self._recorder = recorder
        self._lock = threading.Lock()
        past = recorder.past
        self._began = time.monotonic() - past.used_seconds
        self._claimed: dict[str, tuple[int, RolloutCounts]] = dict(past.played.claimed)
        """Of each reporter: its last sequence number, and the sum of its reports."""
        self._reports = past.played.reports
        self._total = sum((mine for _, mine in self._claimed.values()), RolloutCounts())
        self._witnessed: dict[str, int] = past.played.witnessed.model_dump()
        self._flushed = dict(self._witnessed)
        self._flushed_at = time.monotonic()

    def steps_left(self) -> int | None:
        """Steps; None where there is no limit."""
        if self._limit is None:
            return None
        return max(0, self._limit - self._total.steps - self._witnessed["steps"])

    def sum_totals(self) -> Rollouts:
        with self._lock:
            return Rollouts(claimed=self._total, witnessed=RolloutCounts(**self._witnessed))

    def close(self) -> Rollouts:
        """The last word, in the ledger."""
        with self._lock:
            self._flush_counts()
        totals = self.sum_totals()
        self._recorder.record_entry("rollout_totals", **totals.model_dump())
        return totals

    # What the agent claims

    def count_claim(self, report: RolloutReport) -> None:
        """Count a report, or say why not."""
        counts = report.model_dump(include=set(COUNT_NAMES))
        right = sign_report(self.key, report.reporter, report.sequence, counts)
        if not hmac.compare_digest(right.encode(), report.signature.encode()):
            raise Forged("The signature is not that of this report.", "Sign with the key in $ROLLOUT_KEY.")
        with self._lock:
            last, sum_so_far = self._claimed.get(report.reporter, (0, RolloutCounts()))
            if report.sequence != last + 1:
                raise OutOfOrder(
                    f"Report {report.sequence} is not counted: the next one is {last + 1}.",
                    "Send each report once, in order.",
                )
            if self._reports >= REPORTS or (last == 0 and len(self._claimed) >= REPORTERS):
                raise TooMany("This run has sent more reports than are taken.", "Report less often.")
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
                f"Nobody plays so much in so little time: at most {most} steps.", "Report what was."
            )
        if mine.successes > min(mine.episodes, mine.steps):
            raise Refusal("More episodes are won than were played.", "Report what was.")

    # What the harness sees

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
