"""The training goals of a run as a world: `train.jsonl` holds them, `shop/` the products.

data/train.jsonl      {"id": …, "question": …, "goal": {…}, "steps": …} a line
data/shop/            the products, in the official files
"""

from functools import cache
from pathlib import Path

from agent2rl.core.environment import World
from agent2rl.environments.examples import training
from agent2rl.environments.webshop.shop import Shop
from agent2rl.environments.webshop.store import Store
from agent2rl.environments.webshop.tools import TOOLS

SHOP = "shop"


def open_world(data: Path) -> World:
    goals = training(data / "train.jsonl")

    @cache
    def shop() -> Shop:
        return Shop.load(data / SHOP)

    return World(goals, environment=lambda: Store(lambda _: shop()), tools=TOOLS)
