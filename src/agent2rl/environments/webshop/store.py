"""WebShop as an environment: one goal after another, each with a limit of steps.

Not covered: prompts, and finding the action in what a model wrote.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache

from agent2rl.core.environment import Step
from agent2rl.core.errors import UserError
from agent2rl.core.task import Example
from agent2rl.environments.examples import steps
from agent2rl.environments.webshop.goal import Goal
from agent2rl.environments.webshop.pages import OFFICIAL, Layout
from agent2rl.environments.webshop.product import INSTRUCTIONS, PRODUCTS, read_products
from agent2rl.environments.webshop.shop import Shop
from agent2rl.environments.webshop.tools import click
from agent2rl.environments.webshop.visit import Visit

STEPS = 15
"""In an episode, actions that do nothing included, unless an example's `steps` says otherwise."""

Find = Callable[[Example], Shop]
"""Where the shop is that an example plays in."""


def carried(example: Example) -> Shop:
    """The shop that an example carries in its `shop`, file by file, as evaluation files have small ones."""
    files = example.meta.get("shop")
    if not isinstance(files, dict) or not {PRODUCTS, INSTRUCTIONS} <= files.keys():
        raise UserError(f"The example {example.id!r} carries no shop.")
    return _stocked(json.dumps(files))


@lru_cache(maxsize=4)
def _stocked(files: str) -> Shop:
    return Shop.of(read_products(json.loads(files), "an example"))


@dataclass
class Store:
    """The step that buys has the purchase's reward; 1 wins. After the end nothing happens any more."""

    find: Find = carried
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
    separator, shown = said.get("separator", OFFICIAL.separator), said.get("shown", OFFICIAL.shown)
    if not isinstance(separator, str) or not isinstance(shown, int) or shown < 1:
        raise UserError(f"The example {example.id!r} has pages that cannot be laid out: {said!r}.")
    return Layout(separator, shown)


def wanted(example: Example) -> Goal:
    """The goal that an example carries in its `goal`."""
    record = example.meta.get("goal")
    if not isinstance(record, dict):
        raise UserError(f"The example {example.id!r} carries no goal.")
    return Goal.read(record)
