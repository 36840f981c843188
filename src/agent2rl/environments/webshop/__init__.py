"""WebShop: shopping in text, from the official files without Java, Flask or spaCy.

    shop = Shop.load(Path("data"))                # items_shuffle*.json, items_ins_v2*.json, …
    episode = WebshopEpisode(shop, shop.goals[0])
    print(episode.observation)
    print(episode.step("search[red shoes]"), episode.available, episode.score)

`Shop` is read once and shared; `WebshopEpisode` is one episode; `WebshopEnvironment` wraps both as a
`core.environment.Environment`. Pages, actions, goals, rewards and rankings are those of the official text
environment in its `text` mode, with the exceptions that `reward`, `shop` and `episode` document. Not covered:
pictures, the modes `html`, `url` and `text_rich`, and WebShop's web site.
"""

from agent2rl.core.environment import OpenWorld
from agent2rl.environments.webshop.environment import WebshopEnvironment, open_world
from agent2rl.environments.webshop.episode import AvailableActions, WebshopEpisode
from agent2rl.environments.webshop.product import Product
from agent2rl.environments.webshop.reward import PurchaseScore
from agent2rl.environments.webshop.shop import TEST, TRAIN, VALIDATION, Shop, ShoppingGoal

__all__ = [
    "TEST",
    "TRAIN",
    "VALIDATION",
    "WORLD",
    "AvailableActions",
    "Product",
    "PurchaseScore",
    "Shop",
    "ShoppingGoal",
    "WebshopEnvironment",
    "WebshopEpisode",
]

WORLD: OpenWorld = open_world
