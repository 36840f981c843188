"""A world as a model meets it in grading: how it is told what it sees, and how its action is read.

Who trains says both, with the values that the grader uses: this package knows neither worlds nor evaluators.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from agent2rl.core.engine import Chat, Sampling
from agent2rl.core.environment import Environment
from agent2rl.core.task import Example


class ObservationFormatter(Protocol):
    """Puts a world to a model that has a chat template, or continues text without one."""

    def build_first_message(self, seen: str, as_chat: bool, kind: str = "") -> Chat: ...

    def build_next_message(self, seen: str, as_chat: bool) -> Chat: ...


@dataclass(frozen=True)
class Arena:
    world: Callable[[], Environment]
    """A place to play in; many are used at once."""
    telling: ObservationFormatter
    action: Callable[[str], str]
    """The action in a reply."""
    sampling: Sampling
    """How long a reply may be, and what ends it; its temperature and seed are not used."""
    kind: Callable[[Example], str] = lambda _: ""
    """Of a game, where kinds are told in words of their own."""
