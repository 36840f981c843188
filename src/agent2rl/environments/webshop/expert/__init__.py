"""An expert that shops from the pages alone: searches, reads what is cheap enough, and buys the best match.

It sees neither the goal nor the products' files. A product fits if every requested word is on its pages, so
the expert is wrong where another product has them all, or where the wanted one says it in other words.

This must stay a folder: a run with --no-expert hides it from the agent, compiled files included.
"""

import re
from dataclasses import dataclass
from typing import NamedTuple

from agent2rl.environments.webshop import pages
from agent2rl.environments.webshop.reward import FUNCTION_WORDS

# What the expert reads out of a page and out of an instruction.

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


# Shops as a careful person would: search for what is asked, look at what is cheap enough, read its
# features, choose and buy; and take the best of what was seen when the steps run out.

STEPS = 12
"""It buys within so many, the fewest that an episode has."""


class WebshopExpert:
    def __init__(self) -> None:
        self._between = ""
        self._wish = ParsedInstruction.from_instruction("")
        self._taken = 0
        self._offers: list[ListedProduct] | None = None
        """What the search found and is cheap enough."""
        self._asin = ""
        """The product that is looked at."""
        self._seen: dict[str, set[str]] = {}
        """Words of the pages of every product that was looked at."""
        self._options: dict[str, int] = {}
        """How many of the options that are asked for each of them has."""
        self._decided = False
        """Whether the one that is looked at, or gone to, is to be bought."""
        self._chosen: set[str] = set()

    def act(self, observation: str) -> str:
        self._taken += 1
        self._between = self._between or detect_separator(observation)
        pieces = observation.split(self._between)
        if pieces[0] == "WebShop":
            self._wish = ParsedInstruction.from_instruction(pieces[2] if len(pieces) > 2 else "")
            return self._format_search()
        pieces = pieces[3:] if pieces[0] == "Instruction:" else pieces
        if pages.NEXT in pieces[:3]:
            return self._pick_product(pieces)
        self._seen.setdefault(self._asin, set()).update(extract_words(" ".join(pieces[1:])))
        return self._consider_product(pieces) if pieces[-1:] == [pages.BUY] else self._leave_features()

    def _format_search(self) -> str:
        return f"search[{self._wish.query}]"

    def _pick_product(self, pieces: list[str]) -> str:
        """From the results: what is decided on, or the next that could be it."""
        if self._offers is None:
            listed = parse_offers(pieces)
            self._offers = [one for one in listed if one.price <= self._wish.most] or listed[:1]
        if not self._decided:
            left = self._list_unseen()
            if not left:
                return self._format_search()  # nothing was found: there is nothing to be done
            self._asin = left[0]
        return f"click[{self._asin.lower()}]"

    def _consider_product(self, pieces: list[str]) -> str:
        """On a product's page: read its features, choose and buy, or on to one that has the options."""
        options = [piece.lower() for piece in pieces[1:] if self._wish.wants_option(piece)]
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
        """On the page of features: back to buy the product, or on to the next."""
        return f"click[{pages.PREVIOUS.lower()}]" if self._decide_on_product() else self._format_search()

    def _decide_on_product(self) -> bool:
        """Whether this product is the one. It is the best that was seen, if no other can be looked at."""
        here = self._asin
        if self._fits_instruction():
            self._decided = True
        elif not self._list_unseen() or not self._has_steps_left(len(self._wish.options)):
            self._asin, self._decided = self._find_best(), True
        return self._decided and self._asin == here

    def _fits_instruction(self) -> bool:
        return self._has_all_options() and self._wish.words <= self._seen[self._asin]

    def _has_all_options(self) -> bool:
        """Whether it has all options that are asked for by name."""
        return self._options.get(self._asin, 0) >= len(self._wish.options)

    def _find_best(self) -> str:
        def worth(asin: str) -> int:
            return len(self._wish.words & self._seen[asin]) + self._options.get(asin, 0)

        return max(self._seen, key=worth)

    def _list_unseen(self) -> list[str]:
        """What has not been looked at."""
        return [offer.asin for offer in self._offers or () if offer.asin not in self._seen]

    def _has_steps_left(self, choices: int) -> bool:
        """Whether a step can be spared before a product is gone to, chosen for and bought."""
        return self._taken + choices + 2 <= STEPS


__all__ = ["WebshopExpert"]
