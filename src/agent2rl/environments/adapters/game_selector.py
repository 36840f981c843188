"""Which game is played: one that is named, or the next of a random order that a seed decides."""

import random
from collections.abc import Iterator

from agent2rl.core.environment import World
from agent2rl.core.errors import UserError
from agent2rl.core.task import Example


class GameSelector:
    def __init__(self, world: World) -> None:
        if not world.games:
            raise UserError("This world has no games.")
        self._games = world.games
        self._named = {game.id: game for game in world.games}

    def find_game(self, name: str) -> Example:
        if name in self._named:
            return self._named[name]
        # No closest name: among thousands that takes a second, and a served world must not wait for it.
        raise UserError(
            f"There is no training game {name[:200]!r}.", f"One of them is {self._games[0].id!r}."
        )

    def iter_shuffled(self, seed: int | None = None) -> Iterator[Example]:
        """For ever, every game once before any comes again. Without a seed, differently each time."""
        chance = random.Random(seed)
        while True:
            yield from chance.sample(self._games, len(self._games))
