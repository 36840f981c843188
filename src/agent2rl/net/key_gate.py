"""Lets only connections that begin with a socket's key (`socket_keys`) reach a server.

Before the key has arrived, a connection reaches neither the server's protocol nor its limits, so nobody
without the key can use up the connections of those who have it.
"""

import asyncio
import hmac
from collections.abc import Callable

from agent2rl.net.socket_keys import KEY_BYTES

SECONDS = 5.0
"""Within which the key must arrive. Clients send it at once."""
MOST_WAITING = 64
"""Connections without a key so far; one more closes the oldest."""


class KeyGate:
    """The gate of one socket. It is used by the thread of the server's event loop alone."""

    def __init__(self, key: bytes) -> None:
        if len(key) != KEY_BYTES:
            raise ValueError("not a key of a socket")
        self.key = key
        self._waiting: dict[asyncio.Transport, asyncio.TimerHandle] = {}

    def guard(self, open_protocol: Callable[[], asyncio.Protocol]) -> asyncio.Protocol:
        """Return the protocol of a new connection: it opens the server's own when the key is right."""
        return _UnverifiedConnection(self, open_protocol)

    def add_waiting(self, transport: asyncio.Transport) -> None:
        if len(self._waiting) >= MOST_WAITING:
            next(iter(self._waiting)).abort()
        timer = asyncio.get_running_loop().call_later(SECONDS, transport.abort)
        self._waiting[transport] = timer

    def remove_waiting(self, transport: asyncio.Transport) -> None:
        if timer := self._waiting.pop(transport, None):
            timer.cancel()

    def close(self) -> None:
        """Close the connections that wait at the gate."""
        for transport in tuple(self._waiting):
            transport.abort()


class _UnverifiedConnection(asyncio.Protocol):
    """A connection of which the key has not arrived yet."""

    def __init__(self, gate: KeyGate, open_protocol: Callable[[], asyncio.Protocol]) -> None:
        self._gate = gate
        self._open_protocol = open_protocol
        self._head = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._gate.add_waiting(transport)

    def data_received(self, data: bytes) -> None:
        self._head += data
        if len(self._head) < KEY_BYTES:
            return
        self._gate.remove_waiting(self._transport)
        key, rest = self._head[:KEY_BYTES], self._head[KEY_BYTES:]
        if not hmac.compare_digest(key, self._gate.key):
            self._transport.abort()
            return
        protocol = self._open_protocol()
        self._transport.set_protocol(protocol)
        protocol.connection_made(self._transport)
        # The server may have refused it already, because it has too many.
        if rest and not self._transport.is_closing():
            protocol.data_received(rest)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._gate.remove_waiting(self._transport)
