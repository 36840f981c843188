"""The games that are being played, by name; bounded in number."""

import secrets
import threading
from collections import OrderedDict
from dataclasses import dataclass, field

from agent2rl.core.environment import World
from agent2rl.play.game import Game

MOST = 64
"""At once; the one that was left alone the longest makes room."""


@dataclass
class Table:
    game: Game
    turn: int = 0
    """What a page says of itself, so that what is clicked on it counts once, and only while it is current."""
    note: str = ""
    """For the next page."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    """A browser may ask twice at once."""


class Games:
    """Asked by one thread; what is at a table is for whoever holds its lock."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._tables: OrderedDict[str, Table] = OrderedDict()

    def open(self, number: int) -> str:
        """Begin a game; its name cannot be guessed."""
        name = secrets.token_urlsafe(16)
        self._tables[name] = Table(Game(self.world, number))
        self._drop(MOST)
        return name

    def get(self, name: str) -> Table | None:
        if name in self._tables:
            self._tables.move_to_end(name)
        return self._tables.get(name)

    def close(self) -> None:
        self._drop(0)

    def _drop(self, kept: int) -> None:
        while len(self._tables) > kept:
            _, table = self._tables.popitem(last=False)
            with table.lock:
                table.game.close()
