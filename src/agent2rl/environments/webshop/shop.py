"""A shop: its products, what they cost, and the search over them. Made once, and shared by all visits."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from agent2rl.environments.retrieval import Bm25Index
from agent2rl.environments.webshop.goal import SEED, Kind, ShoppingGoal, build_goals
from agent2rl.environments.webshop.product import Product, load_products

FOUND = 50
"""Results of a search, at most."""


@dataclass(frozen=True)
class Shop:
    products: Mapping[str, Product]
    """By their asin, in the order of the files."""
    prices: Mapping[str, float]
    goals: tuple[ShoppingGoal, ...]
    """In the official order; `goal.TEST`, `VALIDATION` and `TRAIN` split them."""
    index: Bm25Index

    @classmethod
    def load(
        cls, folder: Path, kind: Kind | None = "generated", seed: int = SEED, products: int | None = None
    ) -> "Shop":
        """Of official files, the first so many products if it is said."""
        return cls.from_products(load_products(folder, products), kind, seed)

    @classmethod
    def from_products(
        cls, products: Iterable[Product], kind: Kind | None = "generated", seed: int = SEED
    ) -> "Shop":
        shelf = tuple(products)
        goals, prices = build_goals(shelf, kind, seed)
        index = Bm25Index.from_texts((one.asin, one.text) for one in shelf)
        return cls({one.asin: one for one in shelf}, prices, goals, index)

    def search(self, query: str) -> tuple[Product, ...]:
        return tuple([self.products[asin] for asin in self.index.search_ids(query, FOUND)])
