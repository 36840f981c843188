"""An expert for WebShop that has nothing but what it reads; hidden in runs that withhold it."""

from agent2rl.environments.webshop.expert.shopper import WebshopExpert

__all__ = ["WebshopExpert"]
