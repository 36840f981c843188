"""WebShop in miniature: a generated shop in the official file format, small enough for a tiny model.

There are several products of each kind of thing, which differ in material and look. The title has neither:
the material can be searched for, the look is only on the features page. Some products have a look-alike that
costs too much. Training goals ask for some products, feedback and held-out goals for others.
"""

import json
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Literal

from pydantic import JsonValue

from agent2rl.core.engine import Sampling
from agent2rl.core.errors import UserError
from agent2rl.core.task import Example, Splits, Task
from agent2rl.environments.webshop import Shop
from agent2rl.environments.webshop.environment import SHOP
from agent2rl.environments.webshop.pages import PageLayout
from agent2rl.environments.webshop.product import INSTRUCTIONS, PRODUCTS, REVIEWS, read_products
from agent2rl.evaluators.task_data import read_prompts
from agent2rl.tasks import webshop
from agent2rl.tasks.webshop import EVALUATOR
from agent2rl.tasks.webshop import TASK as WEBSHOP
from agent2rl.tasks.webshop.paper import build_profile

# Generating the products, deterministically, in the official file format

Part = Literal["train", "feedback", "heldout"]
PARTS: tuple[Part | None, ...] = ("train",) * 4 + ("feedback",) * 4 + ("heldout",) * 4 + (None, None)
"""The splits that ask for the products of a thing; None for look-alikes, which no goal asks for."""
LOOK_ALIKE_EXTRA_PRICE = 90
"""Puts look-alikes above every price bound: a bound is at most 40 above a price."""

KITCHEN, BEDROOM, CLOTHES, OFFICE = (
    "Home › Kitchen",
    "Home › Bedroom",
    "Clothing › Hall",
    "Office › School",
)
THINGS = {
    KITCHEN: ("cup", "mug", "bowl", "plate", "pot", "jar", "bottle", "spoon"),
    BEDROOM: ("pillow", "lamp", "clock", "chair", "vase"),
    CLOTHES: ("hat", "shirt", "shoe", "ring", "watch", "cap"),
    OFFICE: ("pen", "pencil", "book", "ruler", "box"),
}
MATERIALS = {
    KITCHEN: ("steel", "glass", "wood", "stone", "plastic"),
    BEDROOM: ("cotton", "wool", "wood", "glass", "silk"),
    CLOTHES: ("cotton", "wool", "leather", "silk", "steel"),
    OFFICE: ("wood", "steel", "plastic", "paper", "leather"),
}
LOOKS = ("thin", "thick", "wide", "narrow", "long", "short")
COLOURS = ("red", "blue", "green", "yellow", "black", "white", "brown", "grey", "pink", "silver")
BRANDS = ("Arlo", "Bexa", "Corin", "Dovo", "Elin", "Fabro", "Gente", "Hilo", "Isko", "Juno", "Kappa", "Lumo")
OPINIONS = (("Good", 5, "I like it."), ("Fine", 4, "It holds."), ("Lost it", 2, "I wanted more."))


@dataclass(frozen=True)
class ProductStock:
    """The products, and the split that asks for each."""

    rows: tuple[Mapping[str, JsonValue], ...]
    known: Mapping[str, Mapping[str, JsonValue]]
    reviews: tuple[Mapping[str, JsonValue], ...]
    parts: Mapping[str, Part | None]

    def build_files(self, parts: Iterable[Part] = ()) -> dict[str, JsonValue]:
        """Build the contents of the files, with instructions only for the products of these parts."""
        shown = {*parts}
        known: dict[str, JsonValue] = {
            asin: dict(entry) if self.parts[asin] in shown else {"attributes": entry["attributes"]}
            for asin, entry in self.known.items()
        }
        return {
            PRODUCTS: [dict(row) for row in self.rows],
            INSTRUCTIONS: known,
            REVIEWS: [dict(review) for review in self.reviews],
        }

    def write_files(self, folder: Path, parts: Iterable[Part] = ()) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for name, contents in self.build_files(parts).items():
            (folder / f"{name}.json").write_text(json.dumps(contents), encoding="utf-8")


@cache
def generate_stock() -> ProductStock:
    dice = random.Random("webshop-mini")
    kinds = [(category, thing) for category, things in THINGS.items() for thing in things]
    products = [product for category, thing in kinds for product in _make_product_line(dice, category, thing)]
    dice.shuffle(products)
    by_asin = {f"B{number:03}": product for number, product in enumerate(products, 101)}
    return ProductStock(
        rows=tuple({"asin": asin, **row} for asin, (row, _, _) in by_asin.items()),
        known={asin: known for asin, (_, known, _) in by_asin.items()},
        reviews=tuple(_draw_review(dice, asin) for asin in by_asin),
        parts={asin: part for asin, (_, _, part) in by_asin.items()},
    )


_GeneratedProduct = tuple[dict[str, JsonValue], dict[str, JsonValue], Part | None]


def _make_product_line(dice: random.Random, category: str, thing: str) -> list[_GeneratedProduct]:
    """Generate the products of one thing: all different, except that each look-alike copies another one."""
    pairs = [(material, look) for material in MATERIALS[category] for look in LOOKS]
    bought = dice.sample(pairs, sum(part is not None for part in PARTS))
    alike = dice.sample(bought, len(PARTS) - len(bought))
    line: list[_GeneratedProduct] = []
    for part, (material, look) in zip(PARTS, [*bought, *alike], strict=True):
        price = dice.randint(5, 45) + (LOOK_ALIKE_EXTRA_PRICE if part is None else 0)
        row: dict[str, JsonValue] = {
            "name": thing,
            "full_description": f"A {material} {thing} by {dice.choice(BRANDS)}.",
            "small_description": [f"{material} {thing}", f"it is {look}"],
            "pricing": f"${price}.0",
            "customization_options": _draw_options(dice, category),
            "category": category.split(" › ")[0].lower(),
            "query": thing,
            "product_category": f"{category} › {thing}",
        }
        known: dict[str, JsonValue] = {
            "attributes": [material, look],
            "instruction": f"Find me a {look} {material} {thing}",
            "instruction_attributes": [material, look],
        }
        line.append((row, known, part))
    return line


def _draw_options(dice: random.Random, category: str) -> dict[str, JsonValue]:
    """Draw four colours, and sizes for clothes.

    `all` comes first, so that a colour has the same token in an action as on a page: after a bracket, `red`
    is another token than after a blank, and a small model copies tokens long before it spells words.
    """
    colours = [f"all {colour}" for colour in dice.sample(COLOURS, 4)]
    options: dict[str, JsonValue] = {"color": [{"value": colour} for colour in colours]}
    if category == CLOTHES:
        options["size"] = [{"value": "small"}, {"value": "large"}]
    return options


def _draw_review(dice: random.Random, asin: str) -> dict[str, JsonValue]:
    title, stars, text = dice.choice(OPINIONS)
    return {
        "asin": asin,
        "average_rating": stars,
        "reviews": [{"title": title, "stars": stars, "review": text}],
    }


STEPS = 12
SCORING = 400
DEMONSTRATIONS = 96
"""The expert help of a run unless the user chooses another level."""
LAYOUT = PageLayout(separator=" | ", shown=4, head=False)
"""Short pages for the small context of a tiny model; the official separator takes it five tokens."""
PROMPTS = read_prompts(Path(__file__).with_name("mini_prompts.toml"))


PRICE_BOUNDS_SEED = 90417
"""Seed of the price bounds. The agent does not see this package, so it cannot predict the goals."""


@cache
def build_shop() -> Shop:
    products = read_products(generate_stock().build_files(("train", "feedback", "heldout")), "the miniature")
    return Shop.from_products(products, seed=PRICE_BOUNDS_SEED)


def load(data_dir: Path | None) -> Splits:
    if data_dir is not None:
        raise UserError("webshop-mini is generated and reads no files.", "Leave out --data-dir.")
    return Splits(
        train=_build_examples("train"),
        feedback=_build_examples("feedback")[:SCORING],
        heldout=_build_examples("heldout")[:SCORING],
        folders={SHOP: lambda folder: generate_stock().write_files(folder, ("train",))},
        evaluator_folders={SHOP: lambda folder: generate_stock().write_files(folder)},
    )


def _build_examples(part: Part) -> tuple[Example, ...]:
    goals = [goal for goal in build_shop().goals if generate_stock().parts[goal.asin] == part]
    return tuple(
        webshop.build_example(build_shop(), goal, f"{part}-{number:04}", STEPS, LAYOUT)
        for number, goal in enumerate(goals)
    )


TASK: Task = replace(
    WEBSHOP,
    id="webshop-mini",
    description=WEBSHOP.description
    + """
## The miniature

The shop is generated and small. The goals that are used for scoring ask for products of this shop that no
training goal asks for.
""",
    load=load,
    # An action is one line; more text of a small model would only fill its context.
    evaluator=replace(EVALUATOR.with_prompts(PROMPTS), sampling=Sampling(max_tokens=24, stop=("\n",))),
    default_expert=DEMONSTRATIONS,
    paper=build_profile(None),
)
