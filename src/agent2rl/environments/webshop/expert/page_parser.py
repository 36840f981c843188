"""What the expert reads out of a page and out of an instruction.

A page is its pieces; what stands between them is seen on the first page, whose first two are always the same.
An instruction of the official kind ends in options by name and in a price; one that a person wrote names
options without saying so.
"""

import re
from dataclasses import dataclass
from typing import NamedTuple

from agent2rl.environments.webshop import pages
from agent2rl.environments.webshop.nouns import FUNCTION_WORDS

_FIRST = re.compile(r"WebShop(.+?)Instruction:", re.DOTALL)
_PRICE = re.compile(r", and price lower than ([\d.]+) dollars$")
_OPTIONS = re.compile(r"(.*) with ([^:,]+: .+)$")
"""The last "with" that a name and a colon follow."""
_NO_WORD = re.compile(r"[^\w.-]+")
_SAY_NOTHING = FUNCTION_WORDS | {
    "find",
    "want",
    "need",
    "looking",
    "buy",
    "get",
    "please",
    "made",
    "price",
    "lower",
}


@dataclass(frozen=True)
class ParsedInstruction:
    """What an instruction asks for."""

    text: str
    """Without options and price."""
    words: frozenset[str]
    """That the product should show somewhere, options aside."""
    options: frozenset[str]
    """Values, in small letters."""
    most: float
    """What it may cost."""

    @classmethod
    def from_instruction(cls, instruction: str) -> "ParsedInstruction":
        price = _PRICE.search(instruction)
        text = instruction[: price.start()] if price else instruction
        options = _OPTIONS.match(text)
        named = options[2].split(", and ") if options else []
        text = options[1] if options else text
        return cls(
            text=text,
            words=frozenset(extract_words(text)),
            options=frozenset(option.partition(": ")[2].lower() for option in named),
            most=float(price[1]) if price else float("inf"),
        )

    @property
    def query(self) -> str:
        """Its words that say something, in their order, and the options."""
        said = re.findall(r"[^\s,]+", self.text)
        return " ".join([*(word for word in said if extract_words(word)), *sorted(self.options)])

    def wants_option(self, value: str) -> bool:
        """Whether a value on a page is to be chosen: by name, or, where none is named, said in the text."""
        if self.options:
            return value.lower() in self.options
        return f" {value.lower()} " in f" {_NO_WORD.sub(' ', self.text.lower())} "


class ListedProduct(NamedTuple):
    """A product in a list of results."""

    asin: str
    title: str
    price: float
    """The lowest, where it is a range."""


def extract_words(text: str) -> set[str]:
    """That say something, in small letters, plurals as singulars: who asks for shirts wants a shirt."""
    found = re.findall(r"[a-z0-9]+", text.lower())
    return {word.removesuffix("s") for word in found if len(word) > 2 and word not in _SAY_NOTHING}


def detect_separator(first: str) -> str:
    """What stands between the pieces, by the first page of a visit."""
    found = _FIRST.match(first)
    return found[1] if found else pages.OFFICIAL.separator


def parse_offers(pieces: list[str]) -> list[ListedProduct]:
    """What a page of results lists."""
    listed = pieces[pieces.index(pages.NEXT) + 1 :]
    triples = zip(listed[::3], listed[1::3], listed[2::3], strict=False)
    return [ListedProduct(asin, title, _parse_price(price)) for asin, title, price in triples]


def _parse_price(price: str) -> float:
    found = re.search(r"\d+(?:\.\d+)?", price)
    return float(found[0]) if found else 0.0
