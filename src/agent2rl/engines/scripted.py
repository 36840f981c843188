"""A Python function as a model: `scripted:package.module:function`.

The function opens a model directory and returns a function that answers a chat:

    def function(model_dir: Path) -> Callable[[Chat], str]: ...

It is as deterministic as the function; temperature and seed have no effect. A token is a run of characters
without white space.
"""

import importlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from agent2rl.core.engine import Chat, Completion, Engine, OpenEngine, Sampling
from agent2rl.core.errors import GradingError, UserError


@dataclass(frozen=True)
class ScriptedEngine:
    answer: Callable[[Chat], str]

    def generate(self, chats: Sequence[Chat], sampling: Sampling) -> list[Completion]:
        return [self._complete_chat(chat, sampling) for chat in chats]

    def _complete_chat(self, chat: Chat, sampling: Sampling) -> Completion:
        text: object = self.answer(chat)
        if not isinstance(text, str):
            raise GradingError(f"The scripted model answered with {type(text).__name__} instead of text.")
        # A lone surrogate cannot be encoded as UTF-8, and no real engine returns one.
        text = text.encode("utf-8", errors="replace").decode("utf-8")
        for stop in filter(None, sampling.stop):
            text = text.partition(stop)[0]
        ends = [token.end() for token in re.finditer(r"\S+", text)]
        if len(ends) > sampling.max_tokens:
            ends = ends[: sampling.max_tokens]
            text = text[: ends[-1]] if ends else ""
        return Completion(text, tokens=len(ends))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing to release."""


def parse(argument: str) -> OpenEngine:
    """Return the engine of the function `package.module:function`."""
    if not re.fullmatch(r"\w+(\.\w+)*:\w+", argument):
        raise UserError(
            f"{argument!r} does not name a function.", "Write it as scripted:package.module:function."
        )
    module, _, name = argument.partition(":")
    try:
        function = getattr(importlib.import_module(module), name, None)
    except ImportError as error:
        raise UserError(
            f"Cannot import the module {module!r}: {error}.", "Install it or add it to PYTHONPATH."
        ) from error
    if not callable(function):
        raise UserError(f"The module {module!r} has no function {name!r}.")

    def open_engine(model_dir: Path) -> Engine:
        return ScriptedEngine(function(model_dir))

    return open_engine
