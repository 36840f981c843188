"""What a search stands on: something that finds documents for a query and opens one of them.

A backend that cannot answer, for whatever reason, raises `WorldError`: its message is what the model sees.
"""

from dataclasses import dataclass
from typing import Protocol

from agent2rl.core.errors import WorldError
from agent2rl.net.grading_proxy_client import GradingProxyClient, ProxyError

PAGE_CHARACTERS = 20_000
"""As much of a page as anybody is given."""
NOT_RECORDED = "not recorded"
"""How the desk calls what `NotRecorded` is here."""
REFUSED = "refused"
"""And what `QueryRefused` is."""


@dataclass(frozen=True, slots=True)
class SearchResult:
    """A document as a search shows it."""

    id: str
    title: str
    snippet: str


@dataclass(frozen=True, slots=True)
class SearchDocument:
    id: str
    title: str
    text: str


class NotRecorded(WorldError):
    """A replay was asked for what it does not hold."""


class QueryRefused(WorldError):
    """A backend does not take this query: that is the query's fault, and no failure of the backend."""


class Backend(Protocol):
    """May be asked by several threads at once."""

    def search(self, query: str) -> tuple[SearchResult, ...]:
        """The best documents first."""
        ...

    def open(self, id: str) -> str:  # noqa: A002
        """The text of a document that a search has found."""
        ...


@dataclass(frozen=True)
class DeskBackend:
    """A backend of the harness, asked over its desk."""

    desk: GradingProxyClient

    def search(self, query: str) -> tuple[SearchResult, ...]:
        try:
            return tuple(SearchResult(*found) for found in self.desk.search(query).results)
        except ProxyError as error:
            raise _to_world_error(error) from error

    def open(self, id: str) -> str:  # noqa: A002
        try:
            return self.desk.open(id).page
        except ProxyError as error:
            raise _to_world_error(error) from error


def _to_world_error(error: ProxyError) -> WorldError:
    kinds: dict[str, type[WorldError]] = {NOT_RECORDED: NotRecorded, REFUSED: QueryRefused}
    return kinds.get(error.kind, WorldError)(error.message)
