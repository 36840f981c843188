"""A shop: its search index, its prices and its goals. Shared by all episodes.

The official code draws prices and price bounds from an unseeded generator, so they differ between its runs.
Here the generator is seeded: the goals are those of the official code after `random.seed(seed)`, in the
official order (shuffle seed 233). There is a generated goal for every combination of a product's options;
human goals are written by people. Not covered: drawing goals by weight.
"""

import itertools
import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from agent2rl.core.errors import UserError
from agent2rl.environments.retrieval import Bm25Index
from agent2rl.environments.webshop.product import Product, load_products

# Goals, built, bounded and shuffled as in the official code, but with a seed

Kind = Literal["generated", "human"]
SEED = 42
SHUFFLE = 233
UNBOUNDED = 1000000
TEST, VALIDATION = slice(0, 500), slice(500, 1500)
TRAIN = slice(1500, None)
"""The official split of the shuffled goals."""
_STEPS = [10.0 * step for step in range(1, 100)]


@dataclass(frozen=True, slots=True)
class ShoppingGoal:
    """What to buy. The product that the goal was made from fits it; others may."""

    asin: str
    instruction: str
    attributes: tuple[str, ...]
    options: tuple[tuple[str, str], ...]
    """Names and values; in human goals the names are empty."""
    price_upper: float
    title: str
    query: str
    product_category: str

    def to_record(self) -> dict[str, Any]:
        """Convert to a JSON object."""
        return {
            "asin": self.asin,
            "instruction": self.instruction,
            "attributes": list(self.attributes),
            "options": [list(option) for option in self.options],
            "price_upper": self.price_upper,
            "title": self.title,
            "query": self.query,
            "product_category": self.product_category,
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        try:
            return cls(
                **{
                    **record,
                    "attributes": tuple(record["attributes"]),
                    "options": tuple((str(name), str(value)) for name, value in record["options"]),
                }
            )
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"Invalid goal: {type(error).__name__}: {error}.") from error


def build_goals(
    products: Iterable[Product], kind: Kind | None = "generated", seed: int = SEED
) -> tuple[tuple[ShoppingGoal, ...], dict[str, float]]:
    """Return all goals in the official order, and the price of each product. Without a kind, no goals."""
    products = tuple(products)
    rng = random.Random(seed)
    # Before any goal, so that a shop that is loaded without goals has the same prices.
    prices = {product.asin: _draw_price(product, rng) for product in products}
    if kind is None:
        return (), prices
    make = _iter_generated_goals if kind == "generated" else _iter_human_goals
    goals = [goal for product in products for goal in make(product, prices[product.asin], rng)]
    random.Random(SHUFFLE).shuffle(goals)
    return tuple(goals), prices


def _draw_price(product: Product, rng: random.Random) -> float:
    return product.pricing[0] if len(product.pricing) == 1 else rng.uniform(*product.pricing)


def _draw_bound(price: float, rng: random.Random) -> tuple[float, str]:
    """Draw a round price above the product's, and word it for the instruction."""
    above = [step for step in _STEPS if step > price][:4]
    if len(above) < 2:
        return UNBOUNDED, ""
    upper = max(rng.sample(above, 2))
    return upper, f", and price lower than {upper:.2f} dollars"


def _iter_generated_goals(product: Product, price: float, rng: random.Random) -> Iterator[ShoppingGoal]:
    if product.generated is None:
        return
    upper, bound = _draw_bound(price, rng)
    names = sorted(product.options)
    for values in itertools.product(*(product.options[name] for name in names)):
        options = tuple(zip(names, values, strict=True))
        listed = ", and ".join(f"{name}: {value}" for name, value in options)
        text = product.generated.text + (f" with {listed}" if listed else "") + bound
        yield _make_goal(product, text, product.generated.attributes, options, upper)


def _iter_human_goals(product: Product, price: float, rng: random.Random) -> Iterator[ShoppingGoal]:
    for instruction in product.human:
        if not instruction.attributes:
            continue
        upper, bound = _draw_bound(price, rng)
        text = instruction.text.strip(".") + bound
        options = tuple(("", value) for value in instruction.options)
        yield _make_goal(product, text, instruction.attributes, options, upper)


def _make_goal(
    product: Product,
    instruction: str,
    attributes: tuple[str, ...],
    options: tuple[tuple[str, str], ...],
    price_upper: float,
) -> ShoppingGoal:
    return ShoppingGoal(
        asin=product.asin,
        instruction=instruction,
        attributes=attributes,
        options=options,
        price_upper=price_upper,
        title=product.title,
        query=product.query,
        product_category=product.product_category,
    )


FOUND = 50
"""Maximum number of results of a search."""


@dataclass(frozen=True)
class Shop:
    products: Mapping[str, Product]
    """Products by their asin, in the order of the files."""
    prices: Mapping[str, float]
    goals: tuple[ShoppingGoal, ...]
    """In the official order; `TEST`, `VALIDATION` and `TRAIN` split them."""
    index: Bm25Index

    @classmethod
    def load(
        cls, folder: Path, kind: Kind | None = "generated", seed: int = SEED, products: int | None = None
    ) -> "Shop":
        """Load a shop from official files, with at most the first `products` rows."""
        return cls.from_products(load_products(folder, products), kind, seed)

    @classmethod
    def from_products(
        cls, products: Iterable[Product], kind: Kind | None = "generated", seed: int = SEED
    ) -> "Shop":
        products = tuple(products)
        goals, prices = build_goals(products, kind, seed)
        index = Bm25Index.from_texts((product.asin, product.text) for product in products)
        return cls({product.asin: product for product in products}, prices, goals, index)

    def search(self, query: str) -> tuple[Product, ...]:
        return tuple([self.products[asin] for asin in self.index.search_ids(query, FOUND)])
