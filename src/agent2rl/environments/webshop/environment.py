"""The WebShop environment, and a run's training goals as a world with tools and an expert.

    data/train.jsonl      {"id": …, "question": …, "goal": {…}, "steps": …} per line
    data/shop/            the products, in the official files

Models read the docstrings of the tools. Not covered: prompts, and parsing the action out of a model's reply.
"""

import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path

from agent2rl.core.environment import EnvironmentStep, World
from agent2rl.core.errors import UserError
from agent2rl.core.task import Example, require_evaluator_folder
from agent2rl.environments.examples import (
    TRAINING_HINT,
    is_small_enough_to_replay,
    read_step_limit,
    read_training_examples,
)
from agent2rl.environments.webshop.episode import WebshopEpisode
from agent2rl.environments.webshop.pages import ACTIONS_HEADING, OFFICIAL, PageLayout
from agent2rl.environments.webshop.shop import Shop, ShoppingGoal

logger = logging.getLogger(__name__)

# The actions as functions, for models that call tools. The model reads these docstrings.


def search(words: str) -> str:
    """Search the shop. This works on every page.

    Args:
        words: What to look for, such as "red cotton shirt".
    """
    return f"search[{words}]"


def click(name: str) -> str:
    """Click a button, a product or an option that the page shows.

    Args:
        name: What is shown, such as "Next >", "B07FYPSNH8", "large" or "Buy Now".
    """
    return f"click[{name}]"


TOOLS = (search, click)

SHOP = "shop"
"""The folder of the products, next to the examples for scoring and in the training data."""
STEPS = 15
"""Default step limit of an episode; actions without effect count. An example's `steps` overrides it."""

Find = Callable[[Example], Shop]
"""Returns the shop of an example."""


@lru_cache(maxsize=4)
def load_shop(folder: Path) -> Shop:
    """Load the shop in a folder of official files, without goals. Cached."""
    shop = Shop.load(folder, kind=None)
    logger.debug("Loaded a shop with %d products from %s", len(shop.products), folder)
    return shop


def find_graded_shop(_: Example) -> Shop:
    """Return the shop next to the examples of a grading."""
    return load_shop(require_evaluator_folder(SHOP))


@dataclass
class WebshopEnvironment:
    """Shop in WebShop. The step that buys has the reward of the purchase; 1 wins.

    Steps after the end change nothing.
    """

    find: Find = find_graded_shop
    visit: WebshopEpisode | None = field(default=None, init=False)
    steps_taken: int = field(default=0, init=False)
    limit: int = field(default=STEPS, init=False)
    lists_actions: bool = field(default=False, init=False)

    def reset(self, example: Example) -> EnvironmentStep:
        self.lists_actions = example.meta.get("list_actions") is True
        self.visit = WebshopEpisode(self.find(example), read_goal(example), layout=read_layout(example))
        self.steps_taken, self.limit = 0, read_step_limit(example, STEPS)
        return EnvironmentStep(self._describe_page(self.visit))

    def step(self, action: str) -> EnvironmentStep:
        if self.visit is None:
            raise RuntimeError("Call reset() before step().")
        bought = self.visit.score is not None
        if bought or self.steps_taken >= self.limit:
            return self._make_step(self.visit, reward=0.0)
        self.steps_taken += 1
        self.visit.step(action)
        reward = self.visit.score.reward if self.visit.score else 0.0
        return self._make_step(self.visit, reward, invalid=not self.visit.taken)

    def commands(self) -> tuple[str, ...]:
        """Return the possible clicks. Searching works on every page; its button does nothing by itself."""
        shown = self.visit.available.clickables if self.visit else ()
        return tuple(click(name) for name in shown if name != "search")

    def close(self) -> None:
        self.visit = None

    def _make_step(
        self, visit: WebshopEpisode, reward: float, invalid: bool | None = None
    ) -> EnvironmentStep:
        bought = visit.score is not None
        cut = not bought and self.steps_taken >= self.limit
        won = visit.score is not None and visit.score.reward == 1
        return EnvironmentStep(
            self._describe_page(visit), reward, done=bought or cut, won=won, cut=cut, invalid=invalid
        )

    def _describe_page(self, visit: WebshopEpisode) -> str:
        if not self.lists_actions:
            return visit.observation
        actions = [search("<your query>")] if visit.available.search_bar else []
        actions += [click(name) for name in visit.available.clickables]
        return visit.observation + ACTIONS_HEADING + "\n".join(f"  {action}" for action in actions)


def read_layout(example: Example) -> PageLayout:
    """Return the page layout in an example's `layout`; missing values are the official ones."""
    values = example.meta.get("layout", {})
    if not isinstance(values, dict):
        raise UserError(f"Example {example.id!r} has an invalid layout: {values!r}.")
    match {**asdict(OFFICIAL), **values}:
        case {"separator": str(separator), "shown": int(shown), "head": bool(head)} if shown > 0:
            return PageLayout(separator, shown, head)
    raise UserError(f"Example {example.id!r} has an invalid layout: {values!r}.")


def read_goal(example: Example) -> ShoppingGoal:
    """Return the goal in an example's `goal`."""
    record = example.meta.get("goal")
    if not isinstance(record, dict):
        raise UserError(f"Example {example.id!r} has no goal.", TRAINING_HINT)
    return ShoppingGoal.from_record(record)


# A run's training goals as a world: `train.jsonl` has the goals, `shop/` the products

try:
    from agent2rl.environments.webshop.expert import WebshopExpert
except (ImportError, PermissionError):  # the folder is hidden in a run without an expert
    WebshopExpert = None  # type: ignore[assignment, misc]


def open_world(data: Path) -> World:
    goals = read_training_examples(data / "train.jsonl")
    shop = data / SHOP
    return World(
        goals,
        environment=lambda: WebshopEnvironment(lambda _: load_shop(shop)),
        expert=WebshopExpert,
        tools=TOOLS,
        replayable=is_small_enough_to_replay(shop),
    )
