"""Plays training games, one counted episode at a time: finds the run's world, picks a game, takes steps.

`open_world` finds the world through the data directory, `GameSelector` picks a game by name or in a seeded
order, and `EpisodeSlot` plays one episode and counts every step. All adapters build on it.
"""

import importlib
import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from agent2rl.core.environment import EnvironmentStep, OpenWorld, World
from agent2rl.core.errors import Agent2RLError, UserError
from agent2rl.core.task import Example

# Finds the world of the run that a program is part of: the workspace's data directory says which it is.

WORLD_FILE = "world.json"
"""{"world": "module:ATTRIBUTE"}, in the data directory."""


def open_world(data: Path | None = None) -> World:
    """The training games in a data directory; by default that of the run, `$DATA_PATH`."""
    if data is None:
        if "DATA_PATH" not in os.environ:
            raise UserError("There is no run here: DATA_PATH is not set.", "Name the data directory.")
        data = Path(os.environ["DATA_PATH"])
    try:
        address = str(json.loads((data / WORLD_FILE).read_text(encoding="utf-8"))["world"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{data} holds no world to train in: {type(error).__name__}: {error}.") from error
    module, _, attribute = address.partition(":")
    opened: OpenWorld = getattr(importlib.import_module(module), attribute)
    return opened(data)


# Which game is played: one that is named, or the next of a random order that a seed decides.


class GameSelector:
    def __init__(self, world: World) -> None:
        if not world.games:
            raise UserError("This world has no games.")
        self._games = world.games
        self._named = {game.id: game for game in world.games}

    def find_game(self, name: str) -> Example:
        if name in self._named:
            return self._named[name]
        # No closest name: among thousands that takes a second, and a served world must not wait for it.
        raise UserError(
            f"There is no training game {name[:200]!r}.", f"One of them is {self._games[0].id!r}."
        )

    def iter_shuffled(self, seed: int | None = None) -> Iterator[Example]:
        """For ever, every game once before any comes again. Without a seed, differently each time."""
        chance = random.Random(seed)
        while True:
            yield from chance.sample(self._games, len(self._games))


# A place to play in: one episode at a time, every step of it counted. All faces of a world sit on it.


class StepsUsedUp(Agent2RLError):
    """The budget has no more steps in the world."""

    def __init__(self) -> None:
        super().__init__(
            "The budget's steps in the world are used up.",
            "Train on what was played, and submit.",
        )

    def __reduce__(self) -> tuple[type["StepsUsedUp"], tuple[()]]:
        return (StepsUsedUp, ())  # so that it crosses from one process to another


class StepCounter(Protocol):
    def begin(self) -> None:
        """An episode is about to begin. Raises StepsUsedUp where it may not."""
        ...

    def allow(self) -> None:
        """A step is about to be taken. Raises StepsUsedUp where it may not."""
        ...

    def stepped(self, won: bool) -> None:
        """It was taken, and it won the episode or did not."""
        ...


class EpisodeSlot:
    __slots__ = ("__weakref__", "_counter", "_environment", "game", "over", "reward", "steps", "won")

    def __init__(self, world: World, counter: StepCounter) -> None:
        self._environment = world.environment()
        self._counter = counter
        self.game: Example | None = None
        self.steps = 0
        self.reward = 0.0
        """The episode's: its best step's, as in grading."""
        self.won = False
        self.over = True

    def reset(self, game: Example) -> EnvironmentStep:
        self._counter.begin()
        step = self._environment.reset(game)
        self.game, self.steps, self.reward = game, 0, step.reward
        self.won, self.over = step.won, step.done
        return step

    def step(self, action: str) -> EnvironmentStep:
        if self.over:
            raise UserError("No episode goes on here: it is over, or was not begun.", "Call reset first.")
        counter = self._counter
        counter.allow()
        step = self._environment.step(action)
        counter.stepped(step.won and not self.won)
        self.steps += 1
        if step.reward > self.reward:
            self.reward = step.reward
        self.won, self.over = step.won, step.done
        return step

    def close(self) -> None:
        self._environment.close()
        self.over = True
