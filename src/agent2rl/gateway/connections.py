"""HTTP/1.1 to a provider, over connections that stay open: h11 does the protocol, asyncio the rest.

Not a client library, because a request through httpx takes five times the processor's time, which on a busy
machine is most of what a gateway adds (docs/design/gateway.md). Its certificates are used, though, and like
it this goes by HTTPS_PROXY, HTTP_PROXY, ALL_PROXY and NO_PROXY, except to the machine itself.

Nothing is followed, kept or tried again here. What goes wrong is raised as it comes: OSError, TimeoutError
where nothing was heard for too long, h11.RemoteProtocolError where an answer breaks off or is none.
"""

import asyncio
import base64
import select
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from functools import cache, cached_property
from ipaddress import ip_address
from ssl import SSLContext
from urllib.parse import SplitResult, unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

import h11
import httpx

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
