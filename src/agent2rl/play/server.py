"""Serves games to browsers on this computer, until it is interrupted."""

import threading
import webbrowser
from collections.abc import Callable
from contextlib import closing, suppress

import uvicorn

from agent2rl.core.environment import World
from agent2rl.core.ports import LOOPBACK, bound
from agent2rl.play.app import application
from agent2rl.play.games import Games

LEAVE_SECONDS = 2


def serve(world: World, title: str, number: int, port: int, tell: Callable[[str], None]) -> None:
    """`port` 0 takes one that is free; `tell` gets the address of a game that has begun."""
    games = Games(world)
    with closing(games), closing(bound(port)) as line:
        config = uvicorn.Config(
            application(games, title),
            lifespan="off",
            log_level="error",
            timeout_graceful_shutdown=LEAVE_SECONDS,
        )
        tell(f"http://{LOOPBACK}:{line.getsockname()[1]}/play/{games.open(number)}")
        with suppress(KeyboardInterrupt):
            uvicorn.Server(config).run(sockets=[line])


def browse(address: str) -> None:
    """In a browser, if there is one."""
    threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
