"""Serve an application on a unix socket from a thread, to those who have the socket's key."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame

from agent2rl.net.key_gate import KeyGate
from agent2rl.net.socket_keys import make_socket_directory, write_key

CONNECTIONS = 64
PINGS: dict[str, Any] = {"ws_ping_interval": 20.0, "ws_ping_timeout": 60.0}
"""A client that does not answer pings within this time is disconnected."""
UNREAD_BYTES = 1 << 20
"""Limit of buffered answers to pings, which are sent without flow control."""
FRAGMENTS = 1024
"""Maximum fragments of a message; the length limit does not cover empty ones."""
START_SECONDS = 30


def _limit_connections(most: int) -> type[H11Protocol]:
    class Bounded(H11Protocol):
        """Closes connections beyond a number, so that an agent cannot use up the harness's descriptors."""

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            if len(self.connections) > most:
                transport.abort()

    return Bounded


class _GuardedWebSocket(WebSocketsSansIOProtocol):
    """Disconnects clients that fill the memory with unread ping answers or endless message fragments."""

    def handle_ping(self) -> None:
        if self.transport.get_write_buffer_size() > UNREAD_BYTES:
            self.transport.abort()
        if not self.transport.is_closing():
            super().handle_ping()

    def handle_cont(self, event: Frame) -> None:
        if len(self.frames) >= FRAGMENTS:
            self.transport.abort()
        else:
            super().handle_cont(event)


class _GatedServer(uvicorn.Server):
    """Serves connections that begin with the key of the gate."""

    def __init__(self, config: uvicorn.Config, gate: KeyGate, protocol: type[H11Protocol]) -> None:
        # uvicorn calls it for every connection.
        config.http = cast(Any, lambda **settings: gate.guard(lambda: protocol(**settings)))
        super().__init__(config)
        self._gate = gate

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._gate.close()
        await super().shutdown(sockets)


@contextmanager
def serve_on_socket(
    application: Any, connections: int = CONNECTIONS, message_bytes: int | None = None
) -> Iterator[Path]:
    """Serve the application and yield the path of its socket, which has a key beside it (`net.socket_keys`).

    WebSockets are enabled if a maximum message length is given.
    """
    with make_socket_directory() as path:
        gate = KeyGate(write_key(path))
        config = _make_config(application, path, connections, message_bytes)
        server = _GatedServer(config, gate, _limit_connections(connections))
        with _run_server(server):
            yield path


def _make_config(application: Any, path: Path, connections: int, message_bytes: int | None) -> uvicorn.Config:
    return uvicorn.Config(
        application,
        interface="asgi3",
        uds=str(path),
        # By default uvicorn takes uvloop where another package brought it (vLLM does), and the gateway's
        # connections to providers need what only Python's own loop can do.
        loop="asyncio",
        ws=_GuardedWebSocket if message_bytes else "none",
        ws_max_size=message_bytes or 0,
        ws_per_message_deflate=False,  # a small message could decompress to a large one
        **PINGS,
        lifespan="off",
        backlog=connections,  # asyncio accepts this many at once, before any can be refused
        log_config=None,
        log_level="critical",  # malformed requests must not reach the user's terminal
    )


@contextmanager
def _run_server(server: uvicorn.Server) -> Iterator[None]:
    thread = threading.Thread(target=server.run, name="grading-http", daemon=True)
    thread.start()
    try:
        _wait_until_started(server, thread)
        yield
    finally:
        server.should_exit = True
        # Without this the server waits until every client hangs up, which an agent may never do.
        server.force_exit = True
        thread.join()


def _wait_until_started(server: uvicorn.Server, thread: threading.Thread) -> None:
    pause = threading.Event()
    for _ in range(START_SECONDS * 100):
        if server.started:
            return
        if not thread.is_alive():
            break
        pause.wait(0.01)
    raise RuntimeError("the grading server did not start")
