"""Asks the provider, with the real key, and hands on its answer as it comes.

Nothing is tried again here but a connection that could not be made, before anything was sent: agents have
retries of their own, and two layers of them multiply. Redirects are not followed and no cookies are kept.
Answers are asked for as they are, without compression, because each chunk is to go on at once.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

import h11

from agent2rl import __version__
from agent2rl.core.llm import Outcome, Wire
from agent2rl.gateway.connections import Connection, ConnectionPool, build_proxy_headers
from agent2rl.gateway.drivers import Driver
from agent2rl.gateway.errors import UpstreamFailure
from agent2rl.gateway.keys import Key

PASSED_UP = ("accept", "anthropic-version", "anthropic-beta", "openai-beta")
"""Of the agent's headers: no more than these."""
PASSED_DOWN = ("content-type", "retry-after", "retry-after-ms", "x-should-retry")
"""Of the provider's headers: nothing that names an account or sets a cookie."""
HEADER_BYTES = 4096
VERSION = "2023-06-01"


@dataclass(frozen=True)
class UpstreamTimeouts:
    connect_seconds: float = 10.0
    connects: int = 3
    """Attempts to connect."""
    pause_seconds: float = 0.3
    """Before the second; twice as long before each further one."""
    stall_seconds: float = 300.0
    """Without a single byte: then the provider is taken to have stalled."""
    body_seconds: float = 120.0
    """For an agent to send a request."""


@dataclass(frozen=True)
class UpstreamResponse:
    status: int
    headers: Mapping[str, str]
    """Those that are passed down."""
    chunks: AsyncGenerator[bytes, None]
    """Raises `UpstreamFailure` where they break off."""
    outcome: Outcome | None = None
    """Of an error, as a tape tells it."""
    note: str = ""
    """What a tape has to say about it."""

    @property
    def streams(self) -> bool:
        kind = self.headers.get("content-type", "").partition(";")[0]
        return kind.strip().casefold() == "text/event-stream"


class UpstreamClient:
    def __init__(self, driver: Driver, key: Key | None, patience: UpstreamTimeouts) -> None:
        self._driver, self._key, self._patience = driver, key, patience
        self._pool = ConnectionPool(patience.connect_seconds)

    @asynccontextmanager
    async def open_response(
        self, wire: Wire, url: str, body: bytes, headers: Mapping[str, str]
    ) -> AsyncIterator[UpstreamResponse]:
        place = urlsplit(url)
        connection = await self._connect_with_retry(place)
        try:
            yield await self._send_request(connection, place, self._build_headers(wire, headers), body)
        except BaseException:
            connection.close()
            raise
        self._pool.release_connection(connection)

    async def close(self) -> None:
        await self._pool.close()

    def _build_headers(self, wire: Wire, headers: Mapping[str, str]) -> dict[str, str]:
        found = {name: headers[name] for name in PASSED_UP if 0 < len(headers.get(name, "")) <= HEADER_BYTES}
        found |= {
            "content-type": "application/json",
            "accept-encoding": "identity",
            "user-agent": f"agent2rl/{__version__}",
        }
        if wire == "anthropic":
            found.setdefault("anthropic-version", VERSION)
        if self._key is None:
            return found
        named = {"anthropic": "x-api-key", "gemini": "x-goog-api-key"}.get(wire)
        if named:
            found[named] = self._key.reveal()
        if not named or self._driver.compatible:  # many servers look for their key in one place alone
            found["authorization"] = f"Bearer {self._key.reveal()}"
        return found

    async def _connect_with_retry(self, place: SplitResult) -> Connection:
        pause = self._patience.pause_seconds
        for attempt in range(1, self._patience.connects + 1):
            try:
                return await self._pool.acquire_connection(place)
            except (OSError, h11.RemoteProtocolError) as error:
                if attempt == self._patience.connects:
                    why = f"The provider cannot be reached ({_describe_error(error)})."
                    raise UpstreamFailure("unreachable", 502, why, "Try again.") from None
            await asyncio.sleep(pause)
            pause *= 2
        raise AssertionError("there is at least one attempt")

    async def _send_request(
        self, connection: Connection, place: SplitResult, headers: Mapping[str, str], body: bytes
    ) -> UpstreamResponse:
        target = f"{place.path}?{place.query}" if place.query else place.path
        extra: list[tuple[str, str]] = [("host", place.netloc), ("content-length", str(len(body)))]
        if place.scheme == "http" and (proxy := self._pool.proxy(place)):
            target, extra = place.geturl(), [*extra, *build_proxy_headers(proxy)]
        try:
            said = await connection.send_request(
                "POST", target, [*extra, *headers.items()], body, self._patience.stall_seconds
            )
        except TimeoutError:
            raise self._build_stall_error() from None
        except (OSError, h11.RemoteProtocolError) as error:
            why = f"The provider hung up without an answer ({_describe_error(error)})."
            raise UpstreamFailure("unreachable", 502, why, "Try again.") from None
        return UpstreamResponse(said.status_code, self._filter_headers(said), self._iter_chunks(connection))

    def _filter_headers(self, said: h11.Response) -> dict[str, str]:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in said.headers}
        if 300 <= said.status_code < 400:
            why = f"The provider sends us elsewhere ({said.status_code}), and redirects are not followed."
            raise UpstreamFailure("provider-error", 502, why, "Is the driver's URL the right one?")
        packed = headers.get("content-encoding", "identity").strip().casefold()
        if packed != "identity":
            raise UpstreamFailure(
                "provider-error", 502, f"The provider packs its answer ({packed[:20]!r}), unasked."
            )
        return {name: self._redact_key(headers[name]) for name in PASSED_DOWN if name in headers}

    async def _iter_chunks(self, connection: Connection) -> AsyncGenerator[bytes, None]:
        try:
            async for chunk in connection.iter_body_chunks(self._patience.stall_seconds):
                yield chunk
        except TimeoutError:
            raise self._build_stall_error() from None
        except (OSError, h11.RemoteProtocolError) as error:
            raise UpstreamFailure(
                "cut", 502, f"The provider's answer broke off ({_describe_error(error)}).", "Try again."
            ) from None

    def _redact_key(self, text: str) -> str:
        return self._key.redact_text(text) if self._key else text

    def _build_stall_error(self) -> UpstreamFailure:
        seconds = self._patience.stall_seconds
        return UpstreamFailure(
            "stalled", 504, f"The provider has said nothing for {seconds:g} s.", "Try again."
        )


def _describe_error(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".rstrip(": ")[:200]
