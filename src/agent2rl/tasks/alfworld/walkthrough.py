"""How a home's task is done by one who knows where everything is, in as few commands as can be.

A search is not needed: whichever things are chosen, and whichever place, what to do with them is clear.
"""

from collections.abc import Sequence
from itertools import permutations, product

from agent2rl.tasks.alfworld.kinds import LAMP
from agent2rl.tasks.alfworld.layout import Layout


def walkthrough(layout: Layout) -> list[str]:
    """The commands; of several shortest ways, the first in the alphabet."""
    goal = layout.goal
    choices = permutations(layout.of(goal.thing), goal.count)
    walks = (_Walk(layout).carry(things, place) for things, place in product(choices, layout.of(goal.place)))
    return min(walks, key=lambda said: (len(said), said))


class _Walk:
    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.here = ""
        self.shut = set(layout.shut)
        self.said: list[str] = []

    def carry(self, things: Sequence[str], place: str) -> list[str]:
        """Bring things to a place, or show one to a lamp, each treated as the task wants it."""
        goal = self.layout.goal
        for thing in things:
            source = self.layout.things[thing]
            self._reach(source)
            self.said.append(f"take {thing} from {source}")
            if goal.verb:
                [appliance] = self.layout.of(goal.appliance)
                self._go(appliance)
                self.said.append(f"{goal.verb} {thing} with {appliance}")
            if goal.place == LAMP:
                self._go(self.layout.things[place])
                self.said.append(f"use {place}")
            else:
                self._reach(place)
                self.said.append(f"move {thing} to {place}")
        return self.said

    def _go(self, fixture: str) -> None:
        if fixture != self.here:
            self.here = fixture
            self.said.append(f"go to {fixture}")

    def _reach(self, fixture: str) -> None:
        """Go there and, if it is closed, open it. Appliances work closed."""
        self._go(fixture)
        if fixture in self.shut:
            self.shut.remove(fixture)
            self.said.append(f"open {fixture}")
