"""The training goals of a run as a world: `train.jsonl` holds them, `shop/` the products.

data/train.jsonl      {"id": …, "question": …, "goal": {…}, "steps": …} a line
data/shop/            the products, in the official files
"""

from pathlib import Path

from agent2rl.core.environment import World
from agent2rl.environments.examples import read_training_examples
from agent2rl.environments.webshop.environment import SHOP, WebshopEnvironment, load_shop
from agent2rl.environments.webshop.tools import TOOLS

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
