"""Live search engines: Tavily, Brave, SerpAPI and SearXNG over HTTP, and ddgs, which needs no key.

`open_backend` opens any search backend by its name.

Requests are rate limited and retried after transient failures. A key is sent only to its engine: messages
contain the engine's name and status, never an address or the answer's text, since both may hold the key.
The model reads the messages of `ExternalServiceError`, so they are part of the measurement.
"""

import importlib
import logging
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import httpx

from agent2rl.core.errors import ExternalServiceError, TransientError, UserError, parse_retry_after
from agent2rl.environments.search.backends import (
    Backend,
    QueryRefused,
    ReplayBackend,
    SearchResult,
    read_corpus,
)
from agent2rl.environments.search.page_reader import PageReader, ServerAddress

# Rate limit and retries

logger = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass
class RateLimitedRetry:
    """Limit the request rate to a server, and retry requests that fail transiently."""

    per_second: float = 1.0
    """Requests per second, over all threads."""
    attempts: int = 4
    first_seconds: float = 1.0
    """The first pause; each further one is twice as long."""
    longest_seconds: float = 30.0
    """The longest pause."""
    answer_seconds: float = 20.0
    """Timeout of one request."""
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _next: float = 0.0

    def call_with_retries(self, engine: str, request: Callable[[], T]) -> T:
        """Return the result of a request. It raises `TransientError` for failures that may be retried."""
        for attempt in range(self.attempts):
            self._wait_for_turn()
            try:
                return request()
            except TransientError as failure:
                last = failure
                reason = str(failure).partition(":")[0]  # the rest may quote the query
                logger.debug("%s: attempt %d of %d failed: %s", engine, attempt + 1, self.attempts, reason)
            if attempt + 1 < self.attempts:
                pause = max(self.first_seconds * 2.0**attempt, last.seconds)
                time.sleep(min(pause, self.longest_seconds))
        raise ExternalServiceError(f"{engine} was asked {self.attempts} times without success: {last}")

    def _wait_for_turn(self) -> None:
        """Reserve the next free moment, and sleep until then."""
        with self._lock:
            now = time.monotonic()
            turn = max(now, self._next)
            self._next = turn + 1 / self.per_second
        time.sleep(turn - now)


# Search engines over HTTP: a table of their request and response formats

SHOWN = 5
"""Number of results of a search."""
ANSWER_BYTES = 4 << 20
_TAG = re.compile(r"</?[a-zA-Z][^<>]{0,200}>")


@dataclass(frozen=True)
class SearchEngine:
    """Request and response format of a search engine, from its documentation."""

    name: str
    url: str
    key: str | None
    """The environment variable with its API key."""
    ask: Callable[[str, str], dict[str, Any]]
    """Query and key → arguments of the httpx request; with `json` it is a POST."""
    rows: tuple[str, ...]
    """Path of the list of results in the answer."""
    fields: tuple[str, str, str] = ("url", "title", "content")
    """Names of a result's URL, title and snippet."""
    per_second: float = 1.0
    most_words: int | None = None
    """The engine's limit on the words of a query, if any."""


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
    """Describe a SearXNG instance; its settings must allow the format json."""
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise UserError(f"Invalid URL {url!r}: {error}.", "Use searxng:https://HOST.") from None
    if parsed.scheme not in ("http", "https") or not parsed.host or parsed.userinfo or parsed.query:
        raise UserError(f"Invalid SearXNG URL: {url!r}.", "Use searxng:https://HOST.")
    return SearchEngine(
        "searxng",
        f"{url.rstrip('/')}/search",
        None,
        lambda query, _: {"params": {"q": query, "format": "json"}},
        ("results",),
    )


@dataclass
class EngineBackend:
    """Search with a search engine; the ids of its results are their URLs."""

    engine: SearchEngine
    key: str = field(default="", repr=False)
    patience: RateLimitedRetry | None = None
    pages: PageReader | None = None
    url: str | None = None
    """Overrides the engine's own URL."""

    def __post_init__(self) -> None:
        self._patience = self.patience or RateLimitedRetry(self.engine.per_second)
        self._url = self.url or self.engine.url
        self._client = httpx.Client(timeout=self._patience.answer_seconds)
        # Only an instance that the user runs may be in a private network, and then its pages may be too.
        own = ServerAddress.from_url(self._url) if self.engine.key is None else None
        self._pages = self.pages or PageReader(own)

    def search(self, query: str) -> tuple[SearchResult, ...]:
        answer = self._patience.call_with_retries(self.engine.name, lambda: self._send_request(query))
        results = (_parse_result(row, self.engine.fields) for row in _find_rows(answer, self.engine))
        return tuple(result for result in results if result)[:SHOWN]

    def open(self, id: str) -> str:  # noqa: A002
        return self._pages.read(id)

    def _send_request(self, query: str) -> Any:
        if self.engine.most_words:
            query = " ".join(query.split()[: self.engine.most_words])
        arguments = self.engine.ask(query, self.key)
        method = "POST" if "json" in arguments else "GET"
        try:
            with self._client.stream(method, self._url, **arguments) as answer:
                self._check_status(answer)
                body = b""
                for part in answer.iter_bytes():
                    body += part
                    if len(body) > ANSWER_BYTES:
                        raise ExternalServiceError(f"{self.engine.name} answered with more than 4 MB")
            return _check_engines_answered(httpx.Response(200, content=body).json())
        except httpx.TransportError as error:
            # `from None`: the original error may quote the address, and with it the key.
            raise TransientError(type(error).__name__) from None
        except httpx.HTTPError as error:
            raise ExternalServiceError(f"{self.engine.name} cannot be read: {type(error).__name__}") from None
        except (ValueError, RecursionError):
            raise ExternalServiceError(f"{self.engine.name} did not answer with JSON") from None

    def _check_status(self, answer: httpx.Response) -> None:
        status = answer.status_code
        if status == 429 or status >= 500:
            raise TransientError(f"status {status}", parse_retry_after(answer.headers.get("Retry-After", "")))
        if status in (401, 403):
            refused = f"the key in {self.engine.key}" if self.engine.key else "to answer in JSON"
            raise ExternalServiceError(f"{self.engine.name} refuses {refused} (status {status})")
        if status in (400, 414, 422):
            raise QueryRefused(f"{self.engine.name} does not take this query (status {status})")
        if status != 200:
            raise ExternalServiceError(f"{self.engine.name} answered with status {status}")


def _check_engines_answered(answer: Any) -> Any:
    """Raise if SearXNG reports no results only because the engines behind it did not answer."""
    if isinstance(answer, dict) and not answer.get("results") and answer.get("unresponsive_engines"):
        raise TransientError("the engines behind it do not answer")
    return answer


def _find_rows(answer: Any, engine: SearchEngine) -> list[Any]:
    """Return the list of results. A missing list counts as empty, but an answer must be an object."""
    if not isinstance(answer, dict):
        raise ExternalServiceError(f"{engine.name} answered with something else than results")
    rows: Any = answer
    for key in engine.rows:
        rows = rows.get(key) if isinstance(rows, dict) else None
    return rows if isinstance(rows, list) else []


def _parse_result(row: Any, fields: tuple[str, str, str]) -> SearchResult | None:
    if not isinstance(row, dict) or not isinstance(row.get(fields[0]), str):
        return None
    title, snippet = (_TAG.sub("", str(row.get(name) or "")) for name in fields[1:])
    return SearchResult(row[fields[0]], title or row[fields[0]], snippet)


# Search without a key, through the package ddgs (the extra `search`), which queries public search pages

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
        results = (
            SearchResult(str(row["href"]), str(row.get("title") or row["href"]), str(row.get("body") or ""))
            for row in rows
            if row.get("href")
        )
        return tuple(results)[:DDGS_RESULTS]

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
            # Also "No results found": ddgs raises it too if every search page refused to answer.
            raise TransientError(f"{type(error).__name__}: {str(error)[:100]}") from error
        except Exception as error:  # from any of the libraries that ddgs uses
            raise ExternalServiceError(f"ddgs failed: {type(error).__name__}") from error
        return rows


__all__ = ["ENGINES", "DdgsBackend", "EngineBackend", "make_searxng_engine"]


# Open search backends by name, in the harness, which has the network and the API keys.
#
# ddgs                 public search pages, through the package ddgs; no key
# tavily               TAVILY_API_KEY
# brave                BRAVE_API_KEY
# serpapi              SERPAPI_API_KEY
# searxng:URL          a SearXNG instance
# local:FOLDER         documents.jsonl, or .txt and .md files
# replay:FILE          only what --record-searches recorded


KEYS = tuple(engine.key for engine in ENGINES.values() if engine.key)
"""The environment variables that hold API keys."""
NAMES = ("ddgs", *ENGINES, "searxng:URL", "local:FOLDER", "replay:FILE")
KNOWN = f"Backends: {', '.join(NAMES)}."


def resolve_name(name: str) -> str:
    """Make a path in the name absolute, so that it is valid from any directory."""
    head, _, argument = name.partition(":")
    return f"{head}:{Path(argument).resolve()}" if head in ("local", "replay") and argument else name


def is_live(name: str) -> bool:
    """Return whether the backend's answers can change over time."""
    return name.partition(":")[0] not in ("local", "replay")


def open_backend(name: str, keys: Mapping[str, str]) -> Backend:
    """Open the backend with this name; `keys` are the variables of `KEYS` that are set."""
    head, _, argument = name.partition(":")
    match head:
        case "searxng" if argument:
            return EngineBackend(make_searxng_engine(argument))
        case "local" if argument:
            return read_corpus(Path(argument))
        case "replay" if argument:
            return ReplayBackend(Path(argument))
        case "ddgs" if not argument:
            return DdgsBackend()
        case _ if head in ENGINES and not argument:
            engine = ENGINES[head]
            key = keys.get(engine.key or "", "").strip()
            if not key or not key.isascii() or not key.isprintable():
                raise UserError(
                    f"The search backend {head} needs an API key.", f"Set {engine.key} for the harness."
                )
            return EngineBackend(engine, key)
    raise UserError(f"There is no search backend {name!r}.", KNOWN)
