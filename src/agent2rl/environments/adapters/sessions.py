"""The sessions of a served world: a seat for each client, as many as there may be, for as long as they are
used."""

import threading
import time
from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, JsonValue, StrictInt, StrictStr

from agent2rl.core.environment import EnvironmentStep, World
from agent2rl.core.errors import Agent2RLError
from agent2rl.core.task import Example
from agent2rl.environments.adapters.episode_slot import EpisodeSlot, StepCounter
from agent2rl.environments.adapters.game_selector import GameSelector
from agent2rl.environments.adapters.rollout_reports import ROLLOUT_REPORTER

MAX_SESSIONS = 256
"""Sessions at once."""


class SessionLimitReached(Agent2RLError):
    """Too many sessions are open."""


class OpenEnvMessage(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ResetMessage(OpenEnvMessage):
    """Begins an episode."""

    seed: Annotated[StrictInt, Field(ge=0, le=1 << 64)] | None = None
    """Begins the random order of games anew."""
    game: Annotated[StrictStr, Field(max_length=1000)] | None = None
    """The game to play; else the next in random order."""
    episode_id: Annotated[StrictStr, Field(min_length=1, max_length=255)] | None = None


class ActionMessage(OpenEnvMessage):
    """An action."""

    text: Annotated[StrictStr, Field(max_length=16384)]
    metadata: dict[str, JsonValue] = {}
    """OpenEnv's clients send it; nothing reads it."""


class ObservationMessage(OpenEnvMessage):
    """What is seen."""

    text: str
    game: str
    won: bool
    truncated: bool
    """Done only because the steps are used up."""
    episode_id: str | None


class EpisodeStateMessage(OpenEnvMessage):
    """How an episode stands."""

    episode_id: str | None
    step_count: int
    game: str | None
    reward: float
    done: bool
    won: bool


def build_schemas() -> dict[str, Any]:
    return {
        "action": ActionMessage.model_json_schema(),
        "observation": ObservationMessage.model_json_schema(),
        "state": EpisodeStateMessage.model_json_schema(),
        "reset": ResetMessage.model_json_schema(),
    }


class OpenEnvSession:
    """Answers one question after another, whoever asks at once."""

    def __init__(self, seat: EpisodeSlot, games: GameSelector) -> None:
        self.asked_at = time.monotonic()
        self._answering = threading.Lock()
        self._seat = seat
        self._games = games
        self._order: Iterator[Example] = games.iter_shuffled()
        self._episode: str | None = None

    def reset(self, asked: ResetMessage) -> dict[str, Any]:
        with self._answering:
            if asked.seed is not None:
                self._order = self._games.iter_shuffled(asked.seed)
            game = next(self._order) if asked.game is None else self._games.find_game(asked.game)
            step = self._seat.reset(game)
            self._episode = asked.episode_id
            return self._format_observation(step, None)

    def step(self, asked: ActionMessage) -> dict[str, Any]:
        with self._answering:
            step = self._seat.step(asked.text)
            return self._format_observation(step, step.reward)

    def state(self) -> dict[str, Any]:
        seat = self._seat
        return EpisodeStateMessage(
            episode_id=self._episode,
            step_count=seat.steps,
            game=seat.game.id if seat.game else None,
            reward=seat.reward,
            done=seat.over,
            won=seat.won,
        ).model_dump()

    def is_idle(self, since: float) -> bool:
        return self.asked_at < since and not self._answering.locked()

    def close(self) -> None:
        with self._answering:
            self._seat.close()

    def _format_observation(self, step: EnvironmentStep, reward: float | None) -> dict[str, Any]:
        game = self._seat.game.id if self._seat.game else ""
        seen = ObservationMessage(
            text=step.observation, game=game, won=step.won, truncated=step.cut, episode_id=self._episode
        )
        return {"observation": seen.model_dump(), "reward": reward, "done": step.done}


class OpenEnvSessionPool:
    """By name. One that nothing was asked of for a while makes room for the next."""

    def __init__(
        self, world: World, games: GameSelector, counter: StepCounter | None, idle_seconds: float
    ) -> None:
        self.idle_seconds = idle_seconds
        self._world, self._games, self._counter = world, games, counter
        self._open: dict[str, OpenEnvSession] = {}
        self._lock = threading.RLock()

    def open(self, name: str) -> OpenEnvSession:
        """The one of this name, or else a new one."""
        with self._lock:
            return self.get(name) or self._create_session(name)

    def _create_session(self, name: str) -> OpenEnvSession:
        if len(self._open) >= MAX_SESSIONS:
            raise SessionLimitReached(
                f"{MAX_SESSIONS} sessions are open, which is as many as there may be.",
                f"Close some, or wait: they are dropped after {self.idle_seconds:g} s without a question.",
            )
        seat = (
            EpisodeSlot(self._world, self._counter)
            if self._counter
            else ROLLOUT_REPORTER.open_slot(self._world)
        )
        session = self._open[name] = OpenEnvSession(seat, self._games)
        return session

    def get(self, name: str) -> OpenEnvSession | None:
        with self._lock:
            self._close_idle_sessions()
            session = self._open.get(name)
            if session:
                session.asked_at = time.monotonic()
            return session

    def close_session(self, name: str) -> None:
        with self._lock:
            session = self._open.pop(name, None)
        if session:  # what it is about to answer comes first, and others need not wait for it
            session.close()

    def _close_idle_sessions(self) -> None:
        oldest = time.monotonic() - self.idle_seconds
        for name in [name for name, session in self._open.items() if session.is_idle(oldest)]:
            self.close_session(name)
