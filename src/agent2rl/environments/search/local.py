"""Searches a corpus that fits into memory: BM25 over words, with the beginning of a document as its snippet.

Scores are whole thousandths and ties go by the documents' order, so that every machine gives the same list.
Not covered: phrases, misspellings, fields.
"""

import json
import math
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from agent2rl.core.errors import UserError, WorldError
from agent2rl.environments.search.backend import Document, Result

SHOWN = 5
"""Results of a search."""
SNIPPET_WORDS = 24
K1, B = 0.9, 0.4
_STOP = (
    "a an and are as at be been by did do does each every for from had has have how in into is it its "
    "list many name of on or that the their them there they this to was were what when where which "
    "who whom whose will with "
)
STOP_WORDS = frozenset(_STOP.split())
CORPUS = "documents.jsonl"
_WORD = re.compile(r"[a-z0-9]+")


def words(text: str) -> list[str]:
    """What is counted: words without case, accents and plural, and no stop words."""
    if not text.isascii():
        text = unicodedata.normalize("NFKD", text)
        text = "".join(letter for letter in text if not unicodedata.combining(letter))
    return [word for word in map(_stem, _WORD.findall(text.lower().replace("'s", ""))) if word]


@lru_cache(maxsize=1 << 16)
def _stem(word: str) -> str:
    if word in STOP_WORDS:
        return ""
    return word[:-1] if len(word) > 3 and word.endswith("s") else word


class Local:
    def __init__(self, documents: Sequence[Document], shown: int = SHOWN) -> None:
        self.documents = tuple(documents)
        self._shown = shown
        self._results = [_result(document) for document in self.documents]
        self._order = np.arange(len(self.documents))[::-1]
        self._texts = {document.id: document.text for document in self.documents}
        self._index = _index([words(f"{document.title} {document.text}") for document in self.documents])

    def search(self, query: str) -> tuple[Result, ...]:
        scores = np.zeros(len(self.documents), dtype=np.int64)
        for word in dict.fromkeys(words(query)):
            if word in self._index:
                places, worth = self._index[word]
                scores[places] += worth
        ranks = scores * len(self.documents) + self._order  # no two alike, and the first wins a tie
        most = min(self._shown, len(ranks))
        best = np.argpartition(ranks, len(ranks) - most)[len(ranks) - most :] if most else ranks
        return tuple(self._results[place] for place in best[np.argsort(-ranks[best])] if scores[place] > 0)

    def open(self, id: str) -> str:  # noqa: A002
        if id not in self._texts:
            raise WorldError(f"There is no document {id!r}.")
        return self._texts[id]


def _index(documents: Sequence[Sequence[str]]) -> dict[str, tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Each word's documents, and what it is worth in each of them."""
    mean = sum(map(len, documents)) / max(len(documents), 1)
    found: dict[str, tuple[list[int], list[float]]] = defaultdict(lambda: ([], []))
    for place, document in enumerate(documents):
        length = K1 * (1 - B + B * len(document) / mean) if mean else 0
        for word, times in Counter(document).items():
            places, shares = found[word]
            places.append(place)
            shares.append(times / (times + length))
    index = {}
    for word, (places, shares) in found.items():
        rarity = 1000 * math.log(1 + (len(documents) - len(places) + 0.5) / (len(places) + 0.5))
        index[word] = (np.array(places), np.rint(rarity * np.array(shares)).astype(np.int64))
    return index


def _result(document: Document) -> Result:
    told = document.text.split()
    more = " …" if len(told) > SNIPPET_WORDS else ""
    return Result(document.id, document.title, " ".join(told[:SNIPPET_WORDS]) + more)


def write_corpus(folder: Path, documents: Sequence[Document]) -> None:
    rows = ({"id": one.id, "title": one.title, "text": one.text} for one in documents)
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    (folder / CORPUS).write_text(text, encoding="utf-8")


@lru_cache(maxsize=8)
def read_corpus(folder: Path) -> Local:
    """The corpus of a folder; it is read once."""
    path = folder / CORPUS
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
        return Local([Document(**json.loads(line)) for line in lines if line])
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"{path} cannot be read: {type(error).__name__}: {error}.") from error
