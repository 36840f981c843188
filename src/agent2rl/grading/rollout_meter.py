"""Count what an agent plays in its task's world, and enforce the budget of steps.

    served      in the world that the harness serves: every step passes through here
    claimed     in the agent's own processes: reported by the adapters, signed with the run's key
    replayed    claimed, and the reported actions have the reported reward when the harness replays them
    refuted     claimed, and they have not

Claims are not trusted. The signature shows that a report comes from this run and is intact. But the agent has
the key, so it can play without reporting, or report what it did not play. Sequence numbers prevent counting a
report twice. A replay proves that the actions lead to the reward, not which model chose them. A reporter can
prove at most what it has claimed.
"""

import hmac
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Self

from pydantic import Field, StrictInt

from agent2rl.core.environment import World
from agent2rl.core.errors import Agent2RLError, Refusal, UserError
from agent2rl.core.records import Budget, Record, RolloutCounts, Rollouts
from agent2rl.environments.adapters.episodes import EpisodeSlot, EpisodeTrace, GameSelector, StepsUsedUp
from agent2rl.environments.adapters.rollout_reports import (
    BATCH_EPISODES,
    COUNT_NAMES,
    UncountedSteps,
    count_traces,
    sign_episodes,
    sign_report,
)
from agent2rl.record.recorder import Recorder
from agent2rl.record.untrusted_files import sanitize_line

# Replay the episodes that an agent reports, in the harness's own copy of the world.
#
# A worker thread replays them in the order of the reports. It uses a small share of the time, so that
# replaying takes little from grading and training. When too much is waiting, reports are refused and sent
# again later.


WAITING_STEPS, WAITING_CHARACTERS = 300_000, 30_000_000
"""Limits of the reported steps that wait to be replayed, and of their actions."""
REPLAY_SHARE = 0.1
"""Largest share of the time that replaying takes while the agent works."""
CLOSE_SECONDS = 30.0
"""Time limit for what is still waiting when the agent has ended. The rest stays claimed."""
TOLERANCE = 1e-6


@dataclass(frozen=True)
class ReplayOutcome:
    replayed: RolloutCounts
    refuted: RolloutCounts
    detail: str = ""
    """How the first refuted episode differs."""


def replay_episodes(world: World, episodes: Iterable[EpisodeTrace]) -> ReplayOutcome:
    """Replay episodes and compare their results with the reported ones."""
    games, slot = GameSelector(world), EpisodeSlot(world.environment(), UncountedSteps())
    confirmed: list[EpisodeTrace] = []
    refuted: list[EpisodeTrace] = []
    detail = ""
    try:
        for episode in episodes:
            difference = _find_difference(slot, games, episode)
            (refuted if difference else confirmed).append(episode)
            detail = detail or difference
    finally:
        slot.close()
    return ReplayOutcome(
        RolloutCounts(**count_traces(confirmed)), RolloutCounts(**count_traces(refuted)), detail
    )


def _find_difference(slot: EpisodeSlot, games: GameSelector, episode: EpisodeTrace) -> str:
    """Return how a replay differs from the report; empty if it does not."""
    try:
        slot.reset(games.find_game(episode.game))
    except UserError as error:
        return error.message
    for action in episode.actions:
        if slot.over:
            return f"{episode.game}: over after {slot.steps} of {len(episode.actions)} reported steps"
        slot.step(action)
    if abs(slot.reward - episode.reward) > TOLERANCE or slot.won != episode.won:
        outcomes = [f"reward {one.reward:g}{', won' if one.won else ''}" for one in (episode, slot)]
        return f"{episode.game}: reported {outcomes[0]}; replayed {outcomes[1]}"
    return ""


@dataclass(frozen=True)
class ReplayWork:
    """How much waits to be replayed. An episode counts as a step more than it has."""

    steps: int = 0
    characters: int = 0

    @classmethod
    def measure(cls, episodes: Sequence[EpisodeTrace]) -> Self:
        # A reset is work too: otherwise reports of empty episodes would wait for nothing.
        steps = sum(1 + len(episode.actions) for episode in episodes)
        return cls(steps, sum(len(action) for episode in episodes for action in episode.actions))

    @property
    def is_too_much(self) -> bool:
        return self.steps > WAITING_STEPS or self.characters > WAITING_CHARACTERS

    def __add__(self, other: Self) -> Self:
        return type(self)(self.steps + other.steps, self.characters + other.characters)

    def __sub__(self, other: Self) -> Self:
        return type(self)(self.steps - other.steps, self.characters - other.characters)


class ReplayQueue:
    """Batches that wait to be replayed, and the thread that replays them."""

    def __init__(
        self,
        world: World,
        record_outcome: Callable[[ReplayOutcome], None],
        record_fault: Callable[[], None],
    ) -> None:
        self._world = world
        self._record_outcome, self._record_fault = record_outcome, record_fault
        self._batches: deque[Sequence[EpisodeTrace]] = deque()
        self._waiting = ReplayWork()
        self._busy_since = 0.0
        self._changed = threading.Condition()
        self._closing_at: float | None = None
        self._thread = threading.Thread(target=self._replay_until_closed, name="replay", daemon=True)
        self._thread.start()

    def add_episodes(self, episodes: Sequence[EpisodeTrace]) -> bool:
        """Add a batch; return False if too much is waiting."""
        with self._changed:
            waiting = self._waiting + ReplayWork.measure(episodes)
            if self._closing_at is not None or waiting.is_too_much:
                return False
            self._batches.append(episodes)
            self._waiting = waiting
            self._changed.notify_all()
            return True

    def close(self) -> None:
        """Replay what is waiting, up to the time limit, and end the thread."""
        with self._changed:
            self._closing_at = time.monotonic() + CLOSE_SECONDS
            self._changed.notify_all()
        self._thread.join(2 * CLOSE_SECONDS)

    def _replay_until_closed(self) -> None:
        while batch := self._wait_for_batch():
            self._busy_since = time.monotonic()
            try:
                self._record_outcome(replay_episodes(self._world, self._pace_episodes(batch)))
            except Exception:  # an error of the world is not the agent's: the batch stays claimed
                self._record_fault()
            self._pause()

    def _pace_episodes(self, batch: Sequence[EpisodeTrace]) -> Iterator[EpisodeTrace]:
        """Yield the episodes of a batch with pauses in between, until it is too late for more."""
        for episode in batch:
            yield episode
            self._pause()
            if self._is_late():
                return

    def _pause(self) -> None:
        """Let others work, in proportion to the work since the last pause."""
        pause = (time.monotonic() - self._busy_since) * (1 / REPLAY_SHARE - 1)
        with self._changed:
            # At the end nobody else needs the machine, so the rest is replayed without pauses.
            self._changed.wait_for(lambda: self._closing_at is not None, pause)
        self._busy_since = time.monotonic()

    def _is_late(self) -> bool:
        return self._closing_at is not None and time.monotonic() > self._closing_at

    def _wait_for_batch(self) -> Sequence[EpisodeTrace] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._batches or self._closing_at is not None)
            if self._is_late() or not self._batches:
                return None
            batch = self._batches.popleft()
            self._waiting -= ReplayWork.measure(batch)
            return batch


FLUSH_SECONDS = 2.0
REPORTERS, REPORTS = 10_000, 100_000
"""Limits of one run, so that the record does not grow without bound."""
STEPS_PER_SECOND = 1_000_000
"""Limit of one reporter: more than ten times the speed of the fastest engine."""

LONGEST_DETAIL = 300

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


class ReportedEpisode(Record):
    """An episode that a process played, from its start."""

    game: Annotated[str, Field(max_length=1000)]
    actions: Annotated[tuple[Annotated[str, Field(max_length=16384)], ...], Field(max_length=10_000)]
    reward: Annotated[float, Field(allow_inf_nan=False)]
    """That of its best step."""
    won: bool


class EpisodeReport(Record):
    """Episodes of a process that its earlier reports have counted. The harness replays them."""

    reporter: Annotated[str, Field(pattern=r"^[0-9a-zA-Z_-]{1,64}$")]
    sequence: Annotated[StrictInt, Field(ge=1, le=10**9)]
    """Number of the report of episodes: 1, 2, 3 …, separate for each reporter."""
    episodes: Annotated[tuple[ReportedEpisode, ...], Field(min_length=1, max_length=BATCH_EPISODES)]
    signature: Annotated[str, Field(max_length=64)]
    """HMAC-SHA256 with $ROLLOUT_KEY of `reporter/episodes:sequence:episodes:steps:successes`, where the last
    three are the counts of this report, in hexadecimal."""


class ForgedReport(Agent2RLError):
    """A report with a wrong signature."""


class ReportOutOfOrder(Agent2RLError):
    """A report that was already counted, or is not the next one."""


class TooManyReports(Agent2RLError):
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
        # From the first start, so that a resumed run can claim what was played before.
        self._began = time.monotonic() - resume_state.used_seconds
        self._claimed: dict[str, tuple[int, RolloutCounts]] = dict(resume_state.played.claimed)
        """By reporter: its last sequence number and the sum of its reports."""
        self._reports = resume_state.played.reports
        self._total = sum((mine for _, mine in self._claimed.values()), RolloutCounts())
        self._served: dict[str, int] = resume_state.played.served.model_dump()
        self._flushed = dict(self._served)
        self._flushed_at = time.monotonic()
        self._proving: dict[str, tuple[int, RolloutCounts]] = {}
        """By reporter: the sequence number of its last report of episodes, and the sum of these reports."""
        self._replayed, self._refuted = resume_state.played.replayed, resume_state.played.refuted
        self._proving_total = self._replayed + self._refuted
        self._flushed_replays = Rollouts(replayed=self._replayed, refuted=self._refuted)
        self._replays_flushed_at = time.monotonic()
        self._detail = ""
        self._replays: ReplayQueue | None = None

    def steps_left(self) -> int | None:
        """Return the remaining steps, or None without a limit."""
        if self._limit is None:
            return None
        return max(0, self._limit - self._total.steps - self._served["steps"])

    def sum_totals(self) -> Rollouts:
        with self._lock:
            return Rollouts(
                claimed=self._total,
                served=RolloutCounts(**self._served),
                replayed=self._replayed,
                refuted=self._refuted,
            )

    def close_and_sum_totals(self) -> Rollouts:
        """Replay what is waiting, record the totals in the ledger and return them."""
        if self._replays:
            self._replays.close()
        with self._lock:
            self._flush_counts()
            self._flush_replays()
        totals = self.sum_totals()
        self._recorder.record_entry("rollout_totals", **totals.model_dump())
        return totals

    # Claims of the agent

    def count_claim(self, report: RolloutReport) -> None:
        """Count a report, or raise if it is invalid."""
        counts = report.model_dump(include=set(COUNT_NAMES))
        right = sign_report(self.key, report.reporter, report.sequence, counts)
        # As bytes, because compare_digest raises an error for text that is not ASCII.
        if not hmac.compare_digest(right.encode(), report.signature.encode()):
            raise ForgedReport(
                "The signature does not match the report.", "Sign with the key in $ROLLOUT_KEY."
            )
        with self._lock:
            last, sum_so_far = self._claimed.get(report.reporter, (0, RolloutCounts()))
            if report.sequence != last + 1:
                raise ReportOutOfOrder(
                    f"Report {report.sequence} is not counted. The next number is {last + 1}.",
                    "Send each report once, in order.",
                )
            if self._reports >= REPORTS or (last == 0 and len(self._claimed) >= REPORTERS):
                raise TooManyReports("This run has sent too many reports.", "Report less often.")
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

    # Replays of claimed episodes

    def replay_in(self, world: World, record_fault: Callable[[str], None]) -> None:
        """Replay reported episodes in this world from now on, if it can be replayed."""
        if world.replayable:
            self._replays = ReplayQueue(world, self._count_replay, lambda: record_fault("replaying episodes"))

    def accept_episodes(self, report: EpisodeReport) -> None:
        """Queue reported episodes to be replayed, or raise if the report is invalid."""
        traces = [EpisodeTrace(one.game, one.actions, one.reward, one.won) for one in report.episodes]
        right = sign_episodes(self.key, report.reporter, report.sequence, traces)
        if not hmac.compare_digest(right.encode(), report.signature.encode()):
            raise ForgedReport(
                "The signature does not match the report.", "Sign with the key in $ROLLOUT_KEY."
            )
        with self._lock:
            last, sum_so_far = self._proving.get(report.reporter, (0, RolloutCounts()))
            if report.sequence != last + 1:
                raise ReportOutOfOrder(
                    f"Report {report.sequence} of episodes is not counted. The next number is {last + 1}.",
                    "Send each report once, in order.",
                )
            new = RolloutCounts(**count_traces(traces))
            mine, proving = sum_so_far + new, self._proving_total + new
            claimed = self._claimed.get(report.reporter, (0, RolloutCounts()))[1]
            # The sum is compared too, because a resumed harness does not know who has proved what.
            if not _covers(claimed, mine) or not _covers(self._total, proving):
                raise Refusal(
                    "These episodes are not counted yet.", "Report their counts to /rollouts first."
                )
            if self._replays is not None and not self._replays.add_episodes(traces):
                raise TooManyReports(
                    "Too many episodes wait to be replayed.", "Send this report again later."
                )
            self._proving[report.reporter] = (report.sequence, mine)
            self._proving_total = proving

    def _count_replay(self, outcome: ReplayOutcome) -> None:
        with self._lock:
            self._replayed = self._replayed + outcome.replayed
            self._refuted = self._refuted + outcome.refuted
            self._detail = self._detail or sanitize_line(outcome.detail, LONGEST_DETAIL)
            if time.monotonic() - self._replays_flushed_at >= FLUSH_SECONDS:
                self._flush_replays()

    def _flush_replays(self) -> None:
        totals = Rollouts(replayed=self._replayed, refuted=self._refuted)
        replayed = totals.replayed.subtract(self._flushed_replays.replayed)
        refuted = totals.refuted.subtract(self._flushed_replays.refuted)
        if replayed.episodes:
            self._recorder.record_event("rollouts", source="replayed", **replayed.model_dump())
        if refuted.episodes:
            self._recorder.record_event(
                "rollouts", source="refuted", detail=self._detail, **refuted.model_dump()
            )
        self._flushed_replays, self._replays_flushed_at, self._detail = totals, time.monotonic(), ""

    # Steps in the served world

    def begin_episode(self) -> None:
        with self._lock:
            self._require_steps_left()
            self._count_served("episodes")

    def require_budget(self) -> None:
        with self._lock:
            self._require_steps_left()

    def count_step(self, won: bool) -> None:
        with self._lock:
            self._count_served("steps")
            if won:
                self._count_served("successes")

    def _require_steps_left(self) -> None:
        if self.steps_left() == 0:
            raise StepsUsedUp

    def _count_served(self, what: str) -> None:
        self._served[what] += 1
        if time.monotonic() - self._flushed_at >= FLUSH_SECONDS:
            self._flush_counts()

    def _flush_counts(self) -> None:
        new = {name: self._served[name] - self._flushed[name] for name in COUNT_NAMES}
        if any(new.values()):
            self._recorder.record_event("rollouts", source="served", **new)
        self._flushed, self._flushed_at = dict(self._served), time.monotonic()


def _covers(claimed: RolloutCounts, proved: RolloutCounts) -> bool:
    return claimed.episodes >= proved.episodes and claimed.steps >= proved.steps
