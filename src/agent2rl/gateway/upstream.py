"""The HTTP/1.1 client that asks the provider with the real key and passes its answer on as it arrives.

h11 does the protocol and asyncio the connections: a request through httpx takes five times the CPU time
(docs/design/gateway.md). Proxy variables (HTTPS_PROXY, HTTP_PROXY, ALL_PROXY, NO_PROXY) are obeyed, except
for this machine. Only a connection that could not be made is retried, because agents retry by themselves.
Redirects are not followed, no cookies are kept, and answers are requested without compression.
"""

import asyncio
import base64
import select
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import cache, cached_property
from ipaddress import ip_address
from ssl import SSLContext
from urllib.parse import SplitResult, unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

import h11
import httpx

from agent2rl import __version__
from agent2rl.core.llm import Outcome, Wire
from agent2rl.gateway.drivers import Driver
from agent2rl.gateway.errors import UpstreamFailure
from agent2rl.gateway.keys import Key

# HTTP/1.1 to a provider, over connections that stay open: h11 does the protocol, asyncio the rest.

READ_BYTES = 1 << 16
HEAD_BYTES = 1 << 17
IDLE, IDLE_SECONDS = 64, 60.0
"""Connections that are kept open, and how long without being used."""
HAPPY_EYEBALLS_SECONDS = 0.25
"""After which the next address of a name is tried, too."""
PORTS = {"http": 80, "https": 443}

Headers = Sequence[tuple[str, str]]


class Connection:
    """One request at a time."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, place: SplitResult
    ) -> None:
        self.place = place
        self.used_at = time.monotonic()
        self._reader, self._writer = reader, writer
        self._talk = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD_BYTES)

    @property
    def usable(self) -> bool:
        """Whether another request can be sent: nobody has hung up, and nothing is left of the last one.

        The kernel is asked, because it knows before the loop does: a server closes what is idle for long.
        """
        if time.monotonic() - self.used_at > IDLE_SECONDS or self._writer.is_closing():
            return False
        heard = select.poll()
        heard.register(self._writer.get_extra_info("socket"), select.POLLIN)
        return self._talk.our_state is h11.IDLE and not heard.poll(0)

    async def send_request(
        self, method: str, target: str, headers: Headers, body: bytes, seconds: float
    ) -> h11.Response:
        """The beginning of the answer; `seconds` is how long nothing may be heard."""
        request = h11.Request(method=method, target=target, headers=list(headers))
        sent = [request, h11.Data(data=body), h11.EndOfMessage()]
        self._writer.write(b"".join(filter(None, map(self._talk.send, sent))))
        with suppress(ConnectionError):  # it may have answered and hung up before it had read all
            async with asyncio.timeout(seconds):
                await self._writer.drain()
        while not isinstance(event := await self._next_event(seconds), h11.Response):
            pass  # that it goes on, or something of the kind
        return event

    async def iter_body_chunks(self, seconds: float) -> AsyncGenerator[bytes, None]:
        """The answer's body. When it is whole, the connection can be used again."""
        while isinstance(event := await self._next_event(seconds), h11.Data):
            yield bytes(event.data)
        if self._talk.our_state is self._talk.their_state is h11.DONE:
            self._talk.start_next_cycle()
            self.used_at = time.monotonic()

    async def upgrade_to_tls(self, context: SSLContext, host: str) -> None:
        """Go on encrypted, through what was asked for with CONNECT."""
        await self._writer.start_tls(context, server_hostname=host)
        self._talk = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD_BYTES)

    def close(self) -> None:
        """At once: whoever is at the other end shall stop working."""
        self._writer.transport.abort()

    async def wait_until_closed(self) -> None:
        with suppress(OSError):
            await self._writer.wait_closed()

    async def _next_event(self, seconds: float) -> h11.Event:
        while not isinstance(event := self._talk.next_event(), h11.Event):
            if event is h11.PAUSED:
                raise h11.RemoteProtocolError("the answer is over, and more comes")
            async with asyncio.timeout(seconds):
                self._talk.receive_data(await self._reader.read(READ_BYTES))
        return event


class ConnectionPool:
    """Connections to a provider."""

    def __init__(self, connect_seconds: float) -> None:
        self._connect_seconds = connect_seconds
        self._idle: list[Connection] = []
        self.proxy = cache(find_proxy)
        """The proxy for a URL, as the environment named it first."""

    async def acquire_connection(self, url: SplitResult) -> Connection:
        """A connection to where the URL leads; `OSError` where there is none to be had."""
        for connection in reversed(self._idle):
            if connection.place[:2] == url[:2]:
                self._idle.remove(connection)
                if connection.usable:
                    return connection
                connection.close()
        async with asyncio.timeout(self._connect_seconds):
            return await self._open_connection(url)

    def release_connection(self, connection: Connection) -> None:
        """It is used again where it can be."""
        if connection.usable and len(self._idle) < IDLE:
            self._idle.append(connection)
        else:
            connection.close()

    async def close(self) -> None:
        for connection in self._idle:
            connection.close()
        await asyncio.gather(*(connection.wait_until_closed() for connection in self._idle))

    async def _open_connection(self, url: SplitResult) -> Connection:
        host, proxy = url.hostname or "", self.proxy(url)
        near = proxy or url
        context = self._context if url.scheme == "https" else None
        reader, writer = await asyncio.open_connection(
            near.hostname,
            near.port or PORTS[near.scheme],
            ssl=None if proxy else context,
            happy_eyeballs_delay=HAPPY_EYEBALLS_SECONDS,
        )
        connection = Connection(reader, writer, url)
        try:
            if proxy and context:
                await self._open_tunnel(connection, f"{host}:{url.port or PORTS[url.scheme]}", proxy)
                await connection.upgrade_to_tls(context, host)
        except BaseException:
            connection.close()
            raise
        return connection

    async def _open_tunnel(self, connection: Connection, target: str, proxy: SplitResult) -> None:
        answer = await connection.send_request(
            "CONNECT", target, [("host", target), *build_proxy_headers(proxy)], b"", self._connect_seconds
        )
        if not 200 <= answer.status_code < 300:
            raise OSError(f"the proxy does not connect us ({answer.status_code})")

    @cached_property
    def _context(self) -> SSLContext:
        context = httpx.create_ssl_context()
        context.set_alpn_protocols(["http/1.1"])
        return context


def find_proxy(url: SplitResult) -> SplitResult | None:
    """The proxy that the user's environment names for a URL."""
    host = url.hostname or ""
    proxies = getproxies()
    named = proxies.get(url.scheme) or proxies.get("all")
    if not named or _is_loopback(host) or proxy_bypass(host):
        return None
    proxy = urlsplit(named if "://" in named else f"http://{named}")
    if proxy.scheme != "http" or not proxy.hostname:
        raise OSError("a proxy is named by a URL that begins with http://")
    return proxy


def build_proxy_headers(proxy: SplitResult) -> Headers:
    if proxy.username is None:
        return ()
    pair = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return (("proxy-authorization", f"Basic {base64.b64encode(pair.encode()).decode()}"),)


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


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
