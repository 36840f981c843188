"""Load products from the official files, as the official loader does.

items_shuffle*.json      every product: asin, name, full_description, small_description, pricing, options, …
items_ins_v2*.json       asin → attributes and, for most, a generated instruction
items_human_ins*.json    asin → human-written instructions
reviews*.json            buyers' reviews; the official shop no longer has them

Each may be compressed (`.xz`). A pricing is "$8.5" or "$19.99$27.99"; without one a product costs 100.
"""

import json
import lzma
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent2rl.core.errors import UserError

PRODUCTS, INSTRUCTIONS, HUMAN, REVIEWS = "items_shuffle", "items_ins_v2", "items_human_ins", "reviews"
UNKNOWN = ("DUMMY_ATTR",)
"""The attributes of a product without attributes in the files."""
_LONGEST_ID = 10
_COST = 100.0


@dataclass(frozen=True, slots=True)
class ShoppingInstruction:
    """An instruction: its text, and the attributes and options that it asks for."""

    text: str
    attributes: tuple[str, ...]
    options: tuple[str, ...] = ()
    """Values of options; only human-written instructions have them."""


@dataclass(frozen=True, slots=True)
class ProductReview:
    title: str
    score: str
    body: str


@dataclass(frozen=True, slots=True)
class Product:
    asin: str
    title: str
    description: str
    bullets: tuple[str, ...]
    pricing: tuple[float, ...]
    """One price, or the lowest and the highest."""
    options: Mapping[str, tuple[str, ...]]
    attributes: tuple[str, ...]
    category: str
    query: str
    """The search query with which the product was collected."""
    product_category: str
    rating: str = "N.A."
    reviews: tuple[ProductReview, ...] = ()
    generated: ShoppingInstruction | None = None
    human: tuple[ShoppingInstruction, ...] = ()

    @property
    def price(self) -> str:
        """The price as shown on pages."""
        return " to ".join([f"${price}" for price in self.pricing])

    @property
    def text(self) -> str:
        """The text for the search index; it has only the first bullet."""
        options = ", and ".join(f"{name}: {', '.join(values)}" for name, values in self.options.items())
        first = self.bullets[0] if self.bullets else ""
        return " ".join([self.title, self.description, first, options]).lower()


def load_products(folder: Path, limit: int | None = None) -> tuple[Product, ...]:
    """Load the products of a folder of official files in order, at most the first `limit` rows."""
    files = {
        PRODUCTS: _read_official_file(folder, PRODUCTS, list)[:limit],
        INSTRUCTIONS: _read_official_file(folder, INSTRUCTIONS, dict),
        HUMAN: _read_official_file(folder, HUMAN, dict, required=False),
        REVIEWS: _read_official_file(folder, REVIEWS, list, required=False),
    }
    return read_products(files, str(folder))


def read_products(files: Mapping[str, Any], source: str) -> tuple[Product, ...]:
    """Build the products from the contents of the files, by the files' names."""
    generated, human = files[INSTRUCTIONS], files.get(HUMAN, {})
    reviews = {row["asin"]: row for row in files.get(REVIEWS, ()) if isinstance(row, dict) and "asin" in row}
    products: dict[str, Product] = {}
    for row in files[PRODUCTS]:
        try:
            asin = row["asin"]
            if asin == "nan" or len(asin) > _LONGEST_ID or asin in products:
                continue
            products[asin] = build_product(
                row, generated.get(asin, {}), human.get(asin, ()), reviews.get(asin, {})
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            name = row.get("asin") if isinstance(row, dict) else row
            raise UserError(
                f"Cannot read the product {name!r} in {source}: {type(error).__name__}: {error}.",
                "Use the official files.",
            ) from error
    return tuple(products.values())


def build_product(
    row: Mapping[str, Any], generated: Mapping[str, Any], human: Any, reviews: Mapping[str, Any]
) -> Product:
    """Build a product from its row of each file."""
    bullets = row["small_description"]
    text = generated.get("instruction")
    for name in ("name", "full_description"):
        if not isinstance(row[name], str):
            raise ValueError(f"its {name} is not text")
    if isinstance(bullets, list) and not all(isinstance(bullet, str) for bullet in bullets):
        raise ValueError("its small_description has an entry that is not text")
    return Product(
        asin=row["asin"],
        title=row["name"],
        description=row["full_description"],
        bullets=tuple(bullets) if isinstance(bullets, list) else (str(bullets),),
        pricing=_parse_pricing(row.get("pricing")),
        options=_parse_options(row["customization_options"]),
        attributes=tuple(generated.get("attributes", UNKNOWN)),
        category=row["category"],
        query=row["query"].lower().strip(),
        product_category=row["product_category"],
        rating=str(reviews.get("average_rating", "N.A.")),
        reviews=tuple(_parse_review(review) for review in reviews.get("reviews", ())),
        generated=None
        if text is None
        else ShoppingInstruction(text, tuple(generated["instruction_attributes"])),
        human=tuple(
            ShoppingInstruction(
                entry["instruction"], tuple(entry["instruction_attributes"]), _read_option_values(entry)
            )
            for entry in human
        ),
    )


def _read_option_values(instruction: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(instruction["instruction_options"])


def _parse_review(row: Mapping[str, Any]) -> ProductReview:
    return ProductReview(
        str(row.get("title", "")), str(row.get("score", row.get("stars"))), row.get("review", "")
    )


def _parse_pricing(pricing: str | None) -> tuple[float, ...]:
    parts = pricing.split("$")[1:] if pricing else []
    return tuple(float(re.sub(r"[^\d.]", "", part)) for part in parts[:2]) or (_COST,)


def _parse_options(rows: Any) -> dict[str, tuple[str, ...]]:
    return {
        name.lower(): tuple(row["value"].strip().replace("/", " | ").lower() for row in values)
        for name, values in (rows or {}).items()
        if values is not None
    }


def find_official_file(folder: Path, name: str) -> Path | None:
    """Return the only file with this name, compressed or not, or None."""
    paths = sorted(path for path in folder.glob(f"{name}*") if path.name.endswith((".json", ".json.xz")))
    if len(paths) > 1:
        raise UserError(
            f"There are {len(paths)} files {name}*.json in {folder}.", "Use a folder with one of each."
        )
    return paths[0] if paths else None


def _read_official_file(
    folder: Path, name: str, kind: type[list[Any]] | type[dict[str, Any]], required: bool = True
) -> Any:
    path = find_official_file(folder, name)
    if path is None and required:
        raise UserError(f"There is no file {name}*.json in {folder}.", "Put WebShop's own files there.")
    return kind() if path is None else read_json_file(path, kind)


def read_json_file(path: Path, kind: type[list[Any]] | type[dict[str, Any]]) -> Any:
    try:
        data = path.read_bytes()
        contents = json.loads(lzma.decompress(data) if path.suffix == ".xz" else data)
    except (OSError, ValueError, RecursionError, lzma.LZMAError) as error:
        raise UserError(f"Cannot read {path}: {type(error).__name__}: {error}.") from error
    if not isinstance(contents, kind):
        raise UserError(f"{path} is not a JSON {kind.__name__}.", "Use the official files.")
    return contents
