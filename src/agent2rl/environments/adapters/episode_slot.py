"""A place to play in: one episode at a time, every step of it counted. All faces of a world sit on it."""

from typing import Protocol

from agent2rl.core.environment import EnvironmentStep, World
from agent2rl.core.errors import Agent2RLError, UserError
from agent2rl.core.task import Example


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
