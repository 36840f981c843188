"""An environment is a world that a model acts in, one text at a time."""

from dataclasses import dataclass
from typing import Protocol

from agent2rl.core.task import Example


@dataclass(frozen=True)
class Step:
    """What came of an action; the first one is what there is to see before any."""

    observation: str
    reward: float = 0.0
    done: bool = False
    """Whether the episode is over: won, lost or out of steps."""


class Environment(Protocol):
    """One world; an episode in it begins with `reset`."""

    def reset(self, example: Example) -> Step: ...

    def step(self, action: str) -> Step:
        """Any text is an action; one that makes no sense changes nothing."""
        ...

    def close(self) -> None: ...
