"""The sessions of a served world: a seat for each client, as many as there may be, for as long as they are
used."""

import threading
import time
from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, JsonValue, StrictInt, StrictStr

from agent2rl.core.environment import Step, World
from agent2rl.core.errors import Agent2RLError
from agent2rl.core.task import Example
from agent2rl.environments.faces.claims import CLAIMS
from agent2rl.environments.faces.games import Games
from agent2rl.environments.faces.seat import Counter, Seat

MOST = 256
"""Sessions at once."""


class Full(Agent2RLError):
    """Too many sessions are open."""


class Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Reset(Message):
    """Begins an episode."""

    seed: Annotated[StrictInt, Field(ge=0, le=1 << 64)] | None = None
    """Begins the random order of games anew."""
    game: Annotated[StrictStr, Field(max_length=1000)] | None = None
    """The game to play; else the next in random order."""
    episode_id: Annotated[StrictStr, Field(min_length=1, max_length=255)] | None = None


class Act(Message):
    """An action."""

    text: Annotated[StrictStr, Field(max_length=16384)]
    metadata: dict[str, JsonValue] = {}
    """OpenEnv's clients send it; nothing reads it."""


class Observation(Message):
    """What is seen."""

    text: str
    game: str
    won: bool
    truncated: bool
    """Done only because the steps are used up."""
    episode_id: str | None


class State(Message):
    """How an episode stands."""

    episode_id: str | None
    step_count: int
    game: str | None
    reward: float
    done: bool
    won: bool


def schema() -> dict[str, Any]:
    return {
        "action": Act.model_json_schema(),
        "observation": Observation.model_json_schema(),
        "state": State.model_json_schema(),
        "reset": Reset.model_json_schema(),
    }


class Session:
    """Answers one question after another, whoever asks at once."""

    def __init__(self, seat: Seat, games: Games) -> None:
        self.asked_at = time.monotonic()
        self._answering = threading.Lock()
        self._seat = seat
        self._games = games
        self._order: Iterator[Example] = games.shuffled()
        self._episode: str | None = None

    def reset(self, asked: Reset) -> dict[str, Any]:
        with self._answering:
            if asked.seed is not None:
                self._order = self._games.shuffled(asked.seed)
            game = next(self._order) if asked.game is None else self._games.named(asked.game)
            step = self._seat.reset(game)
            self._episode = asked.episode_id
            return self._seen(step, None)

    def step(self, asked: Act) -> dict[str, Any]:
        with self._answering:
            step = self._seat.step(asked.text)
            return self._seen(step, step.reward)

    def state(self) -> dict[str, Any]:
        seat = self._seat
        return State(
            episode_id=self._episode,
            step_count=seat.steps,
            game=seat.game.id if seat.game else None,
            reward=seat.reward,
            done=seat.over,
            won=seat.won,
        ).model_dump()

    def idle(self, since: float) -> bool:
        return self.asked_at < since and not self._answering.locked()

    def close(self) -> None:
        with self._answering:
            self._seat.close()

    def _seen(self, step: Step, reward: float | None) -> dict[str, Any]:
        game = self._seat.game.id if self._seat.game else ""
        seen = Observation(
            text=step.observation, game=game, won=step.won, truncated=step.cut, episode_id=self._episode
        )
        return {"observation": seen.model_dump(), "reward": reward, "done": step.done}


class Sessions:
    """By name. One that nothing was asked of for a while makes room for the next."""

    def __init__(self, world: World, games: Games, counter: Counter | None, idle_seconds: float) -> None:
        self.idle_seconds = idle_seconds
        self._world, self._games, self._counter = world, games, counter
        self._open: dict[str, Session] = {}
        self._lock = threading.RLock()

    def open(self, name: str) -> Session:
        """The one of this name, or else a new one."""
        with self._lock:
            return self.get(name) or self._new(name)

    def _new(self, name: str) -> Session:
        if len(self._open) >= MOST:
            raise Full(
                f"{MOST} sessions are open, which is as many as there may be.",
                f"Close some, or wait: they are dropped after {self.idle_seconds:g} s without a question.",
            )
        seat = Seat(self._world, self._counter) if self._counter else CLAIMS.seat(self._world)
        session = self._open[name] = Session(seat, self._games)
        return session

    def get(self, name: str) -> Session | None:
        with self._lock:
            self._sweep()
            session = self._open.get(name)
            if session:
                session.asked_at = time.monotonic()
            return session

    def drop(self, name: str) -> None:
        with self._lock:
            session = self._open.pop(name, None)
        if session:  # what it is about to answer comes first, and others need not wait for it
            session.close()

    def _sweep(self) -> None:
        oldest = time.monotonic() - self.idle_seconds
        for name in [name for name, session in self._open.items() if session.idle(oldest)]:
            self.drop(name)
