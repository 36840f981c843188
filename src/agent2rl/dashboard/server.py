"""Serves the dashboard until it is interrupted: to this computer, or to others who have its token."""

import multiprocessing
import signal
from collections.abc import Callable
from contextlib import closing, suppress

import uvicorn

from agent2rl.dashboard.app import create_app
from agent2rl.dashboard.state import Dashboard
from agent2rl.net.ports import open_listening_socket

LEAVE_SECONDS = 1


def serve_dashboard(dashboard: Dashboard, host: str, port: int, tell: Callable[[str], None]) -> None:
    """`port` 0 takes one that is free; `tell` gets the address to open. Call it in the main thread."""
    # uvicorn raises the signal that stopped it once more: by default SIGTERM would end the process there
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        _run_server(dashboard, host, port, tell)
    finally:
        for child in multiprocessing.active_children():
            child.kill()  # an analysis that nobody waits for any more would hold up the end


def _run_server(dashboard: Dashboard, host: str, port: int, tell: Callable[[str], None]) -> None:
    with closing(dashboard), closing(open_listening_socket(port, host)) as line:
        dashboard.start()
        config = uvicorn.Config(
            create_app(dashboard), lifespan="off", log_level="error", timeout_graceful_shutdown=LEAVE_SECONDS
        )
        shown = f"[{host}]" if ":" in host else host
        query = f"?token={dashboard.token}" if dashboard.token else ""
        tell(f"http://{shown}:{line.getsockname()[1]}/{query}")
        with suppress(KeyboardInterrupt):
            uvicorn.Server(config).run(sockets=[line])
