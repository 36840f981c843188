"""Replay the episodes that an agent reports, in the harness's own copy of the world.

A worker thread replays them in the order of the reports. It uses a small share of the time, so that replaying
takes little from grading and training. When too much is waiting, reports are refused and sent again later.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agent2rl.core.environment import World
from agent2rl.core.errors import UserError
from agent2rl.core.records import RolloutCounts
from agent2rl.environments.adapters.episodes import EpisodeSlot, EpisodeTrace, GameSelector
from agent2rl.environments.adapters.rollout_reports import UncountedSteps, count_traces

WAITING_STEPS = 300_000
"""Limit of the reported steps that wait to be replayed."""
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


def replay_episodes(world: World, episodes: Sequence[EpisodeTrace]) -> ReplayOutcome:
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
        self._waiting_steps = 0
        self._changed = threading.Condition()
        self._closing_at: float | None = None
        self._thread = threading.Thread(target=self._replay_until_closed, name="replay", daemon=True)
        self._thread.start()

    def add_episodes(self, episodes: Sequence[EpisodeTrace]) -> bool:
        """Add a batch; return False if too much is waiting."""
        steps = _count_work(episodes)
        with self._changed:
            if self._closing_at is not None or self._waiting_steps + steps > WAITING_STEPS:
                return False
            self._batches.append(episodes)
            self._waiting_steps += steps
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
            began = time.monotonic()
            try:
                self._record_outcome(replay_episodes(self._world, batch))
            except Exception:  # an error of the world is not the agent's: the batch stays claimed
                self._record_fault()
            pause = (time.monotonic() - began) * (1 / REPLAY_SHARE - 1)
            with self._changed:
                self._changed.wait_for(lambda: self._closing_at is not None, pause)

    def _wait_for_batch(self) -> Sequence[EpisodeTrace] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._batches or self._closing_at is not None)
            late = self._closing_at is not None and time.monotonic() > self._closing_at
            if late or not self._batches:
                return None
            batch = self._batches.popleft()
            self._waiting_steps -= _count_work(batch)
            return batch


def _count_work(episodes: Sequence[EpisodeTrace]) -> int:
    return sum(1 + len(episode.actions) for episode in episodes)
