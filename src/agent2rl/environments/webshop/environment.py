"""WebShop as an environment, and a run's training goals as a world with tools and an expert.

    data/train.jsonl      {"id": …, "question": …, "goal": {…}, "steps": …} a line
    data/shop/            the products, in the official files

The tools' docstrings are what a model reads. Not covered: prompts, and finding the action in a model's reply.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path

from agent2rl.core.environment import EnvironmentStep, World
from agent2rl.core.errors import UserError
from agent2rl.core.task import Example, require_evaluator_folder
from agent2rl.environments.examples import read_step_limit, read_training_examples
from agent2rl.environments.webshop.episode import WebshopEpisode
from agent2rl.environments.webshop.pages import OFFICIAL, PageLayout
from agent2rl.environments.webshop.shop import Shop, ShoppingGoal

# WebShop's actions as functions, for models that call tools.


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
"""The folder of the products, beside the examples that score and in the data that is trained on."""
STEPS = 15
"""In an episode, actions that do nothing included, unless an example's `read_step_limit` says otherwise."""

Find = Callable[[Example], Shop]
"""Where the shop is that an example plays in."""


@lru_cache(maxsize=4)
def load_shop(folder: Path) -> Shop:
    """The shop in a folder of official files, without what is asked for in it; read once."""
    return Shop.load(folder, kind=None)


def find_graded_shop(_: Example) -> Shop:
    """The shop that lies beside the examples of a grading."""
    return load_shop(require_evaluator_folder(SHOP))


@dataclass
class WebshopEnvironment:
    """The step that buys has the purchase's reward; 1 wins. After the end nothing happens any more."""

    find: Find = find_graded_shop
    visit: WebshopEpisode | None = field(default=None, init=False)
    taken: int = field(default=0, init=False)
    limit: int = field(default=STEPS, init=False)

    def reset(self, example: Example) -> EnvironmentStep:
        self.visit = WebshopEpisode(self.find(example), read_goal(example), layout=read_layout(example))
        self.taken, self.limit = 0, read_step_limit(example, STEPS)
        return EnvironmentStep(self.visit.observation)

    def step(self, action: str) -> EnvironmentStep:
        if self.visit is None:
            raise RuntimeError("An episode is begun with reset() before it can go on.")
        bought = self.visit.score is not None
        if bought or self.taken >= self.limit:
            return self._make_step(self.visit, reward=0.0)
        self.taken += 1
        self.visit.step(action)
        return self._make_step(self.visit, self.visit.score.reward if self.visit.score else 0.0)

    def commands(self) -> tuple[str, ...]:
        """The clicks. Searching works everywhere, and the button for it does nothing by itself."""
        shown = self.visit.available.clickables if self.visit else ()
        return tuple(click(name) for name in shown if name != "search")

    def close(self) -> None:
        self.visit = None

    def _make_step(self, visit: WebshopEpisode, reward: float) -> EnvironmentStep:
        bought = visit.score is not None
        cut = not bought and self.taken >= self.limit
        won = visit.score is not None and visit.score.reward == 1
        return EnvironmentStep(visit.observation, reward, done=bought or cut, won=won, cut=cut)


def read_layout(example: Example) -> PageLayout:
    """What an example's `read_layout` says of its pages, and the official one where it says nothing."""
    said = example.meta.get("layout", {})
    if not isinstance(said, dict):
        raise UserError(f"The example {example.id!r} has no layout.")
    whole = {**asdict(OFFICIAL), **said}
    match whole:
        case {"separator": str(separator), "shown": int(shown), "head": bool(head)} if shown > 0:
            return PageLayout(separator, shown, head)
    raise UserError(f"The example {example.id!r} has pages that cannot be laid out: {said!r}.")


def read_goal(example: Example) -> ShoppingGoal:
    """The goal that an example carries in its `goal`."""
    record = example.meta.get("goal")
    if not isinstance(record, dict):
        raise UserError(f"The example {example.id!r} carries no goal.")
    return ShoppingGoal.from_record(record)


# The training goals of a run as a world: `train.jsonl` holds them, `shop/` the products.

try:
    from agent2rl.environments.webshop.expert import WebshopExpert
except ImportError:  # the folder is hidden in a run without an expert
    WebshopExpert = None  # type: ignore[assignment, misc]


def open_world(data: Path) -> World:
    goals = read_training_examples(data / "train.jsonl")
    shop = data / SHOP
    return World(
        goals,
        environment=lambda: WebshopEnvironment(lambda _: load_shop(shop)),
        expert=WebshopExpert,
        tools=TOOLS,
    )
