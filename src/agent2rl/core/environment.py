"""An environment is a world that a model acts in, one text action at a time, independent of engines."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

from agent2rl.core.task import Example


@dataclass(frozen=True, slots=True)
class EnvironmentStep:
    """An observation, its reward and the state of the episode."""

    observation: str
    reward: float = 0.0
    """Of this step alone."""
    done: bool = False
    """No further actions are accepted: the episode is won, lost or out of steps."""
    won: bool = False
    cut: bool = False
    """Truncated: done only because the step limit is reached."""
    marks: Mapping[str, float] = field(default_factory=dict)
    """Further metrics of the episode so far, each from 0 to 1; every step of a world has the same keys."""
    invalid: bool | None = None
    """Whether the text is not an action that can be taken here. None: the world does not say."""


class Environment(Protocol):
    """Runs one episode at a time, each started with `reset`. Parallel episodes need an environment each."""

    def reset(self, example: Example) -> EnvironmentStep:
        """Start the episode that an example names, and return the first observation."""
        ...

    def step(self, action: str) -> EnvironmentStep:
        """Take an action. Any text is an action: an invalid one gets an observation, never an exception."""
        ...

    def close(self) -> None:
        """Release the world's resources."""
        ...


@runtime_checkable
class CommandLister(Protocol):
    """An environment that can list the valid actions. They are shown to people, not to models."""

    def commands(self) -> tuple[str, ...]:
        """Return the exact actions that are valid now, without those with free text, such as searches."""
        ...


class ExpertPolicy(Protocol):
    """Plays one episode well; it gets each observation in turn, including the first."""

    def act(self, observation: str) -> str: ...


@runtime_checkable
class RedirectableExpert(Protocol):
    """An expert that can continue after another player's action."""

    def replace_action(self, action: str) -> None:
        """Replace the expert's last action with this one. The next observation is the reply to it."""
        ...


@dataclass(frozen=True)
class World:
    """The games of a task's training data, and everything needed to play them."""

    games: tuple[Example, ...]
    environment: Callable[[], Environment]
    """Returns a new environment; any number of them may run at once."""
    expert: Callable[[], ExpertPolicy] | None = None
    """None if there are no expert demonstrations."""
    tools: tuple[Callable[..., str], ...] = ()
    """The actions as functions, for models that call tools: typed, documented, returning the action's text.

    Empty if any text is an action.
    """
    slow: bool = False
    """Whether a step, such as a search, may take so long that others should not wait for it."""
    replayable: bool = False
    """Whether the same actions always give the same rewards, and a step is cheap.

    The harness replays the reported episodes of such a world to check them.
    """


OpenWorld = Callable[[Path], World]
"""What a world plugin provides: a function from a run's data directory to its training games."""
