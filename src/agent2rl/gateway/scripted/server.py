"""Serves a script on this computer alone: on a port of its own, or on a unix socket."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import uvicorn

from agent2rl.core.errors import UserError
from agent2rl.gateway.scripted.app import ScriptedDriver
from agent2rl.gateway.scripted.request_log import RequestLog
from agent2rl.gateway.scripted.script import DriverScript
from agent2rl.net.ports import LOOPBACK, open_listening_socket

LEAVE_SECONDS = 1
"""For answers on their way when it is ended; some are never to come."""


def serve_script(
    script: DriverScript,
    name: str,
    tell: Callable[[str], None],
    port: int = 0,
    path: Path | None = None,
    record: Path | None = None,
    key: str | None = None,
) -> None:
    """Until Ctrl-C. `tell` gets the address."""
    with closing(RequestLog(record)) as log, _bind_listener(port, path) as (line, address):
        server = _build_server(ScriptedDriver(script, log, name, key))
        tell(address)
        with suppress(KeyboardInterrupt):
            server.run(sockets=[line])


@contextmanager
def run_in_thread(
    script: DriverScript, path: Path | None = None, record: Path | None = None, key: str | None = None
) -> Iterator[str]:
    """The address of a server that runs beside, in a thread."""
    with closing(RequestLog(record)) as log, _bind_listener(0, path) as (line, address):
        server = _build_server(ScriptedDriver(script, log, key=key))
        thread = threading.Thread(target=server.run, args=([line],), name="scripted-llm", daemon=True)
        thread.start()
        try:
            yield address
        finally:
            server.should_exit = server.force_exit = True
            thread.join()


def _build_server(driver: ScriptedDriver) -> uvicorn.Server:
    return uvicorn.Server(
        uvicorn.Config(
            driver.application,
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="critical",  # a stream that is cut as the script says is no error to tell of
            timeout_graceful_shutdown=LEAVE_SECONDS,
        )
    )


@contextmanager
def _bind_listener(port: int, path: Path | None) -> Iterator[tuple[socket.socket, str]]:
    line = _bind_unix_socket(path) if path else open_listening_socket(port)
    try:
        yield line, f"unix:{path}" if path else f"http://{LOOPBACK}:{line.getsockname()[1]}"
    finally:
        line.close()
        if path:
            path.unlink(missing_ok=True)


def _bind_unix_socket(path: Path) -> socket.socket:
    line = socket.socket(socket.AF_UNIX)
    try:
        line.bind(str(path))
        line.listen()
    except OSError as error:
        line.close()
        raise UserError(
            f"The socket {path} cannot be used: {error.strerror or error}.", "Name another."
        ) from error
    return line
