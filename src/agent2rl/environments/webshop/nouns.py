"""The nouns of a product's title: by spaCy's model, as officially, where it is installed; else by a rule.

The rule takes words for nouns that have more than two letters and are no function words. Which of the two it
was is part of a score, since the type of a purchase can depend on it.
"""

import importlib.util
import re
from collections.abc import Callable
from functools import cache, lru_cache
from pathlib import Path
from typing import Literal

By = Literal["spacy", "rule"]
MODEL = "en_core_web_sm"

FUNCTION_WORDS = frozenset(Path(__file__).with_name("function_words.txt").read_text(encoding="utf-8").split())


def nouns(title: str) -> list[str]:
    """In small letters, in order, repeated as they occur."""
    return _model()(title) if by() == "spacy" else by_rule(title)


def by() -> By:
    """Which of the two says what a noun is here."""
    return "spacy" if _installed() else "rule"


@lru_cache(maxsize=1 << 14)
def _words(title: str) -> tuple[str, ...]:
    return tuple(
        word
        for word in re.findall(r"\w+", title.lower())
        if len(word) > 2 and word.isalpha() and word not in FUNCTION_WORDS
    )


def by_rule(title: str) -> list[str]:
    return list(_words(title))


@cache
def _installed() -> bool:
    return all(importlib.util.find_spec(name) is not None for name in ("spacy", MODEL))


@cache
def _model() -> Callable[[str], list[str]]:
    import spacy  # heavy, and absent from most installations

    parse = spacy.load(MODEL)

    @lru_cache(maxsize=1 << 14)
    def read(title: str) -> list[str]:
        return [token.text.lower() for token in parse(title) if token.pos_ in ("NOUN", "PROPN")]

    return read
