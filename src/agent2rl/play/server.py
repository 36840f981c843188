"""Serves games to browsers on this computer, until it is interrupted."""

import socket
import threading
import webbrowser
from collections.abc import Callable
from contextlib import closing, suppress

import uvicorn

from agent2rl.core.environment import World
from agent2rl.core.errors import UserError
from agent2rl.play.app import application
from agent2rl.play.games import Games

HOST = "127.0.0.1"
LEAVE_SECONDS = 2


def serve(world: World, title: str, number: int, port: int, tell: Callable[[str], None]) -> None:
    """`port` 0 takes one that is free; `tell` gets the address of a game that has begun."""
    games = Games(world)
    with closing(games), closing(_bound(port)) as line:
        config = uvicorn.Config(
            application(games, title),
            lifespan="off",
            log_level="error",
            timeout_graceful_shutdown=LEAVE_SECONDS,
        )
        tell(f"http://{HOST}:{line.getsockname()[1]}/play/{games.open(number)}")
        with suppress(KeyboardInterrupt):
            uvicorn.Server(config).run(sockets=[line])


def browse(address: str) -> None:
    """In a browser, if there is one."""
    threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()


def _bound(port: int) -> socket.socket:
    line = socket.socket()
    line.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        line.bind((HOST, port))
        line.listen()
    except OSError as error:
        line.close()
        raise UserError(
            f"Port {port} of this computer cannot be used: {error.strerror}.",
            "Name another, or leave out --port for one that is free.",
        ) from error
    return line
