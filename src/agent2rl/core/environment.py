"""An environment is a world that a model acts in, one text at a time. It knows nothing of engines."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

from agent2rl.core.task import Example


@dataclass(frozen=True, slots=True)
class EnvironmentStep:
    """What the world says, and how the episode stands."""

    observation: str
    reward: float = 0.0
    """For this step alone."""
    done: bool = False
    """No further action is taken: the episode is won, lost or out of steps."""
    won: bool = False
    cut: bool = False
    """Done only because the steps are used up: the world itself would have gone on."""
    marks: Mapping[str, float] = field(default_factory=dict)
    """What else the episode is worth as it stands, each from 0 to 1; every step of a world has the same."""


class Environment(Protocol):
    """One episode after another, each begun with `reset`. Episodes at once need an environment each."""

    def reset(self, example: Example) -> EnvironmentStep:
        """Begin the episode that an example names, and give what is seen first."""
        ...

    def step(self, action: str) -> EnvironmentStep:
        """Act. Any text is an action: one that makes no sense is answered, never raised."""
        ...

    def close(self) -> None:
        """Give back what the world holds."""
        ...


@runtime_checkable
class CommandLister(Protocol):
    """An environment that can say what can be done now. It says so to people; a model has to find out."""

    def commands(self) -> tuple[str, ...]:
        """Actions that do something, letter for letter; free words, as of a search, are not among them."""
        ...


class ExpertPolicy(Protocol):
    """Plays one episode well: it is given each observation in turn, the first included."""

    def act(self, observation: str) -> str: ...


@runtime_checkable
class RedirectableExpert(Protocol):
    """An expert that can go on from what another did."""

    def instead(self, action: str) -> None:
        """Not what it said last was done, but this. The next observation is the answer to it."""
        ...


@dataclass(frozen=True)
class World:
    """The games of a task's training data, and all that it takes to play them."""

    games: tuple[Example, ...]
    environment: Callable[[], Environment]
    """A place to play in; any number of them may be used at once."""
    expert: Callable[[], ExpertPolicy] | None = None
    """None where nobody shows how."""
    tools: tuple[Callable[..., str], ...] = ()
    """The actions as functions, for models that call tools: typed, documented, returning the action's text.

    None where any text is an action.
    """
    slow: bool = False
    """Whether a step may take so long that others should not wait for it, as a search may."""


OpenWorld = Callable[[Path], World]
"""What a world plugin provides: given a run's data directory, its training games."""
