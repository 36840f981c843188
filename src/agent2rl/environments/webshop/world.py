"""The training goals of a run as a world: `train.jsonl` holds them, `shop/` the products.

data/train.jsonl      {"id": …, "question": …, "goal": {…}, "steps": …} a line
data/shop/            the products, in the official files
"""

from pathlib import Path

from agent2rl.core.environment import World
from agent2rl.environments.examples import training
from agent2rl.environments.webshop.store import SHOP, Store, opened
from agent2rl.environments.webshop.tools import TOOLS

try:
    from agent2rl.environments.webshop.expert import Expert
except ImportError:  # the folder is hidden in a run without an expert
    Expert = None  # type: ignore[assignment, misc]


def open_world(data: Path) -> World:
    goals = training(data / "train.jsonl")
    shop = data / SHOP
    return World(goals, environment=lambda: Store(lambda _: opened(shop)), expert=Expert, tools=TOOLS)
