"""Render the shop's pages as the official text mode does: the visible texts, joined by a separator.

The official code renders HTML and extracts its text; here that text is written directly. A text of blanks
alone is kept as an empty piece, and one with a line break in it is dropped, as BeautifulSoup does.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from agent2rl.environments.webshop.product import Product

BACK, PREVIOUS, NEXT, BUY, SEARCH = "Back to Search", "< Prev", "Next >", "Buy Now", "Search"
DESCRIPTION, FEATURES, REVIEWS, ATTRIBUTES = "Description", "Features", "Reviews", "Attributes"
SUB_PAGES = (DESCRIPTION, FEATURES, REVIEWS, ATTRIBUTES)
ACTIONS_HEADING = "\n\nAvailable actions:\n"
"""Follows a page if an example's `list_actions` is set; then come the actions, one a line."""
_BLANKS = " \n\t\f\r"
_UNSAFE = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "'": "\\u0027"}
Texts = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PageLayout:
    """Layout of the pages. The defaults are official; pages for a tiny model may be shorter."""

    separator: str = " [SEP] "
    shown: int = 10
    """Number of results on a page."""
    head: bool = True
    """Whether every page repeats the instruction and the button back to the search."""

    def text(self, texts: Iterable[str]) -> str:
        return self.separator.join(_keep_visible(texts))


OFFICIAL = PageLayout()


def render_start(instruction: str) -> Texts:
    return ("WebShop", "Instruction:", instruction, SEARCH)


def render_results(instruction: str | None, products: Sequence[Product], page: int, total: int) -> Texts:
    turn = (PREVIOUS, NEXT) if page > 1 else (NEXT,)
    listed = [text for product in products for text in (product.asin, product.title, product.price)]
    return (*_render_head(instruction), f"Page {page} (Total results: {total})", *turn, *listed)


def render_item(instruction: str | None, product: Product, with_attributes: bool) -> Texts:
    options = [text for name, values in product.options.items() for text in (name, *values)]
    return (
        *_render_head(instruction, PREVIOUS),
        *options,
        product.title,
        f"Price: {product.price}",
        f"Rating: {product.rating}",
        *list_sub_pages(with_attributes),
        BUY,
    )


def list_sub_pages(with_attributes: bool) -> Texts:
    return SUB_PAGES if with_attributes else SUB_PAGES[:-1]


def render_sub_page(instruction: str | None, product: Product, name: str) -> Texts:
    return (*_render_head(instruction, PREVIOUS), *_render_body(product, name))


def render_done(asin: str, options: Mapping[str, str], reward: float) -> Texts:
    """Render the last page, with everything that the official page hides only from browsers."""
    bought = json.dumps(dict(options), sort_keys=True)
    for letter, code in _UNSAFE.items():
        bought = bought.replace(letter, code)
    return (
        "Thank you for shopping with us!",
        *("Your code:", "None", "(Paste it in your MTurk interface.)"),
        *("Purchased", "asin", asin, "options", bought, "attrs", "None", "category", "None"),
        *("query", "None", "product category", "None"),
        *("Target", "asin", "options", "attrs", "price upper", "instuction text", "category"),
        *("product category", "query", "Goal", "None"),
        *("Reward", "Your score (min 0.0, max 1.0)", str(reward), "Reward Details", "None"),
    )


def _render_head(instruction: str | None, *buttons: str) -> Texts:
    """Render the beginning of a page; without an instruction, only its buttons."""
    return buttons if instruction is None else ("Instruction:", instruction, BACK, *buttons)


def _render_body(product: Product, name: str) -> Iterator[str]:
    if name == DESCRIPTION:
        yield product.description
    elif name == FEATURES:
        yield from (f" {bullet}" for bullet in product.bullets)
    elif name == REVIEWS:
        for review in product.reviews:
            yield from (f'"{review.title}"', review.score, review.body)
    else:
        yield from (f" {attribute}" for attribute in product.attributes)
        yield from (product.category, product.query, product.product_category)


def _keep_visible(texts: Iterable[str]) -> list[str]:
    pairs = [(text.strip(), text) for text in texts]
    return [bare for bare, text in pairs if bare or (text and (text.strip(_BLANKS) or "\n" not in text))]
