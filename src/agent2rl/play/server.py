"""Serves games to browsers on this computer, until it is interrupted."""

import threading
import webbrowser
from collections.abc import Callable
from contextlib import closing, suppress

import uvicorn

from agent2rl.core.environment import World
from agent2rl.net.ports import LOOPBACK, open_listening_socket
from agent2rl.play.app import make_application
from agent2rl.play.open_games import OpenGames

LEAVE_SECONDS = 2


def serve_games(world: World, title: str, number: int, port: int, tell: Callable[[str], None]) -> None:
    """`port` 0 takes one that is free; `tell` gets the address of a game that has begun."""
    games = OpenGames(world)
    with closing(games), closing(open_listening_socket(port)) as line:
        config = uvicorn.Config(
            make_application(games, title),
            lifespan="off",
            log_level="error",
            timeout_graceful_shutdown=LEAVE_SECONDS,
        )
        tell(f"http://{LOOPBACK}:{line.getsockname()[1]}/play/{games.open(number)}")
        with suppress(KeyboardInterrupt):
            uvicorn.Server(config).run(sockets=[line])


def open_browser(address: str) -> None:
    """In a browser, if there is one."""
    threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
