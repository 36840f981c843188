"""Live search engines: Tavily, Brave, SerpAPI and SearXNG over HTTP, and ddgs, which needs no key.

Requests are rate limited and retried after transient failures. A key is sent only to its engine: messages
contain the engine's name and status, never an address or the answer's text, since both may hold the key.
"""

import importlib
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import httpx

from agent2rl.core.errors import TransientError, UserError, WorldError, parse_retry_after
from agent2rl.environments.search.backends import QueryRefused, SearchResult
from agent2rl.environments.search.page_reader import PageReader, ServerAddress

# Asks somebody else's server: not faster than it likes, and again where a failure may pass by itself.

T = TypeVar("T")


@dataclass
class RateLimitedRetry:
    per_second: float = 1.0
    """Requests, all threads together."""
    attempts: int = 4
    first_seconds: float = 1.0
    """The first pause; each further one is twice as long."""
    longest_seconds: float = 30.0
    answer_seconds: float = 20.0
    """The time of one request."""
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _next: float = 0.0

    def call_with_retries(self, who: str, request: Callable[[], T]) -> T:
        """What a request gives in the end; it raises `TransientError` for what may be tried again."""
        for attempt in range(self.attempts):
            self._wait_for_turn()
            try:
                return request()
            except TransientError as failure:
                last = failure
            if attempt + 1 < self.attempts:
                pause = max(self.first_seconds * 2.0**attempt, last.seconds)
                time.sleep(min(pause, self.longest_seconds))
        raise WorldError(f"{who} was asked {self.attempts} times without success: {last}")

    def _wait_for_turn(self) -> None:
        """Wait for the next place in the line."""
        with self._lock:
            now = time.monotonic()
            mine = max(now, self._next)
            self._next = mine + 1 / self.per_second
        time.sleep(mine - now)


# Search engines over HTTP, one row of a table each: how it is asked, and where its answer has the
# results.

SHOWN = 5
"""Results of a search."""
ANSWER_BYTES = 4 << 20
_TAG = re.compile(r"</?[a-zA-Z][^<>]{0,200}>")


@dataclass(frozen=True)
class SearchEngine:
    """A search engine, as its own documentation has it."""

    name: str
    url: str
    key: str | None
    """The environment variable of its key."""
    ask: Callable[[str, str], dict[str, Any]]
    """A query and the key → what httpx is to send; with `json` it is a POST."""
    rows: tuple[str, ...]
    """Where in the answer the list of results is."""
    fields: tuple[str, str, str] = ("url", "title", "content")
    """A result's address, title and snippet."""
    per_second: float = 1.0
    most_words: int | None = None
    """Of a query, where the engine has such a limit."""


ENGINES: Mapping[str, SearchEngine] = {
    engine.name: engine
    for engine in (
        SearchEngine(
            "tavily",
            "https://api.tavily.com/search",
            "TAVILY_API_KEY",
            lambda query, key: {
                "headers": {"Authorization": f"Bearer {key}"},
                "json": {"query": query, "max_results": SHOWN},
            },
            ("results",),
            per_second=5,
        ),
        SearchEngine(
            "brave",
            "https://api.search.brave.com/res/v1/web/search",
            "BRAVE_API_KEY",
            lambda query, key: {
                "headers": {"X-Subscription-Token": key, "Accept": "application/json"},
                "params": {"q": query, "count": SHOWN},
            },
            ("web", "results"),
            ("url", "title", "description"),
            per_second=1,
            most_words=50,
        ),
        SearchEngine(
            "serpapi",
            "https://serpapi.com/search.json",
            "SERPAPI_API_KEY",
            lambda query, key: {
                "params": {"engine": "google", "q": query, "num": SHOWN, "api_key": key},
            },
            ("organic_results",),
            ("link", "title", "snippet"),
            per_second=2,
        ),
    )
}


def make_searxng_engine(url: str) -> SearchEngine:
    """An instance of SearXNG; its settings must allow the format json."""
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise UserError(f"{url!r} is no URL: {error}.", "Write searxng:https://HOST.") from None
    if parsed.scheme not in ("http", "https") or not parsed.host or parsed.userinfo or parsed.query:
        raise UserError(f"{url!r} is no address of an instance.", "Write searxng:https://HOST.")
    return SearchEngine(
        "searxng",
        f"{url.rstrip('/')}/search",
        None,
        lambda query, _: {"params": {"q": query, "format": "json"}},
        ("results",),
    )


@dataclass
class EngineBackend:
    """A search engine as a backend; the ids of its results are their addresses."""

    engine: SearchEngine
    key: str = field(default="", repr=False)
    patience: RateLimitedRetry | None = None
    pages: PageReader | None = None
    url: str | None = None
    """Another address than the engine's own."""

    def __post_init__(self) -> None:
        self._patience = self.patience or RateLimitedRetry(self.engine.per_second)
        self._url = self.url or self.engine.url
        self._client = httpx.Client(timeout=self._patience.answer_seconds)
        # Only an instance of one's own may lie in one's own network, and then its pages may, too.
        own = ServerAddress.from_url(self._url) if self.engine.key is None else None
        self._pages = self.pages or PageReader(own)

    def search(self, query: str) -> tuple[SearchResult, ...]:
        answer = self._patience.call_with_retries(self.engine.name, lambda: self._send_request(query))
        found = (_parse_result(row, self.engine.fields) for row in _find_rows(answer, self.engine))
        return tuple(result for result in found if result)[:SHOWN]

    def open(self, id: str) -> str:  # noqa: A002
        return self._pages.read(id)

    def _send_request(self, query: str) -> Any:
        if self.engine.most_words:
            query = " ".join(query.split()[: self.engine.most_words])
        sent = self.engine.ask(query, self.key)
        method = "POST" if "json" in sent else "GET"
        try:
            with self._client.stream(method, self._url, **sent) as answer:
                self._check_status(answer)
                body = b""
                for part in answer.iter_bytes():
                    body += part
                    if len(body) > ANSWER_BYTES:
                        raise WorldError(f"{self.engine.name} answered with more than 4 MB")
            return _check_engines_answered(httpx.Response(200, content=body).json())
        except httpx.TransportError as error:
            raise TransientError(type(error).__name__) from None
        except httpx.HTTPError as error:
            raise WorldError(f"{self.engine.name} cannot be read: {type(error).__name__}") from None
        except (ValueError, RecursionError):
            raise WorldError(f"{self.engine.name} did not answer with JSON") from None

    def _check_status(self, answer: httpx.Response) -> None:
        status = answer.status_code
        if status == 429 or status >= 500:
            raise TransientError(f"status {status}", parse_retry_after(answer.headers.get("Retry-After", "")))
        if status in (401, 403):
            of = f"the key in {self.engine.key}" if self.engine.key else "to answer in JSON"
            raise WorldError(f"{self.engine.name} refuses {of} (status {status})")
        if status in (400, 414, 422):
            raise QueryRefused(f"{self.engine.name} does not take this query (status {status})")
        if status != 200:
            raise WorldError(f"{self.engine.name} answered with status {status}")


def _check_engines_answered(answer: Any) -> Any:
    """SearXNG says that nothing was found, too, where the engines behind it did not answer."""
    if isinstance(answer, dict) and not answer.get("results") and answer.get("unresponsive_engines"):
        raise TransientError("the engines behind it do not answer")
    return answer


def _find_rows(answer: Any, engine: SearchEngine) -> list[Any]:
    """No list where one should be is a list of none, but an answer that is no object is a failure."""
    if not isinstance(answer, dict):
        raise WorldError(f"{engine.name} answered with something else than results")
    found: Any = answer
    for key in engine.rows:
        found = found.get(key) if isinstance(found, dict) else None
    return found if isinstance(found, list) else []


def _parse_result(row: Any, fields: tuple[str, str, str]) -> SearchResult | None:
    if not isinstance(row, dict) or not isinstance(row.get(fields[0]), str):
        return None
    title, snippet = (_TAG.sub("", str(row.get(name) or "")) for name in fields[1:])
    return SearchResult(row[fields[0]], title or row[fields[0]], snippet)


# Searches without a key, by the package ddgs (the extra `search`), which asks public search pages.

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
            rows: list[dict[str, Any]] = self._ddgs.DDGS(timeout=seconds).text(
                query, max_results=DDGS_RESULTS
            )
        except (self._errors.RatelimitException, self._errors.TimeoutException) as error:
            raise TransientError(type(error).__name__) from error
        except self._errors.DDGSException as error:
            # "No results found", too: it says so as well where every page that it asked refused to answer.
            raise TransientError(f"{type(error).__name__}: {str(error)[:100]}") from error
        except Exception as error:  # of the many libraries below it
            raise WorldError(f"ddgs failed: {type(error).__name__}") from error
        return rows


# Search engines of the world outside: ddgs, Tavily, Brave, SerpAPI, SearXNG, and the pages that they
# find.

__all__ = ["ENGINES", "DdgsBackend", "EngineBackend", "make_searxng_engine"]
