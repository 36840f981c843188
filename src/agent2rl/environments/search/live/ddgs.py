"""Searches without a key, by the package ddgs (the extra `search`), which asks public search pages."""

import importlib
from dataclasses import dataclass, field
from typing import Any

from agent2rl.core.errors import UserError, WorldError
from agent2rl.core.transient_errors import TransientError
from agent2rl.environments.search.backend import SearchResult
from agent2rl.environments.search.live.page_reader import PageReader
from agent2rl.environments.search.live.retry import RateLimitedRetry

DDGS_RESULTS = 5


@dataclass
class DdgsBackend:
    patience: RateLimitedRetry = field(default_factory=lambda: RateLimitedRetry(per_second=0.5))
    pages: PageReader = field(default_factory=PageReader)

    def __post_init__(self) -> None:
        try:
            self._ddgs: Any = importlib.import_module("ddgs")
            self._errors: Any = importlib.import_module("ddgs.exceptions")
        except ImportError as error:
            raise UserError("The package ddgs is not installed.", "Install agent2rl[search].") from error

    def search(self, query: str) -> tuple[SearchResult, ...]:
        rows = self.patience.call_with_retries("ddgs", lambda: self._send_request(query))
        found = (
            SearchResult(str(row["href"]), str(row.get("title") or row["href"]), str(row.get("body") or ""))
            for row in rows
            if row.get("href")
        )
        return tuple(found)[:DDGS_RESULTS]

    def open(self, id: str) -> str:  # noqa: A002
        return self.pages.read(id)

    def _send_request(self, query: str) -> list[dict[str, Any]]:
        try:
            seconds = int(self.patience.answer_seconds)
            rows: list[dict[str, Any]] = self._ddgs.DDGS(timeout=seconds).text(query, max_results=DDGS_RESULTS)
        except (self._errors.RatelimitException, self._errors.TimeoutException) as error:
            raise TransientError(type(error).__name__) from error
        except self._errors.DDGSException as error:
            # "No results found", too: it says so as well where every page that it asked refused to answer.
            raise TransientError(f"{type(error).__name__}: {str(error)[:100]}") from error
        except Exception as error:  # of the many libraries below it
            raise WorldError(f"ddgs failed: {type(error).__name__}") from error
        return rows
