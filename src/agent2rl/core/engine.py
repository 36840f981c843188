"""An engine answers chats with text. It knows nothing of tasks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal, Protocol, Self


@dataclass(frozen=True)
class Message:
    role: Literal["system", "user", "assistant"]
    content: str


Chat = tuple[Message, ...]


@dataclass(frozen=True)
class Sampling:
    """How to sample: temperature 0 is greedy; each chat of a batch gets its own seed, derived from `seed`."""

    max_tokens: int = 512
    temperature: float = 0.0
    seed: int = 0
    stop: tuple[str, ...] = ()


@dataclass(frozen=True)
class Completion:
    text: str
    tokens: int
    """Tokens generated, as the engine counts them."""


class Engine(Protocol):
    """A loaded model; a context manager, so that its memory is given back."""

    def generate(self, chats: Sequence[Chat], sampling: Sampling) -> list[Completion]:
        """One completion for each chat, in order."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


OpenEngine = Callable[[Path], Engine]
"""What an engine plugin provides: given a model directory, a loaded engine."""
