"""The training goals of a run as a world: `train.jsonl` holds them, `shop/` the products.

data/train.jsonl      {"id": …, "question": …, "goal": {…}, "steps": …} a line
data/shop/            the products, in the official files
"""

import json
from functools import cache
from pathlib import Path

from agent2rl.core.environment import World
from agent2rl.core.errors import UserError
from agent2rl.core.task import Example
from agent2rl.environments.webshop.shop import Shop
from agent2rl.environments.webshop.store import Store
from agent2rl.environments.webshop.tools import TOOLS

SHOP = "shop"


def open_world(data: Path) -> World:
    goals = _goals(data / "train.jsonl")

    @cache
    def shop() -> Shop:
        return Shop.load(data / SHOP)

    return World(goals, environment=lambda: Store(lambda _: shop()), tools=TOOLS)


def _goals(path: Path) -> tuple[Example, ...]:
    try:
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]
        return tuple(Example(row.pop("id"), row.pop("question"), row.pop("answer", ""), row) for row in rows)
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise UserError(f"{path} cannot be read: {type(error).__name__}: {error}.") from error
