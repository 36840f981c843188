"""Open the run's world, select games and play counted episodes. All adapters build on this module.

`open_world` finds the world through the data directory, `GameSelector` picks a game by name or in a seeded
order, and `EpisodeSlot` plays one episode at a time, counts every step and keeps the actions for a replay.
"""

import importlib
import json
import logging
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from agent2rl.core.environment import Environment, EnvironmentStep, OpenWorld, World
from agent2rl.core.errors import Agent2RLError, UserError
from agent2rl.core.task import Example

logger = logging.getLogger(__name__)

# Opening the world of the current run: a file in the data directory names it.

WORLD_FILE = "world.json"
"""{"world": "module:ATTRIBUTE"}, in the data directory. With `"expert": false`, the world has no expert."""


def open_world(data: Path | None = None) -> World:
    """Open the training games in a data directory, by default the run's `$DATA_PATH`."""
    if data is None:
        if "DATA_PATH" not in os.environ:
            raise UserError("DATA_PATH is not set: not inside a run.", "Pass the data directory.")
        data = Path(os.environ["DATA_PATH"])
    try:
        card = json.loads((data / WORLD_FILE).read_text(encoding="utf-8"))
        address, has_expert = str(card["world"]), bool(card.get("expert", True))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"Cannot read the training world in {data}: {type(error).__name__}: {error}.",
            f"Pass a data directory with a {WORLD_FILE}.",
        ) from error
    module, _, attribute = address.partition(":")
    open_data: OpenWorld = getattr(importlib.import_module(module), attribute)
    world = open_data(data) if has_expert else replace(open_data(data), expert=None)
    logger.debug("Opened %s with %d training games from %s", address, len(world.games), data)
    return world


# Game selection


class GameSelector:
    """Select training games by name, or in a random order that a seed determines."""

    def __init__(self, world: World) -> None:
        if not world.games:
            raise UserError("This world has no games.")
        self._games = world.games
        self._games_by_id = {game.id: game for game in world.games}

    def find_game(self, name: str) -> Example:
        if name in self._games_by_id:
            return self._games_by_id[name]
        # Suggest no closest name: that takes a second among thousands, and would block a served world.
        raise UserError(
            f"There is no training game {name[:200]!r}.",
            f"Use a valid game id, such as {self._games[0].id!r}.",
        )

    def iter_shuffled(self, seed: int | None = None) -> Iterator[Example]:
        """Yield games endlessly, each once before any repeats. Without a seed, the order varies."""
        rng = random.Random(seed)
        while True:
            yield from rng.sample(self._games, len(self._games))


# Counted episodes


class StepsUsedUp(Agent2RLError):
    """The run's budget of environment steps is used up."""

    def __init__(self) -> None:
        super().__init__(
            "The budget of environment steps is used up.",
            "Train on the episodes you have, and submit.",
        )

    def __reduce__(self) -> tuple[type["StepsUsedUp"], tuple[()]]:
        return (StepsUsedUp, ())  # pickles without arguments, so it can cross process boundaries


class StepCounter(Protocol):
    """Count episodes and steps, and refuse them once the budget is used up."""

    def begin_episode(self) -> None:
        """Count an episode that is about to begin. Raises StepsUsedUp if it may not."""
        ...

    def require_budget(self) -> None:
        """Check that a step may be taken. Raises StepsUsedUp if it may not."""
        ...

    def count_step(self, won: bool) -> None:
        """Count a step that was taken; `won` if it won the episode."""
        ...


@dataclass(frozen=True)
class EpisodeTrace:
    """The actions and the outcome of an episode, from which it can be replayed."""

    game: str
    actions: tuple[str, ...]
    reward: float
    """That of the best step."""
    won: bool


class EpisodeSlot:
    """Play one episode at a time in an environment, counting every step.

    `keep_trace` gets the trace of each episode when it is over, or when the next one begins.
    """

    __slots__ = (
        "__weakref__",
        "_actions",
        "_counter",
        "_environment",
        "_keep_trace",
        "game",
        "over",
        "reward",
        "steps",
        "won",
    )

    def __init__(
        self,
        environment: Environment,
        counter: StepCounter,
        keep_trace: Callable[[EpisodeTrace], None] | None = None,
    ) -> None:
        self._environment = environment
        self._counter = counter
        self._keep_trace = keep_trace
        self._actions: list[str] | None = None
        self.game: Example | None = None
        self.steps = 0
        self.reward = 0.0
        """The reward of the episode: that of its best step, as in grading."""
        self.won = False
        self.over = True

    def reset(self, game: Example) -> EnvironmentStep:
        self.finish_trace()
        self._counter.begin_episode()
        step = self._environment.reset(game)
        self.game, self.steps, self.reward = game, 0, step.reward
        self.won, self.over = step.won, step.done
        self._actions = [] if self._keep_trace else None
        return step

    def step(self, action: str) -> EnvironmentStep:
        if self.over:
            raise UserError("No episode is running: it is over, or has not begun.", "Call reset first.")
        counter = self._counter
        counter.require_budget()
        step = self._environment.step(action)
        # Later steps may be won too; an episode counts as won once.
        counter.count_step(step.won and not self.won)
        self.steps += 1
        if step.reward > self.reward:
            self.reward = step.reward
        self.won, self.over = step.won, step.done
        if self._actions is not None:
            self._actions.append(action)
            if step.done:
                self.finish_trace()
        return step

    def close(self) -> None:
        self.finish_trace()
        self._environment.close()
        self.over = True

    def drop_trace(self) -> None:
        """Keep no trace of the current episode."""
        self._actions = None

    def finish_trace(self) -> None:
        """Hand over the trace of the current episode as it is now."""
        if self._actions is not None and self._keep_trace and self.game:
            self._keep_trace(EpisodeTrace(self.game.id, tuple(self._actions), self.reward, self.won))
        self._actions = None
