"""A small catalogue of our own in WebShop's format, for tests."""

import json
import lzma
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agent2rl.environments.webshop import Product, Shop, ShoppingGoal
from agent2rl.environments.webshop.product import build_product

SHOE_CATEGORY = "Clothing › Women › Shoes › Pumps"


def make_product_row(asin: str, name: str, **others: Any) -> dict[str, Any]:
    """A product as its file has it."""
    return {
        "asin": asin,
        "name": name,
        "full_description": "",
        "small_description": [""],
        "pricing": "$20.0",
        "customization_options": "",
        "category": "fashion",
        "query": "Women's Pumps ",
        "product_category": SHOE_CATEGORY,
        "images": ["none"],
        **others,
    }


def make_options(**values: Sequence[str]) -> dict[str, Any]:
    return {name: [{"value": value} for value in listed] for name, listed in values.items()}


PRODUCT_ROWS = (
    make_product_row(
        "B000000001",
        "Red Party Pumps",
        full_description="High heels for a long evening.",
        small_description=["Rubber sole ", "Made of leather"],
        pricing="$19.5$29.5",
        customization_options={**make_options(Color=["Red", "Dark/Blue"], Size=["5", "6"]), "Fit": None},
    ),
    make_product_row("B000000002", "Red Party Pumps, Low", small_description="Cotton lining"),
    make_product_row(
        "B000000003",
        "Green Tea Set",
        pricing="",
        category="grocery",
        query="tea",
        product_category="Grocery › Tea",
        customization_options=make_options(flavour=["mint", "plain"]),
    ),
)
PRODUCT_ATTRIBUTES: dict[str, Any] = {
    "B000000001": {
        "attributes": ["rubber sole", "high heel"],
        "instruction": "Find me women's pumps with rubber sole",
        "instruction_attributes": ["rubber sole"],
    },
    "B000000002": {"attributes": []},
    "B000000003": {
        "attributes": ["caffeine free"],
        "instruction": "Find me tea that is caffeine free",
        "instruction_attributes": ["caffeine free"],
    },
}
HUMAN_GOALS: dict[str, Any] = {
    "B000000003": [
        {
            "instruction": "i want mint tea.",
            "instruction_attributes": ["caffeine free"],
            "instruction_options": ["mint"],
        },
        {"instruction": "anything.", "instruction_attributes": [], "instruction_options": []},
    ]
}
REVIEWS = (
    {
        "asin": "B000000003",
        "average_rating": 4.5,
        "reviews": [{"title": "Fine", "stars": 5, "review": "I drink it."}, {"title": "Hm", "stars": 2}],
    },
)


def make_catalogue(rows: Sequence[Mapping[str, Any]] = PRODUCT_ROWS) -> tuple[Product, ...]:
    said: dict[str, Any] = {review["asin"]: review for review in REVIEWS}  # type: ignore[misc]
    return tuple(
        build_product(
            one,
            PRODUCT_ATTRIBUTES.get(one["asin"], {}),
            HUMAN_GOALS.get(one["asin"], ()),
            said.get(one["asin"], {}),
        )
        for one in rows
    )


def make_shop(rows: Sequence[Mapping[str, Any]] = PRODUCT_ROWS) -> Shop:
    return Shop.from_products(make_catalogue(rows))


def write_catalogue(folder: Path, rows: Sequence[Mapping[str, Any]] = PRODUCT_ROWS) -> None:
    """The catalogue as files, one of them compressed."""
    packed = lzma.compress(json.dumps(list(rows)).encode())
    (folder / "items_shuffle_3.json.xz").write_bytes(packed)
    (folder / "items_ins_v2_3.json").write_text(json.dumps(PRODUCT_ATTRIBUTES))
    (folder / "items_human_ins.json").write_text(json.dumps(HUMAN_GOALS))
    (folder / "reviews.json").write_text(json.dumps(REVIEWS))


def write_large_catalogue(folder: Path, people: bool = False) -> None:
    """Forty kinds of hats in every one of fifty colours: enough goals for all splits, and, if it is said, as
    many that people wrote."""
    kinds = [f"{chr(97 + number // 26)}{chr(97 + number % 26)}lo" for number in range(40)]
    colours = [f"shade {number}" for number in range(50)]
    rows = [
        make_product_row(
            f"B{number:03}",
            f"{kind} hat",
            small_description=[f"made of {kind}"],
            customization_options=make_options(color=colours),
            query="hat",
            product_category="Clothing › Hats",
        )
        for number, kind in enumerate(kinds)
    ]
    known = {
        f"B{number:03}": {
            "attributes": [kind],
            "instruction": f"Find me a {kind} hat",
            "instruction_attributes": [kind],
        }
        for number, kind in enumerate(kinds)
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "items_shuffle_40.json").write_text(json.dumps(rows))
    (folder / "items_ins_v2_40.json").write_text(json.dumps(known))
    if people:
        said = {
            asin: [
                {
                    "instruction": f"i want a {one['attributes'][0]} hat in {colour}.",
                    "instruction_attributes": one["attributes"],
                    "instruction_options": [colour],
                }
                for colour in colours
            ]
            for asin, one in known.items()
        }
        (folder / "items_human_ins.json").write_text(json.dumps(said))


def make_goal(**others: Any) -> ShoppingGoal:
    """For the first pair of pumps, in dark blue and 6."""
    return ShoppingGoal(
        **{
            "asin": "B000000001",
            "instruction": "Find me women's pumps",
            "attributes": ("rubber sole",),
            "options": (("color", "dark | blue"), ("size", "6")),
            "price_upper": 30.0,
            "title": "Red Party Pumps",
            "query": "women's pumps",
            "product_category": SHOE_CATEGORY,
            **others,
        }
    )
