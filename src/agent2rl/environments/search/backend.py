"""What a search stands on: something that finds documents for a query and opens one of them.

A backend that cannot answer, for whatever reason, raises `WorldError`: its message is what the model sees.
"""

from dataclasses import dataclass
from typing import Protocol

from agent2rl.core.desk import Desk, Unanswered
from agent2rl.core.errors import WorldError

PAGE_CHARACTERS = 20_000
"""As much of a page as anybody is given."""
NOT_RECORDED = "not recorded"
"""How the desk calls what `NotRecorded` is here."""
REFUSED = "refused"
"""And what `Refused` is."""


@dataclass(frozen=True, slots=True)
class Result:
    """A document as a search shows it."""

    id: str
    title: str
    snippet: str


@dataclass(frozen=True, slots=True)
class Document:
    id: str
    title: str
    text: str


class NotRecorded(WorldError):
    """A replay was asked for what it does not hold."""


class Refused(WorldError):
    """A backend does not take this query: that is the query's fault, and no failure of the backend."""


class Backend(Protocol):
    """May be asked by several threads at once."""

    def search(self, query: str) -> tuple[Result, ...]:
        """The best documents first."""
        ...

    def open(self, id: str) -> str:  # noqa: A002
        """The text of a document that a search has found."""
        ...


@dataclass(frozen=True)
class Elsewhere:
    """A backend of the harness, asked over its desk."""

    desk: Desk

    def search(self, query: str) -> tuple[Result, ...]:
        try:
            return tuple(Result(*found) for found in self.desk.search(query).results)
        except Unanswered as error:
            raise _failure(error) from error

    def open(self, id: str) -> str:  # noqa: A002
        try:
            return self.desk.open(id).page
        except Unanswered as error:
            raise _failure(error) from error


def _failure(error: Unanswered) -> WorldError:
    kinds: dict[str, type[WorldError]] = {NOT_RECORDED: NotRecorded, REFUSED: Refused}
    return kinds.get(error.kind, WorldError)(error.message)
