"""BM25 as Lucene 8 and 9 compute it, to the last bit of its single-precision scores.

Anserini's parameters (k1 0.9, b 0.4); the length of a text is kept in one byte, as Lucene keeps it; a term
that a query repeats counts as often as it is there; equal scores are in the order of the ids.
"""

from array import array
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from agent2rl.environments.retrieval.words import terms

K1, B = np.float32(0.9), np.float32(0.4)
_EXACT = 24
"""Lengths below it are kept as they are; from there on four significant bits are."""
_ONE = np.float32(1)
_LONGEST_QUERY = 1024
"""Distinct terms, Lucene's own limit; what is beyond is left out."""


class Hit(NamedTuple):
    id: str
    score: float


@dataclass(frozen=True)
class Index:
    """Texts by their ids. Read-only once it is made, so it may be shared."""

    ids: tuple[str, ...]
    """In order, so that the order of places is the order among equals."""
    _postings: dict[str, tuple[NDArray[np.int32], NDArray[np.float32]]]
    """Term → the places of the texts that have it, and for each one plus frequency over norm."""
    _filled: int
    """Texts that have any term at all."""

    @classmethod
    def of(cls, texts: Iterable[tuple[str, str]]) -> "Index":
        """Texts are read one at a time, and none is kept."""
        ids: list[str] = []
        lengths = array("q")
        seen: dict[str, tuple[array[int], array[int]]] = {}
        for place, (key, text) in enumerate(texts):
            count = Counter(terms(text))
            ids.append(key)
            lengths.append(count.total())
            for term, frequency in count.items():
                if term not in seen:
                    seen[term] = (array("i"), array("i"))
                places, frequencies = seen[term]
                places.append(place)
                frequencies.append(frequency)
        order = sorted(range(len(ids)), key=ids.__getitem__)
        rank = np.argsort(np.array(order, dtype=np.int32)).astype(np.int32)
        filled = sum(length > 0 for length in lengths)
        inverse = _inverse_norms(np.array(lengths, dtype=np.int64), filled)
        postings = {}
        for term, (places, frequencies) in seen.items():
            where = np.array(places, dtype=np.int32)
            often = np.array(frequencies, dtype=np.float32)
            postings[term] = (rank[where], _ONE + often * inverse[where])
        return cls(tuple(ids[place] for place in order), postings, filled)

    def search(self, query: str, most: int) -> list[Hit]:
        """The texts that share a term with the query, the best first."""
        asked = list(Counter(terms(query)).items())[:_LONGEST_QUERY]
        found = [(self._postings[term], times) for term, times in asked if term in self._postings]
        if not found or most < 1:
            return []
        scores = np.zeros(len(self.ids), dtype=np.float64)
        for (where, grown), times in found:
            weight = np.float32(times) * _rarity(self._filled, len(where))
            scores[where] += weight - weight / grown
        single = scores.astype(np.float32)
        matched = np.flatnonzero(single)
        if len(matched) > most:
            least = np.partition(single[matched], -most)[-most]
            matched = matched[single[matched] >= least]
        best = matched[np.argsort(-single[matched], kind="stable")][:most]
        return [Hit(self.ids[place], float(single[place])) for place in best]


def quantised(length: int) -> int:
    """A length as it is after it was kept in one byte."""
    if length < _EXACT:
        return length
    rest = length - _EXACT
    shift = max(rest.bit_length() - 4, 0)
    return _EXACT + (rest >> shift << shift)


def _inverse_norms(lengths: NDArray[np.int64], filled: int) -> NDArray[np.float32]:
    mean = np.float32(int(lengths.sum()) / filled) if filled else _ONE
    kept = np.array([quantised(int(length)) for length in lengths], dtype=np.float32)
    inverse: NDArray[np.float32] = _ONE / (K1 * ((_ONE - B) + B * kept / mean))
    return inverse


def _rarity(texts: int, having: int) -> np.float32:
    return np.float32(np.log(1 + (texts - having + 0.5) / (having + 0.5)))
