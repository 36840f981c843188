"""An expert that shops from the pages alone: searches, reads what is cheap enough, and buys the best match.

It sees neither the goal nor the products' files. A product fits if every requested word is on its pages, so
the expert is wrong if another product has them all, or if the right one uses other words.

This must stay a folder: a run without `--expert full` hides it from the agent, compiled files included.
"""

import re
from dataclasses import dataclass
from typing import NamedTuple

from agent2rl.environments.webshop import pages
from agent2rl.environments.webshop.reward import FUNCTION_WORDS

# Parsing pages and instructions

_FIRST = re.compile(r"WebShop(.+?)Instruction:", re.DOTALL)
_PRICE = re.compile(r", and price lower than ([\d.]+) dollars$")
_OPTIONS = re.compile(r"(.*) with ([^:,]+: .+)$")
"""The last "with" that a name and a colon follow."""
_NO_WORD = re.compile(r"[^\w.-]+")
_STOP_WORDS = FUNCTION_WORDS | {
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
    """An instruction's text, words, options and price bound."""

    text: str
    """The instruction without options and price."""
    words: frozenset[str]
    """Words, apart from options, that the product's pages should have."""
    options: frozenset[str]
    """Values of options, in lower case."""
    most: float
    """The price bound."""

    @classmethod
    def from_instruction(cls, instruction: str) -> "ParsedInstruction":
        price = _PRICE.search(instruction)
        text = instruction[: price.start()] if price else instruction
        options = _OPTIONS.match(text)
        pairs = options[2].split(", and ") if options else []
        text = options[1] if options else text
        return cls(
            text=text,
            words=frozenset(extract_words(text)),
            options=frozenset(pair.partition(": ")[2].lower() for pair in pairs),
            most=float(price[1]) if price else float("inf"),
        )

    @property
    def query(self) -> str:
        """The content words in their order, and the options."""
        words = re.findall(r"[^\s,]+", self.text)
        return " ".join([*(word for word in words if extract_words(word)), *sorted(self.options)])

    def wants_option(self, value: str) -> bool:
        """Return whether to choose an option value: it is requested by name, or else in the text."""
        if self.options:
            return value.lower() in self.options
        return f" {value.lower()} " in f" {_NO_WORD.sub(' ', self.text.lower())} "


class ListedProduct(NamedTuple):
    """A product in a list of results."""

    asin: str
    title: str
    price: float
    """The lowest price if it is a range."""


def extract_words(text: str) -> set[str]:
    """Return the content words in lower case, plurals as singulars: "shirts" should match "shirt"."""
    words = re.findall(r"[a-z0-9]+", text.lower())
    return {word.removesuffix("s") for word in words if len(word) > 2 and word not in _STOP_WORDS}


def detect_separator(first: str) -> str:
    """Detect the separator between the pieces from the first page of an episode."""
    match = _FIRST.match(first)
    return match[1] if match else pages.OFFICIAL.separator


def parse_offers(pieces: list[str]) -> list[ListedProduct]:
    """Parse the products on a page of results."""
    listed = pieces[pieces.index(pages.NEXT) + 1 :]
    triples = zip(listed[::3], listed[1::3], listed[2::3], strict=False)
    return [ListedProduct(asin, title, _parse_price(price)) for asin, title, price in triples]


def _parse_price(price: str) -> float:
    match = re.search(r"\d+(?:\.\d+)?", price)
    return float(match[0]) if match else 0.0


# The expert

STEPS = 12
"""The expert buys within this many steps, the smallest step limit of an episode."""


class WebshopExpert:
    """Search, look at products that are cheap enough, read their features, choose options and buy.

    When the steps run out, buy the best product seen so far.
    """

    def __init__(self) -> None:
        self._separator = ""
        self._instruction = ParsedInstruction.from_instruction("")
        self._taken = 0
        self._offers: list[ListedProduct] | None = None
        """Search results that are cheap enough."""
        self._asin = ""
        """The current product."""
        self._seen: dict[str, set[str]] = {}
        """Words on the pages of every product seen so far."""
        self._options: dict[str, int] = {}
        """The number of requested options that each of them has."""
        self._decided = False
        """Whether to buy the current product."""
        self._chosen: set[str] = set()

    def act(self, observation: str) -> str:
        self._taken += 1
        observation = observation.partition(pages.ACTIONS_HEADING)[0]
        self._separator = self._separator or detect_separator(observation)
        pieces = observation.split(self._separator)
        if pieces[0] == "WebShop":
            self._instruction = ParsedInstruction.from_instruction(pieces[2] if len(pieces) > 2 else "")
            return self._format_search()
        pieces = pieces[3:] if pieces[0] == "Instruction:" else pieces
        if pages.NEXT in pieces[:3]:
            return self._pick_product(pieces)
        self._seen.setdefault(self._asin, set()).update(extract_words(" ".join(pieces[1:])))
        return self._consider_product(pieces) if pieces[-1:] == [pages.BUY] else self._leave_features()

    def _format_search(self) -> str:
        return f"search[{self._instruction.query}]"

    def _pick_product(self, pieces: list[str]) -> str:
        """On a page of results: open the product to buy, or the next candidate."""
        if self._offers is None:
            listed = parse_offers(pieces)
            affordable = [product for product in listed if product.price <= self._instruction.most]
            self._offers = affordable or listed[:1]
        if not self._decided:
            left = self._list_unseen()
            if not left:
                return self._format_search()  # no results: nothing better to do
            self._asin = left[0]
        return f"click[{self._asin.lower()}]"

    def _consider_product(self, pieces: list[str]) -> str:
        """On a product's page: read its features, choose and buy, or search on for the options."""
        options = [piece.lower() for piece in pieces[1:] if self._instruction.wants_option(piece)]
        self._options[self._asin] = len(set(options))
        if not self._decided and not self._fits_instruction() and self._has_steps_left(len(options)):
            if self._has_all_options():
                return f"click[{pages.FEATURES.lower()}]"
            if not self._decide_on_product():
                return self._format_search()
        self._decided = True
        for option in options:
            if option not in self._chosen:
                self._chosen.add(option)
                return f"click[{option}]"
        return f"click[{pages.BUY.lower()}]"

    def _leave_features(self) -> str:
        """On the features page: go back to buy the product, or on to the next."""
        return f"click[{pages.PREVIOUS.lower()}]" if self._decide_on_product() else self._format_search()

    def _decide_on_product(self) -> bool:
        """Return whether to buy this product. If no other can be looked at, decide on the best one seen."""
        here = self._asin
        if self._fits_instruction():
            self._decided = True
        elif not self._list_unseen() or not self._has_steps_left(len(self._instruction.options)):
            self._asin, self._decided = self._find_best(), True
        return self._decided and self._asin == here

    def _fits_instruction(self) -> bool:
        return self._has_all_options() and self._instruction.words <= self._seen[self._asin]

    def _has_all_options(self) -> bool:
        """Return whether the product has all options that are requested by name."""
        return self._options.get(self._asin, 0) >= len(self._instruction.options)

    def _find_best(self) -> str:
        def worth(asin: str) -> int:
            return len(self._instruction.words & self._seen[asin]) + self._options.get(asin, 0)

        return max(self._seen, key=worth)

    def _list_unseen(self) -> list[str]:
        """Return the offers that were not looked at yet."""
        return [offer.asin for offer in self._offers or () if offer.asin not in self._seen]

    def _has_steps_left(self, choices: int) -> bool:
        """Return whether there are steps to spare beyond those for opening, choosing and buying."""
        return self._taken + choices + 2 <= STEPS


__all__ = ["WebshopExpert"]
