"""Serves an application on a loopback port from a thread, for as long as a test lasts."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

START_SECONDS = 120


@contextmanager
def serve_app(application: Any, **how: Any) -> Iterator[str]:
    """Its URL."""
    # From Python 3.12 on, a server that ends waits for connections that are still open.
    how = {"lifespan": "off", "log_config": None, "timeout_graceful_shutdown": 1, **how}
    config = uvicorn.Config(application, host="127.0.0.1", port=0, **how)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, name="served", daemon=True)
    thread.start()
    pause = threading.Event()
    for _ in range(START_SECONDS * 100):
        if server.started:
            break
        pause.wait(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        server.force_exit = True
        thread.join()
