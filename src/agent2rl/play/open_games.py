"""The games that are being played, by name; bounded in number."""

import secrets
import threading
from collections import OrderedDict
from dataclasses import dataclass, field

from agent2rl.core.environment import World
from agent2rl.play.game import HumanGame

MOST_OPEN_GAMES = 64
"""At once; the one that was left alone the longest makes room."""


@dataclass
class GameTable:
    game: HumanGame
    turn: int = 0
    """What a page says of itself, so that what is clicked on it counts once, and only while it is current."""
    note: str = ""
    """For the next page."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    """A browser may ask twice at once."""


class OpenGames:
    """Asked by one thread; what is at a table is for whoever holds its lock."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._tables: OrderedDict[str, GameTable] = OrderedDict()

    def open(self, number: int) -> str:
        """Begin a game; its name cannot be guessed."""
        name = secrets.token_urlsafe(16)
        self._tables[name] = GameTable(HumanGame(self.world, number))
        self._close_oldest(MOST_OPEN_GAMES)
        return name

    def get(self, name: str) -> GameTable | None:
        if name in self._tables:
            self._tables.move_to_end(name)
        return self._tables.get(name)

    def close(self) -> None:
        self._close_oldest(0)

    def _close_oldest(self, kept: int) -> None:
        while len(self._tables) > kept:
            _, table = self._tables.popitem(last=False)
            with table.lock:
                table.game.close()
