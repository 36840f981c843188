"""httpx transports to unix sockets of the harness: each connection begins with the socket's key."""

from collections.abc import Iterable
from pathlib import Path

import httpcore
import httpx

from agent2rl.net.socket_keys import read_key

LIMITS = httpx.Limits(max_connections=100, max_keepalive_connections=20, keepalive_expiry=5.0)
"""As httpx has them by default."""


class _KeyedBackend(httpcore.SyncBackend):
    def connect_unix_socket(
        self,
        path: str,
        timeout: float | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.NetworkStream:
        stream = super().connect_unix_socket(path, timeout, socket_options)
        stream.write(read_key(Path(path)), timeout)
        return stream


class _AsyncKeyedBackend(httpcore.AnyIOBackend):
    async def connect_unix_socket(
        self,
        path: str,
        timeout: float | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        stream = await super().connect_unix_socket(path, timeout, socket_options)
        await stream.write(read_key(Path(path)), timeout)
        return stream


class KeyedTransport(httpx.HTTPTransport):
    def __init__(self, socket: Path, limits: httpx.Limits = LIMITS) -> None:
        super().__init__(verify=False, limits=limits)
        # httpx passes on no backend of ours to the pool, so this is another pool.
        self._pool = httpcore.ConnectionPool(
            max_connections=limits.max_connections,
            max_keepalive_connections=limits.max_keepalive_connections,
            keepalive_expiry=limits.keepalive_expiry,
            uds=str(socket),
            network_backend=_KeyedBackend(),
        )


class AsyncKeyedTransport(httpx.AsyncHTTPTransport):
    def __init__(self, socket: Path, limits: httpx.Limits = LIMITS) -> None:
        super().__init__(verify=False, limits=limits)
        self._pool = httpcore.AsyncConnectionPool(
            max_connections=limits.max_connections,
            max_keepalive_connections=limits.max_keepalive_connections,
            keepalive_expiry=limits.keepalive_expiry,
            uds=str(socket),
            network_backend=_AsyncKeyedBackend(),
        )
