"""Serves the dashboard until it is interrupted: to this computer, or to others who have its token."""

import multiprocessing
import socket
from collections.abc import Callable
from contextlib import closing, suppress

import uvicorn

from agent2rl.core.errors import UserError
from agent2rl.dashboard.app import application
from agent2rl.dashboard.state import Dashboard

LOOPBACK = "127.0.0.1"
LEAVE_SECONDS = 1


def serve(dashboard: Dashboard, host: str, port: int, tell: Callable[[str], None]) -> None:
    """`port` 0 takes one that is free; `tell` gets the address to open."""
    with closing(dashboard), closing(_bound(host, port)) as line:
        dashboard.start()
        config = uvicorn.Config(
            application(dashboard), lifespan="off", log_level="error", timeout_graceful_shutdown=LEAVE_SECONDS
        )
        shown = f"[{host}]" if ":" in host else host
        query = f"?token={dashboard.token}" if dashboard.token else ""
        tell(f"http://{shown}:{line.getsockname()[1]}/{query}")
        with suppress(KeyboardInterrupt):
            uvicorn.Server(config).run(sockets=[line])
    for child in multiprocessing.active_children():
        child.kill()  # an analysis that nobody waits for any more would hold up the end


def _bound(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        line = socket.socket(family, kind, protocol)
    except OSError as error:
        raise UserError(f"{host} is no address of this computer: {error}.", "Leave out --host.") from error
    line.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        line.bind(address)
        line.listen(128)
    except OSError as error:
        line.close()
        raise UserError(
            f"Port {port} of {host} cannot be used: {error.strerror}.",
            "Name another, or leave out --port for one that is free.",
        ) from error
    return line
