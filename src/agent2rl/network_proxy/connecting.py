"""Open the proxy's connections to hosts: directly, to a mirror, or through the user's own proxy."""

import asyncio
import base64
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

import h11

from agent2rl.core.errors import UserError
from agent2rl.network_proxy.host_rules import RequestRefused, is_public_address

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Returns the addresses of a host."""
Dial = Callable[[str, int], Awaitable[Streams]]
"""Connects to an address."""
MOST_ADDRESSES = 4
READ_BYTES = 1 << 16
LARGEST_HEAD = 32 << 10


async def resolve_host(host: str, port: int) -> Sequence[str]:
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


async def dial_public_address(address: str, port: int) -> Streams:
    """Connect to an address, unless it is an address of this computer."""
    reader, writer = await asyncio.open_connection(address, port)
    if writer.get_extra_info("sockname")[0] == writer.get_extra_info("peername")[0]:
        writer.close()
        raise RequestRefused("This host is the computer that the run is on.")
    return reader, writer


@dataclass(frozen=True)
class UpstreamProxy:
    """The HTTP proxy that this computer needs for connections to the outside."""

    host: str
    port: int
    authorization: str | None = None
    """The value of Proxy-Authorization. The agent never sees it."""

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        return [(b"Proxy-Authorization", self.authorization.encode())] if self.authorization else []


def parse_upstream_proxy(variable: str, url: str) -> UpstreamProxy:
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
    return UpstreamProxy(parts.hostname, port, login)


async def find_public_addresses(resolve: Resolve, host: str, port: int) -> list[str]:
    """Resolve a host once; raise RequestRefused if it has no public address, OSError if it has none."""
    addresses = await resolve(host, port)
    public = [address for address in addresses if is_public_address(address)]
    if addresses and not public:
        raise RequestRefused(
            f"{host} does not have a public address.", detail=f"It resolves to {', '.join(addresses[:4])}."
        )
    if not public:
        raise OSError(f"{host} has no address")
    return public


async def dial_first(dial: Dial, addresses: Sequence[str], port: int) -> Streams:
    """Connect to the first of these addresses that answers."""
    error: OSError = OSError("no address")
    for address in addresses[:MOST_ADDRESSES]:
        try:
            return await dial(address, port)
        except OSError as failed:
            error = failed
    raise error


async def open_upstream_tunnel(proxy: UpstreamProxy, host: str, port: int) -> Streams:
    """Open a tunnel to a host through the user's proxy."""
    reader, writer = await asyncio.open_connection(proxy.host, proxy.port)
    try:
        connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=LARGEST_HEAD)
        target = f"{host}:{port}".encode()
        request = h11.Request(method=b"CONNECT", target=target, headers=[(b"Host", target), *proxy.headers])
        writer.write(connection.send(request) or b"")
        event = connection.next_event()
        while event is h11.NEED_DATA or isinstance(event, h11.InformationalResponse):
            if event is h11.NEED_DATA:
                connection.receive_data(await reader.read(READ_BYTES))
            event = connection.next_event()
        if not isinstance(event, h11.Response) or not 200 <= event.status_code < 300:
            status = event.status_code if isinstance(event, h11.Response) else "no answer"
            raise OSError(f"the upstream proxy refused the connection ({status})")
        if connection.trailing_data[0]:
            raise OSError("the upstream proxy sent data before the handshake")
    except BaseException:
        writer.close()
        raise
    return reader, writer
