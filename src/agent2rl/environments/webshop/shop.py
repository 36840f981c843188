"""A shop: its search index, its prices, and the goals that shoppers are given. Shared by all episodes.

The official code draws prices and price bounds from an unseeded generator, so they differ between its runs.
Here the generator is seeded: the goals are those of the official code after `random.seed(seed)`, in the
official order (shuffle seed 233). Generated goals ask for every combination of a product's options; human
goals are what people wrote. Not covered: drawing goals by weight.
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

# Goals: what a shopper is asked to buy. Built, bounded and shuffled as officially, the same each time.

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
    """What is bought is held against it; the product that it was made from is one that fits."""

    asin: str
    instruction: str
    attributes: tuple[str, ...]
    options: tuple[tuple[str, str], ...]
    """Names and values; the names are empty where a person named values alone."""
    price_upper: float
    title: str
    query: str
    product_category: str

    def to_record(self) -> dict[str, Any]:
        """As JSON has it."""
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
            raise UserError(f"This is no goal: {type(error).__name__}: {error}.") from error


def build_goals(
    products: Iterable[Product], kind: Kind | None = "generated", seed: int = SEED
) -> tuple[tuple[ShoppingGoal, ...], dict[str, float]]:
    """All goals in the official order, and what each product costs. Without a kind, no goals."""
    shelf = tuple(products)
    chance = random.Random(seed)
    prices = {one.asin: _draw_price(one, chance) for one in shelf}
    if kind is None:
        return (), prices
    make = _iter_generated_goals if kind == "generated" else _iter_human_goals
    goals = [goal for one in shelf for goal in make(one, prices[one.asin], chance)]
    random.Random(SHUFFLE).shuffle(goals)
    return tuple(goals), prices


def _draw_price(product: Product, chance: random.Random) -> float:
    return product.pricing[0] if len(product.pricing) == 1 else chance.uniform(*product.pricing)


def _draw_bound(price: float, chance: random.Random) -> tuple[float, str]:
    """A round price above a product's, and how the instruction says it."""
    above = [step for step in _STEPS if step > price][:4]
    if len(above) < 2:
        return UNBOUNDED, ""
    upper = max(chance.sample(above, 2))
    return upper, f", and price lower than {upper:.2f} dollars"


def _iter_generated_goals(product: Product, price: float, chance: random.Random) -> Iterator[ShoppingGoal]:
    if product.generated is None:
        return
    upper, bound = _draw_bound(price, chance)
    names = sorted(product.options)
    for values in itertools.product(*(product.options[name] for name in names)):
        options = tuple(zip(names, values, strict=True))
        wanted = ", and ".join(f"{name}: {value}" for name, value in options)
        text = product.generated.text + (f" with {wanted}" if wanted else "") + bound
        yield _make_goal(product, text, product.generated.attributes, options, upper)


def _iter_human_goals(product: Product, price: float, chance: random.Random) -> Iterator[ShoppingGoal]:
    for instruction in product.human:
        if not instruction.attributes:
            continue
        upper, bound = _draw_bound(price, chance)
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
