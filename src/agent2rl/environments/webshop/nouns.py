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

NounTagger = Literal["spacy", "rule"]
SPACY_MODEL = "en_core_web_sm"

FUNCTION_WORDS = frozenset(Path(__file__).with_name("function_words.txt").read_text(encoding="utf-8").split())


def extract_nouns(title: str) -> list[str]:
    """In small letters, in order, repeated as they occur."""
    return _load_spacy_tagger()(title) if get_noun_tagger() == "spacy" else extract_nouns_by_rule(title)


def get_noun_tagger() -> NounTagger:
    """Which of the two says what a noun is here."""
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
