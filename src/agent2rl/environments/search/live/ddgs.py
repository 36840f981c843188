"""Searches without a key, by the package ddgs (the extra `search`), which asks public search pages."""

import importlib
from dataclasses import dataclass, field
from typing import Any

from agent2rl.core.errors import UserError, WorldError
from agent2rl.core.passing import Passing
from agent2rl.environments.search.backend import Result
from agent2rl.environments.search.live.pages import Pages
from agent2rl.environments.search.live.patience import Patience

SHOWN = 5


@dataclass
class Ddgs:
    patience: Patience = field(default_factory=lambda: Patience(per_second=0.5))
    pages: Pages = field(default_factory=Pages)

    def __post_init__(self) -> None:
        try:
            self._ddgs: Any = importlib.import_module("ddgs")
            self._errors: Any = importlib.import_module("ddgs.exceptions")
        except ImportError as error:
            raise UserError("The package ddgs is not installed.", "Install agent2rl[search].") from error

    def search(self, query: str) -> tuple[Result, ...]:
        rows = self.patience.ask("ddgs", lambda: self._request(query))
        found = (
            Result(str(row["href"]), str(row.get("title") or row["href"]), str(row.get("body") or ""))
            for row in rows
            if row.get("href")
        )
        return tuple(found)[:SHOWN]

    def open(self, id: str) -> str:  # noqa: A002
        return self.pages.read(id)

    def _request(self, query: str) -> list[dict[str, Any]]:
        try:
            seconds = int(self.patience.answer_seconds)
            rows: list[dict[str, Any]] = self._ddgs.DDGS(timeout=seconds).text(query, max_results=SHOWN)
        except (self._errors.RatelimitException, self._errors.TimeoutException) as error:
            raise Passing(type(error).__name__) from error
        except self._errors.DDGSException as error:
            # "No results found", too: it says so as well where every page that it asked refused to answer.
            raise Passing(f"{type(error).__name__}: {str(error)[:100]}") from error
        except Exception as error:  # of the many libraries below it
            raise WorldError(f"ddgs failed: {type(error).__name__}") from error
        return rows
