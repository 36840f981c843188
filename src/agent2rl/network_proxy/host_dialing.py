"""Open the proxy's connections to hosts: directly, to a mirror, or through the user's own proxy."""

import asyncio
import base64
import ipaddress
import os
import socket
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

import h11

from agent2rl.core.errors import UserError
from agent2rl.network_proxy.host_rules import PackageMirror, PolicyRefusal, is_public_address

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Returns the addresses of a host."""
Dial = Callable[[str, int], Awaitable[Streams]]
"""Connects to an address."""
MOST_ADDRESSES = 4
READ_BYTES = 1 << 16
LARGEST_HEAD = 32 << 10


class HostUnreachable(OSError):
    """A host that cannot be reached. The agent reads the text, so it has no addresses of other machines."""


def describe_failure(error: Exception) -> str:
    """Describe for the agent why a host cannot be reached. Texts of the system would have addresses."""
    if isinstance(error, HostUnreachable):
        return str(error)
    if isinstance(error, socket.gaierror):
        return "its name cannot be resolved"
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno)
    return "the connection failed"


async def resolve_host(host: str, port: int) -> Sequence[str]:
    """Return the addresses of a host. A slow name server does not hold up the end of the run."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[list[str]] = loop.create_future()

    def finish(addresses: list[str], error: Exception | None) -> None:
        if answer.done():  # given up
            return
        if error:
            answer.set_exception(error)
        else:
            answer.set_result(addresses)

    def look_up() -> None:
        addresses: list[str] = []
        failure: Exception | None = None
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            addresses = list(dict.fromkeys(str(address[0]) for *_, address in found))
        except (OSError, UnicodeError) as error:
            failure = error
        with suppress(RuntimeError):  # the loop is closed already
            loop.call_soon_threadsafe(finish, addresses, failure)

    # A daemon, unlike the loop's own threads, which its end would wait for.
    threading.Thread(target=look_up, name="resolve-host", daemon=True).start()
    return await answer


async def dial_address(address: str, port: int) -> Streams:
    return await asyncio.open_connection(address, port)


async def dial_public_address(address: str, port: int) -> Streams:
    """Connect to an address, unless it is an address of this computer."""
    reader, writer = await asyncio.open_connection(address, port)
    # This computer's own address may be public. Then both ends have it.
    if writer.get_extra_info("sockname")[0] == writer.get_extra_info("peername")[0]:
        writer.close()
        raise PolicyRefusal("This host is the computer that the run is on.")
    return reader, writer


async def dial_first(dial: Dial, addresses: Sequence[str], port: int, deadline: float) -> Streams:
    """Connect to the first of these addresses that answers. Each gets its share of the time that is left."""
    now, chosen = asyncio.get_running_loop().time, addresses[:MOST_ADDRESSES]
    error: OSError = HostUnreachable("it has no address")
    for number, address in enumerate(chosen):
        try:
            async with asyncio.timeout((deadline - now()) / (len(chosen) - number)):
                return await dial(address, port)
        except OSError as failed:
            error = failed
    raise error


@dataclass(frozen=True)
class UpstreamProxy:
    """The HTTP proxy that this computer needs for connections to the outside."""

    host: str
    port: int
    authorization: str | None = None
    """The value of Proxy-Authorization. The agent never sees it."""
    no_proxy: str = ""
    """Hosts that are reached without it, as the variable NO_PROXY lists them."""

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        return [(b"Proxy-Authorization", self.authorization.encode())] if self.authorization else []

    def serves(self, host: str) -> bool:
        """Return whether connections to this host go through it."""
        entries = (entry.strip().lower() for entry in self.no_proxy.split(","))
        return not any(_covers_host(entry, host) for entry in entries if entry)


def _covers_host(entry: str, host: str) -> bool:
    """Return whether an entry of NO_PROXY covers a host: a name with those below it, a network, or `*`."""
    name = entry.removeprefix("*").removeprefix(".")
    if entry == "*" or host == name or host.endswith(f".{name}"):
        return True
    with suppress(ValueError):
        return ipaddress.ip_address(host) in ipaddress.ip_network(name, strict=False)
    return False


def parse_upstream_proxy(variable: str, url: str, no_proxy: str = "") -> UpstreamProxy:
    try:
        parts = urlsplit(url)
        port = parts.port or 80
    except ValueError:
        raise UserError(f"{variable} is not a URL.") from None
    if parts.scheme != "http" or not parts.hostname:
        raise UserError(f"{variable} must be a URL such as http://proxy.example.org:3128.")
    login = None
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        login = f"Basic {base64.b64encode(pair.encode()).decode()}"
    return UpstreamProxy(parts.hostname, port, login, no_proxy)


@dataclass(frozen=True)
class HostDialer:
    """Opens connections to hosts that the policy allows."""

    upstream: UpstreamProxy | None
    resolve: Resolve
    dial: Dial
    """Connects to an address of a host that must be public."""
    is_open: bool
    """Whether the policy allows hosts that it does not name."""
    seconds: float

    async def connect(
        self, host: str, port: int, tunnel: bool, mirror: PackageMirror | None
    ) -> tuple[Streams, UpstreamProxy | None]:
        """Return the connection, and the user's proxy if the connection leads to that one."""
        try:
            async with asyncio.timeout(self.seconds) as limit:
                return await self._connect(host, port, tunnel, mirror, limit.when() or 0.0)
        except TimeoutError:
            raise HostUnreachable("the connection timed out") from None

    async def _connect(
        self, host: str, port: int, tunnel: bool, mirror: PackageMirror | None, deadline: float
    ) -> tuple[Streams, UpstreamProxy | None]:
        upstream = self.upstream if self.upstream and self.upstream.serves(host) else None
        if mirror:
            if upstream is None or await self._is_private(mirror):
                return await self._open_directly(host, port, deadline), None
        elif upstream is None:
            addresses = await find_public_addresses(self.resolve, host, port)
            return await dial_first(self.dial, addresses, port, deadline), None
        else:
            await self._require_public(host, port)
        streams = await self._open_directly(upstream.host, upstream.port, deadline)
        if tunnel:
            await ask_for_tunnel(streams, upstream, host, port)
        return streams, upstream

    async def _open_directly(self, host: str, port: int, deadline: float) -> Streams:
        """Connect to a machine that the user configured."""
        return await dial_first(dial_address, await self._look_up(host, port), port, deadline)

    async def _look_up(self, host: str, port: int) -> Sequence[str]:
        with suppress(ValueError):
            return [str(ipaddress.ip_address(host))]
        return await self.resolve(host, port)

    async def _is_private(self, mirror: PackageMirror) -> bool:
        """Return whether a mirror is inside the user's network, where no proxy leads.

        One whose name this computer cannot resolve is outside.
        """
        try:
            addresses = await self._look_up(mirror.host, mirror.port)
        except OSError:
            return False
        return bool(addresses) and not any(map(is_public_address, addresses))

    async def _require_public(self, host: str, port: int) -> None:
        """Refuse a name with a private address, if this computer can resolve it.

        The user's proxy resolves it itself. A name that cannot be resolved here must be on the list of the
        policy.
        """
        try:
            await find_public_addresses(self.resolve, host, port)
        except OSError:
            if self.is_open:
                raise


async def find_public_addresses(resolve: Resolve, host: str, port: int) -> list[str]:
    """Resolve a host once; raise PolicyRefusal if it has no public address, OSError if it has none."""
    addresses = await resolve(host, port)
    public = [address for address in addresses if is_public_address(address)]
    if addresses and not public:
        raise PolicyRefusal(
            f"{host} does not have a public address.", detail=f"It resolves to {', '.join(addresses[:4])}."
        )
    if not public:
        raise HostUnreachable("it has no address")
    return public


async def ask_for_tunnel(streams: Streams, proxy: UpstreamProxy, host: str, port: int) -> None:
    """Ask the user's proxy for a tunnel to a host; close the connection if that fails."""
    reader, writer = streams
    try:
        connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=LARGEST_HEAD)
        target = (f"[{host}]:{port}" if ":" in host else f"{host}:{port}").encode()
        request = h11.Request(method=b"CONNECT", target=target, headers=[(b"Host", target), *proxy.headers])
        writer.write(connection.send(request) or b"")
        event = connection.next_event()
        while event is h11.NEED_DATA or isinstance(event, h11.InformationalResponse):
            if event is h11.NEED_DATA:
                connection.receive_data(await reader.read(READ_BYTES))
            event = connection.next_event()
        if not isinstance(event, h11.Response) or not 200 <= event.status_code < 300:
            status = event.status_code if isinstance(event, h11.Response) else "no answer"
            raise HostUnreachable(f"the upstream proxy refused the connection ({status})")
        if connection.trailing_data[0]:
            raise HostUnreachable("the upstream proxy sent data before the handshake")
    except BaseException:
        writer.close()
        raise
