"""How a home's task is done by one who knows where everything is, in as few commands as can be.

A search is not needed: whichever things are chosen, and whichever place, what to do with them is clear.
"""

from collections.abc import Sequence
from itertools import permutations, product

from agent2rl.tasks.alfworld.kinds import LAMP
from agent2rl.tasks.alfworld.layout import HomeLayout


def find_walkthrough(layout: HomeLayout) -> list[str]:
    """The commands; of several shortest ways, the first in the alphabet."""
    goal = layout.goal
    choices = permutations(layout.list_of_kind(goal.thing), goal.count)
    walks = (
        _HomeWalk(layout).carry_things(things, place)
        for things, place in product(choices, layout.list_of_kind(goal.place))
    )
    return min(walks, key=lambda said: (len(said), said))


class _HomeWalk:
    def __init__(self, layout: HomeLayout) -> None:
        self.layout = layout
        self.here = ""
        self.shut = set(layout.shut)
        self.said: list[str] = []

    def carry_things(self, things: Sequence[str], place: str) -> list[str]:
        """Bring things to a place, or show one to a lamp, each treated as the task wants it."""
        goal = self.layout.goal
        for thing in things:
            source = self.layout.things[thing]
            self._go_and_open(source)
            self.said.append(f"take {thing} from {source}")
            if goal.verb:
                [appliance] = self.layout.list_of_kind(goal.appliance)
                self._go_to(appliance)
                self.said.append(f"{goal.verb} {thing} with {appliance}")
            if goal.place == LAMP:
                self._go_to(self.layout.things[place])
                self.said.append(f"use {place}")
            else:
                self._go_and_open(place)
                self.said.append(f"move {thing} to {place}")
        return self.said

    def _go_to(self, fixture: str) -> None:
        if fixture != self.here:
            self.here = fixture
            self.said.append(f"go to {fixture}")

    def _go_and_open(self, fixture: str) -> None:
        """Go there and, if it is closed, open it. Appliances work closed."""
        self._go_to(fixture)
        if fixture in self.shut:
            self.shut.remove(fixture)
            self.said.append(f"open {fixture}")
