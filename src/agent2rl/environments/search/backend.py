"""What a search stands on: something that finds documents for a query and opens one of them.

A backend that cannot answer, for whatever reason, raises `WorldError`: its message is what the model sees.
"""

from dataclasses import dataclass
from typing import Protocol


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


class Backend(Protocol):
    """May be asked by several threads at once."""

    def search(self, query: str) -> tuple[Result, ...]:
        """The best documents first."""
        ...

    def open(self, id: str) -> str:  # noqa: A002
        """The text of a document that a search has found."""
        ...
