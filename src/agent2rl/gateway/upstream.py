"""The HTTP/1.1 client that calls the provider with the real key and streams its answer.

h11 does the protocol and asyncio the connections: a request through httpx takes five times the CPU time
(docs/design/gateway.md). It honours proxy variables (HTTPS_PROXY, HTTP_PROXY, ALL_PROXY, NO_PROXY), except
for this machine. It retries only failed connection attempts, because agents retry requests by themselves.
It follows no redirects, keeps no cookies, and requests answers without compression.
"""

import asyncio
import base64
import logging
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

logger = logging.getLogger(__name__)
# HTTP/1.1 connections with keep-alive

READ_BYTES = 1 << 16
HEAD_BYTES = 1 << 17
IDLE, IDLE_SECONDS = 64, 60.0
"""Maximum number of idle connections, and how long they stay open."""
HAPPY_EYEBALLS_SECONDS = 0.25
"""Delay after which the next address of a host is tried in parallel."""
PORTS = {"http": 80, "https": 443}

Headers = Sequence[tuple[str, str]]


class Connection:
    """A connection that handles one request at a time."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, address: SplitResult
    ) -> None:
        self.address = address
        self.used_at = time.monotonic()
        self._reader, self._writer = reader, writer
        self._talk = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD_BYTES)

    @property
    def usable(self) -> bool:
        """Whether another request can be sent: the connection is open and the last answer is fully read.

        It polls the socket, because the kernel knows before the event loop that a server closed it.
        """
        if time.monotonic() - self.used_at > IDLE_SECONDS or self._writer.is_closing():
            return False
        poller = select.poll()
        poller.register(self._writer.get_extra_info("socket"), select.POLLIN)
        return self._talk.our_state is h11.IDLE and not poller.poll(0)

    async def send_request(
        self, method: str, target: str, headers: Headers, body: bytes, seconds: float
    ) -> h11.Response:
        """Send a request and return the head of the answer; `seconds` is the longest silence allowed."""
        request = h11.Request(method=method, target=target, headers=list(headers))
        sent = [request, h11.Data(data=body), h11.EndOfMessage()]
        self._writer.write(b"".join(filter(None, map(self._talk.send, sent))))
        with suppress(ConnectionError):  # it may answer and close before it has read all
            async with asyncio.timeout(seconds):
                await self._writer.drain()
        while not isinstance(event := await self._next_event(seconds), h11.Response):
            pass  # an informational response, such as 100 Continue
        return event

    async def iter_body_chunks(self, seconds: float) -> AsyncGenerator[bytes, None]:
        """Yield the answer's body. Once it is complete, the connection can be reused."""
        while isinstance(event := await self._next_event(seconds), h11.Data):
            yield bytes(event.data)
        if self._talk.our_state is self._talk.their_state is h11.DONE:
            self._talk.start_next_cycle()
            self.used_at = time.monotonic()

    async def upgrade_to_tls(self, context: SSLContext, host: str) -> None:
        """Start TLS through a CONNECT tunnel."""
        # What follows is a new conversation, with the server behind the proxy.
        await self._writer.start_tls(context, server_hostname=host)
        self._talk = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD_BYTES)

    def close(self) -> None:
        """Close at once, so that the server stops working on the request."""
        self._writer.transport.abort()

    async def wait_until_closed(self) -> None:
        with suppress(OSError):
            await self._writer.wait_closed()

    async def _next_event(self, seconds: float) -> h11.Event:
        while not isinstance(event := self._talk.next_event(), h11.Event):
            if event is h11.PAUSED:
                raise h11.RemoteProtocolError("data after the end of the answer")
            async with asyncio.timeout(seconds):
                self._talk.receive_data(await self._reader.read(READ_BYTES))
        return event


class ConnectionPool:
    """Reusable connections to a provider."""

    def __init__(self, connect_seconds: float) -> None:
        self._connect_seconds = connect_seconds
        self._idle: list[Connection] = []
        self.proxy = cache(find_proxy)
        """Returns the proxy for a URL, as set in the environment at the first call."""

    async def acquire_connection(self, url: SplitResult) -> Connection:
        """Return an idle or a new connection to the URL's server; raise `OSError` if it fails."""
        # The one that was used last is the least likely to have been closed by its server.
        for connection in reversed(self._idle):
            if connection.address[:2] == url[:2]:
                self._idle.remove(connection)
                if connection.usable:
                    return connection
                connection.close()
        async with asyncio.timeout(self._connect_seconds):
            return await self._open_connection(url)

    def release_connection(self, connection: Connection) -> None:
        """Keep the connection for reuse, or close it."""
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
        peer = proxy or url
        context = self._context if url.scheme == "https" else None
        reader, writer = await asyncio.open_connection(
            peer.hostname,
            peer.port or PORTS[peer.scheme],
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
            raise OSError(f"the proxy refused to connect ({answer.status_code})")

    @cached_property
    def _context(self) -> SSLContext:
        context = httpx.create_ssl_context()
        # Else a server may choose HTTP/2, which h11 does not speak.
        context.set_alpn_protocols(["http/1.1"])
        return context


def find_proxy(url: SplitResult) -> SplitResult | None:
    """Return the proxy that the user's environment sets for a URL."""
    host = url.hostname or ""
    proxies = getproxies()
    named = proxies.get(url.scheme) or proxies.get("all")
    if not named or _is_loopback(host) or proxy_bypass(host):
        return None
    proxy = urlsplit(named if "://" in named else f"http://{named}")
    if proxy.scheme != "http" or not proxy.hostname:
        raise OSError("a proxy's URL must start with http://")
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


# The provider client

PASSED_UP = ("accept", "anthropic-version", "anthropic-beta", "openai-beta")
"""The only headers of the agent that are forwarded."""
PASSED_DOWN = ("content-type", "retry-after", "retry-after-ms", "x-should-retry")
"""The only headers of the provider that are forwarded: none names an account or sets a cookie."""
HEADER_BYTES = 4096
VERSION = "2023-06-01"


@dataclass(frozen=True)
class UpstreamTimeouts:
    connect_seconds: float = 10.0
    connects: int = 3
    """Attempts to connect."""
    pause_seconds: float = 0.3
    """Pause before the second attempt; it doubles before each further one."""
    stall_seconds: float = 300.0
    """After this time without a single byte, the provider counts as stalled."""
    body_seconds: float = 120.0
    """Time for an agent to send a request."""


@dataclass(frozen=True)
class UpstreamResponse:
    status: int
    headers: Mapping[str, str]
    """The headers that are forwarded."""
    chunks: AsyncGenerator[bytes, None]
    """Raises `UpstreamFailure` if the answer breaks off."""
    outcome: Outcome | None = None
    """Recorded outcome of an error, if it comes from a tape."""
    note: str = ""
    """How a replayed request differs from the recorded one."""

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
        address = urlsplit(url)
        connection = await self._connect_with_retry(address)
        try:
            yield await self._send_request(connection, address, self._build_headers(wire, headers), body)
        except BaseException:
            # Cancelled, too: the rest of this answer must not be read as the answer to another
            # request.
            connection.close()
            raise
        self._pool.release_connection(connection)

    async def close(self) -> None:
        await self._pool.close()

    def _build_headers(self, wire: Wire, headers: Mapping[str, str]) -> dict[str, str]:
        sent = {name: headers[name] for name in PASSED_UP if 0 < len(headers.get(name, "")) <= HEADER_BYTES}
        sent |= {
            "content-type": "application/json",
            "accept-encoding": "identity",
            "user-agent": f"agent2rl/{__version__}",
        }
        if wire == "anthropic":
            sent.setdefault("anthropic-version", VERSION)
        if self._key is None:
            return sent
        key_header = {"anthropic": "x-api-key", "gemini": "x-goog-api-key"}.get(wire)
        if key_header:
            sent[key_header] = self._key.reveal()
        if not key_header or self._driver.compatible:  # many compatible servers read only this header
            sent["authorization"] = f"Bearer {self._key.reveal()}"
        return sent

    async def _connect_with_retry(self, address: SplitResult) -> Connection:
        pause = self._patience.pause_seconds
        for attempt in range(1, self._patience.connects + 1):
            try:
                return await self._pool.acquire_connection(address)
            except (OSError, h11.RemoteProtocolError) as error:
                if attempt == self._patience.connects:
                    why = f"The provider cannot be reached ({_describe_error(error)})."
                    raise UpstreamFailure("unreachable", 502, why, "Try again.") from None
                logger.debug(
                    "Attempt %d to connect to %s failed: %s",
                    attempt,
                    address.hostname,
                    _describe_error(error),
                )
            await asyncio.sleep(pause)
            pause *= 2
        raise AssertionError("there is at least one attempt")

    async def _send_request(
        self, connection: Connection, address: SplitResult, headers: Mapping[str, str], body: bytes
    ) -> UpstreamResponse:
        target = f"{address.path}?{address.query}" if address.query else address.path
        extra: list[tuple[str, str]] = [("host", address.netloc), ("content-length", str(len(body)))]
        # For plain HTTP a proxy gets the whole URL, and there is no tunnel.
        if address.scheme == "http" and (proxy := self._pool.proxy(address)):
            target, extra = address.geturl(), [*extra, *build_proxy_headers(proxy)]
        try:
            response = await connection.send_request(
                "POST", target, [*extra, *headers.items()], body, self._patience.stall_seconds
            )
        except TimeoutError:
            raise self._build_stall_error() from None
        except (OSError, h11.RemoteProtocolError) as error:
            why = f"The provider closed the connection without an answer ({_describe_error(error)})."
            raise UpstreamFailure("unreachable", 502, why, "Try again.") from None
        headers_down = self._filter_headers(response)
        return UpstreamResponse(response.status_code, headers_down, self._iter_chunks(connection))

    def _filter_headers(self, response: h11.Response) -> dict[str, str]:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in response.headers}
        if 300 <= response.status_code < 400:
            why = f"The provider redirects ({response.status_code}), and redirects are not followed."
            raise UpstreamFailure("provider-error", 502, why, "Check the driver's URL.")
        encoding = headers.get("content-encoding", "identity").strip().casefold()
        if encoding != "identity":
            raise UpstreamFailure(
                "provider-error", 502, f"The provider compresses its answer ({encoding[:20]!r}) unasked."
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
        return UpstreamFailure("stalled", 504, f"The provider sent nothing for {seconds:g} s.", "Try again.")


def _describe_error(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".rstrip(": ")[:200]
