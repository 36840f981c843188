"""Search engines over HTTP, one row of a table each: how it is asked, and where its answer has the results.

Messages tell the engine's name and its status, never an address or the answer's words: both may hold the key.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

from agent2rl.core.errors import UserError, WorldError
from agent2rl.environments.search.backend import Result
from agent2rl.environments.search.live.pages import Pages, Place
from agent2rl.environments.search.live.patience import Passing, Patience, retry_after

SHOWN = 5
"""Results of a search."""
ANSWER_BYTES = 4 << 20
_TAG = re.compile(r"</?[a-zA-Z][^<>]{0,200}>")


@dataclass(frozen=True)
class Engine:
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


ENGINES: Mapping[str, Engine] = {
    engine.name: engine
    for engine in (
        Engine(
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
        Engine(
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
        ),
        Engine(
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


def searxng(url: str) -> Engine:
    """An instance of SearXNG; its settings must allow the format json."""
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise UserError(f"{url!r} is no URL: {error}.", "Write searxng:https://HOST.") from None
    if parsed.scheme not in ("http", "https") or not parsed.host or parsed.userinfo or parsed.query:
        raise UserError(f"{url!r} is no address of an instance.", "Write searxng:https://HOST.")
    return Engine(
        "searxng",
        f"{url.rstrip('/')}/search",
        None,
        lambda query, _: {"params": {"q": query, "format": "json"}},
        ("results",),
    )


@dataclass
class Live:
    """A search engine as a backend; the ids of its results are their addresses."""

    engine: Engine
    key: str = field(default="", repr=False)
    patience: Patience | None = None
    pages: Pages | None = None
    url: str | None = None
    """Another address than the engine's own."""

    def __post_init__(self) -> None:
        self._patience = self.patience or Patience(self.engine.per_second)
        self._url = self.url or self.engine.url
        self._client = httpx.Client(timeout=self._patience.answer_seconds)
        # Only an instance of one's own may lie in one's own network, and then its pages may, too.
        own = Place.of(self._url) if self.engine.key is None else None
        self._pages = self.pages or Pages(own)

    def search(self, query: str) -> tuple[Result, ...]:
        answer = self._patience.ask(self.engine.name, lambda: self._request(query))
        found = (_result(row, self.engine.fields) for row in _rows(answer, self.engine))
        return tuple(result for result in found if result)[:SHOWN]

    def open(self, id: str) -> str:  # noqa: A002
        return self._pages.read(id)

    def _request(self, query: str) -> Any:
        sent = self.engine.ask(query, self.key)
        method = "POST" if "json" in sent else "GET"
        try:
            with self._client.stream(method, self._url, **sent) as answer:
                self._require(answer)
                body = b""
                for part in answer.iter_bytes():
                    body += part
                    if len(body) > ANSWER_BYTES:
                        raise WorldError(f"{self.engine.name} answered with more than 4 MB")
            return httpx.Response(200, content=body).json()
        except httpx.TransportError as error:
            raise Passing(type(error).__name__) from None
        except httpx.HTTPError as error:
            raise WorldError(f"{self.engine.name} cannot be read: {type(error).__name__}") from None
        except (ValueError, RecursionError):
            raise WorldError(f"{self.engine.name} did not answer with JSON") from None

    def _require(self, answer: httpx.Response) -> None:
        status = answer.status_code
        if status == 429 or status >= 500:
            raise Passing(f"status {status}", retry_after(answer.headers.get("Retry-After", "")))
        if status in (401, 403):
            of = f"the key in {self.engine.key}" if self.engine.key else "to answer in JSON"
            raise WorldError(f"{self.engine.name} refuses {of} (status {status})")
        if status != 200:
            raise WorldError(f"{self.engine.name} answered with status {status}")


def _rows(answer: Any, engine: Engine) -> list[Any]:
    """No list where one should be is a list of none, but an answer that is no object is a failure."""
    if not isinstance(answer, dict):
        raise WorldError(f"{engine.name} answered with something else than results")
    found: Any = answer
    for key in engine.rows:
        found = found.get(key) if isinstance(found, dict) else None
    return found if isinstance(found, list) else []


def _result(row: Any, fields: tuple[str, str, str]) -> Result | None:
    if not isinstance(row, dict) or not isinstance(row.get(fields[0]), str):
        return None
    title, snippet = (_TAG.sub("", str(row.get(name) or "")) for name in fields[1:])
    return Result(row[fields[0]], title or row[fields[0]], snippet)
