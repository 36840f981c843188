"""Score a purchase with the official reward.

    (attributes hit + options hit + [price within the bound]) / (attributes + options + 1) x type factor

An attribute is hit if the product has a similar one, or if its text contains it; an option is hit if a chosen
one is similar. Options with a colour in them are compared by that colour. "Similar" is a `token_set_ratio` of
thefuzz above 85. The type factor tells whether the product is of the requested kind.

The official code extracts the colour only from the chosen option if a goal names its options (`items()` for
`values()`), so 458 of the 6,910 generated goals of the small catalogue cannot be won. Here it is extracted on
both sides, as officially for human goals; `as_published=True` scores as the published code does.

Nouns of a title come from spaCy's model, as officially, if it is installed, else from a rule. A score records
which one, since the type factor can depend on it. The colour names are WebShop's own (MIT), in the order in
which they are tried.
"""

import importlib.util
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Literal

from rapidfuzz import fuzz, utils

from agent2rl.environments.webshop.product import Product
from agent2rl.environments.webshop.shop import ShoppingGoal

# Colour names in options

COLOURS = tuple(Path(__file__).with_name("colours.txt").read_text(encoding="utf-8").split())


def find_colour(option: str) -> str:
    """Return the first colour name anywhere in an option's value ("fashion" has ash), or the value."""
    return next((name for name in COLOURS if name in option), option)


# Nouns of a product's title

NounTagger = Literal["spacy", "rule"]
SPACY_MODEL = "en_core_web_sm"

FUNCTION_WORDS = frozenset(Path(__file__).with_name("function_words.txt").read_text(encoding="utf-8").split())


def extract_nouns(title: str) -> list[str]:
    """Return the nouns of a title in lower case, in order, with repetitions."""
    return _load_spacy_tagger()(title) if get_noun_tagger() == "spacy" else extract_nouns_by_rule(title)


def get_noun_tagger() -> NounTagger:
    """Return which of the two extracts nouns in this installation."""
    return "spacy" if _is_spacy_installed() else "rule"


@lru_cache(maxsize=1 << 14)
def _split_content_words(title: str) -> tuple[str, ...]:
    return tuple(
        word
        for word in re.findall(r"\w+", title.lower())
        if len(word) > 2 and word.isalpha() and word not in FUNCTION_WORDS
    )


def extract_nouns_by_rule(title: str) -> list[str]:
    return list(_split_content_words(title))


@cache
def _is_spacy_installed() -> bool:
    return all(importlib.util.find_spec(name) is not None for name in ("spacy", SPACY_MODEL))


@cache
def _load_spacy_tagger() -> Callable[[str], list[str]]:
    import spacy  # heavy, and absent from most installations

    parse = spacy.load(SPACY_MODEL)

    @lru_cache(maxsize=1 << 14)
    def read(title: str) -> list[str]:
        return [token.text.lower() for token in parse(title) if token.pos_ in ("NOUN", "PROPN")]

    return read


ALIKE = 85
_DROPPED = dict.fromkeys(range(128, 256))
"""Characters that thefuzz drops before comparing."""


@dataclass(frozen=True, slots=True)
class PurchaseScore:
    """A purchase's reward and its terms."""

    reward: float
    attributes: int
    options: int
    price: bool
    kind: float
    """The type factor."""


def score_purchase(
    product: Product, goal: ShoppingGoal, price: float, chosen: Iterable[str], *, as_published: bool = False
) -> PurchaseScore:
    attributes = sum(_has_attribute(product, attribute) for attribute in goal.attributes)
    chosen_names = [find_colour(value) for value in chosen]
    options = sum(_has_option(option, chosen_names, as_published) for option in goal.options)
    within_bound = price <= goal.price_upper
    kind = compute_type_factor(product, goal)
    share = (attributes + options + within_bound) / (len(goal.attributes) + len(goal.options) + 1)
    return PurchaseScore(share * kind, attributes, options, within_bound, kind)


def compute_type_factor(product: Product, goal: ShoppingGoal) -> float:
    """Return 1 for the same query, two shared levels of category or enough shared nouns, else 0.5.

    Titles without a common noun always give 0, and almost without one 0.1.
    """
    shared = _compute_noun_overlap(product.title, goal.title)
    if shared == 0:
        return 0.0
    if shared < 0.1:
        return 0.1
    same = product.query == goal.query or len(_split_category(product) & _split_category(goal)) >= 2
    return 1.0 if same or shared > 0.2 else 0.5


def is_alike(one: str, other: str) -> bool:
    if one == other:
        return True
    # thefuzz rounds its ratios to whole numbers, rapidfuzz does not.
    return round(fuzz.token_set_ratio(_normalize_text(one), _normalize_text(other))) > ALIKE


def _has_attribute(product: Product, attribute: str) -> bool:
    if any(is_alike(own, attribute) for own in product.attributes):
        return True
    texts = (product.title, " ".join(product.bullets), product.description)
    return any(attribute in text.lower() for text in texts)


def _has_option(option: tuple[str, str], chosen: list[str], as_published: bool) -> bool:
    name, value = option
    requested = _format_published_option(name, value) if as_published and name else find_colour(value)
    return any(is_alike(choice, requested) for choice in chosen)


def _format_published_option(name: str, value: str) -> str:
    """Return a colour if it is the whole name or value, else the pair as Python prints it."""
    return next((colour for colour in COLOURS if colour in (name, value)), str((name, value)))


def _compute_noun_overlap(bought: str, requested: str) -> float:
    # 0.2 is what the official code assumes for a title without nouns.
    nouns = extract_nouns(requested)
    return len({*nouns} & {*extract_nouns(bought)}) / len(nouns) if nouns else 0.2


def _split_category(item: Product | ShoppingGoal) -> set[str]:
    return {level.strip() for level in item.product_category.split("›")}


def _normalize_text(text: str) -> str:
    return utils.default_process(text.translate(_DROPPED))
