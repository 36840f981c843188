"""WebShop as an environment: one goal after another, each with a limit of steps.

Not covered: prompts, and finding the action in what a model wrote.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path

from agent2rl.core.beside import beside
from agent2rl.core.environment import Step
from agent2rl.core.errors import UserError
from agent2rl.core.task import Example
from agent2rl.environments.examples import steps
from agent2rl.environments.webshop.goal import Goal
from agent2rl.environments.webshop.pages import OFFICIAL, Layout
from agent2rl.environments.webshop.shop import Shop
from agent2rl.environments.webshop.tools import click
from agent2rl.environments.webshop.visit import Visit

SHOP = "shop"
"""The folder of the products, beside the examples that score and in the data that is trained on."""
STEPS = 15
"""In an episode, actions that do nothing included, unless an example's `steps` says otherwise."""

Find = Callable[[Example], Shop]
"""Where the shop is that an example plays in."""


@lru_cache(maxsize=4)
def opened(folder: Path) -> Shop:
    """The shop in a folder of official files, without what is asked for in it; read once."""
    return Shop.load(folder, kind=None)


def graded(_: Example) -> Shop:
    """The shop that lies beside the examples of a grading."""
    return opened(beside(SHOP))


@dataclass
class Store:
    """The step that buys has the purchase's reward; 1 wins. After the end nothing happens any more."""

    find: Find = graded
    visit: Visit | None = field(default=None, init=False)
    taken: int = field(default=0, init=False)
    limit: int = field(default=STEPS, init=False)

    def reset(self, example: Example) -> Step:
        self.visit = Visit(self.find(example), wanted(example), layout=layout(example))
        self.taken, self.limit = 0, steps(example, STEPS)
        return Step(self.visit.observation)

    def step(self, action: str) -> Step:
        if self.visit is None:
            raise RuntimeError("An episode is begun with reset() before it can go on.")
        bought = self.visit.score is not None
        if bought or self.taken >= self.limit:
            return self._stand(self.visit, reward=0.0)
        self.taken += 1
        self.visit.step(action)
        return self._stand(self.visit, self.visit.score.reward if self.visit.score else 0.0)

    def commands(self) -> tuple[str, ...]:
        """The clicks. Searching works everywhere, and the button for it does nothing by itself."""
        shown = self.visit.available.clickables if self.visit else ()
        return tuple(click(name) for name in shown if name != "search")

    def close(self) -> None:
        self.visit = None

    def _stand(self, visit: Visit, reward: float) -> Step:
        bought = visit.score is not None
        cut = not bought and self.taken >= self.limit
        won = visit.score is not None and visit.score.reward == 1
        return Step(visit.observation, reward, done=bought or cut, won=won, cut=cut)


def layout(example: Example) -> Layout:
    """What an example's `layout` says of its pages, and the official one where it says nothing."""
    said = example.meta.get("layout", {})
    if not isinstance(said, dict):
        raise UserError(f"The example {example.id!r} has no layout.")
    whole = {**asdict(OFFICIAL), **said}
    match whole:
        case {"separator": str(separator), "shown": int(shown), "head": bool(head)} if shown > 0:
            return Layout(separator, shown, head)
    raise UserError(f"The example {example.id!r} has pages that cannot be laid out: {said!r}.")


def wanted(example: Example) -> Goal:
    """The goal that an example carries in its `goal`."""
    record = example.meta.get("goal")
    if not isinstance(record, dict):
        raise UserError(f"The example {example.id!r} carries no goal.")
    return Goal.read(record)
