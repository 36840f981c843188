"""What was asked and said, a line for each request: what the gateway's own count is compared with."""

import json
from pathlib import Path
from typing import IO, Literal

from pydantic import JsonValue

from agent2rl.core.errors import UserError
from agent2rl.core.llm import TokenCounts, Wire
from agent2rl.core.records import Record

Kind = Literal["main", "side", "count", "models", "unknown"]
"""A step of the script; a side request; a count of tokens; a list of models; a path that nobody knows."""
Outcome = Literal["answered", "failed", "cut", "silent", "abandoned"]
"""Wholly answered; an error; broken off, or never begun, as the script says; the client went away."""


class RequestLogLine(Record):
    at: float
    """Unix time of the request."""
    seconds: float
    kind: Kind
    wire: Wire | None
    model: str
    path: str
    stream: bool
    status: int | None
    """None: no answer was begun."""
    outcome: Outcome
    tokens: TokenCounts | None
    """What the wire format told, as far as it was sent; None: nothing."""
    conversation: int | None = None
    step: int | None = None
    """From 1."""
    label: str | None = None
    attempt: int = 1
    """Which request for this step it was."""
    tools: tuple[str, ...] = ()
    """Offered."""
    result: str = ""
    """What the agent reported back."""
    text: str = ""
    """What was to be said."""
    think: str = ""
    calls: tuple[dict[str, JsonValue], ...] = ()


class RequestLog:
    """Lines of JSON in a file, where one is named."""

    def __init__(self, path: Path | None) -> None:
        self._file: IO[str] | None = None
        if path:
            try:
                self._file = path.open("a", encoding="ascii")
            except OSError as error:
                raise UserError(f"The record cannot be written to {path}: {error.strerror}.") from error

    def add_line(self, line: RequestLogLine) -> None:
        if self._file:
            self._file.write(json.dumps(line.model_dump()) + "\n")
            self._file.flush()

    def close(self) -> None:
        if self._file:
            self._file.close()
