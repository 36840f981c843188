"""BM25 search over a closed collection of texts, ranked exactly as Anserini's Lucene index ranks them.

    index = Bm25Index.from_texts([("B01", "red cotton shirt"), ("B02", "blue wool hat")])
    index.search("shirts", 10)       # [Hit(id='B01', score=…)]

Anserini's parameters (k1 0.9, b 0.4). The length of a text is kept in one byte, as in Lucene. Postings are
collected in parts, so that a million texts fit into memory. Not covered: phrases, fields, languages other
than English.
"""

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from agent2rl.environments.retrieval.tokenizer import extract_terms

# Which texts have which terms, counted part by part so that a million texts fit into memory.

PART_TERMS, PART_TEXTS = 1 << 21, 1 << 16
"""A part is complete with so many terms or texts."""


class _PostingsPart(NamedTuple):
    first: int
    """The number of its first text."""
    terms: NDArray[np.int32]
    having: NDArray[np.int32]
    """How many of its texts have each of the terms."""
    texts: NDArray[np.uint16]
    """Counted from the first, by term."""
    often: NDArray[np.integer]


@dataclass
class Postings:
    numbers: dict[str, int]
    """Term → its number."""
    lengths: "array[int]"
    """Of every text, in terms."""
    starts: NDArray[np.int64]
    """Where each term's postings begin when all parts are put together, and where the last one's end."""
    _parts: list[_PostingsPart]

    def pop_parts(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.integer]]]:
        """Of each part in turn: where its postings belong, their texts, and how often these have the term."""
        free = self.starts[:-1].copy()
        self._parts.reverse()
        while self._parts:
            part = self._parts.pop()
            before = np.cumsum(part.having) - part.having
            where = np.repeat(free[part.terms] - before, part.having) + np.arange(len(part.texts))
            free[part.terms] += part.having
            yield where, part.first + part.texts.astype(np.int64), part.often


class _TermNumbers(dict[str, int]):
    def __missing__(self, term: str) -> int:
        self[term] = number = len(self)
        return number


def collect_postings(texts: Iterable[tuple[str, Sequence[str]]]) -> tuple[list[str], Postings]:
    """The ids of texts, and the postings of their terms."""
    ids: list[str] = []
    numbers, lengths, parts = _TermNumbers(), array("q"), list[_PostingsPart]()
    met = array("i")
    first = 0
    for key, terms in texts:
        ids.append(key)
        lengths.append(len(terms))
        met.extend(map(numbers.__getitem__, terms))
        if len(met) >= PART_TERMS or len(ids) - first >= PART_TEXTS:
            parts.append(_build_part(first, met, lengths[first:]))
            met, first = array("i"), len(ids)
    parts.append(_build_part(first, met, lengths[first:]))
    having = np.zeros(len(numbers), dtype=np.int64)
    for part in parts:
        having[part.terms] += part.having
    starts = np.concatenate([[0], np.cumsum(having)]).astype(np.int64)
    return ids, Postings(dict(numbers), lengths, starts, parts)


def _build_part(first: int, met: "array[int]", lengths: "array[int]") -> _PostingsPart:
    """`met` has the numbers of all terms of all its texts, one after another."""
    count = max(len(lengths), 1)
    owners = np.repeat(np.arange(len(lengths)), np.array(lengths, dtype=np.int64))
    pairs, often = np.unique(np.array(met, dtype=np.int64) * count + owners, return_counts=True)
    terms, having = np.unique(pairs // count, return_counts=True)
    largest = int(often.max(initial=0))
    return _PostingsPart(
        first=first,
        terms=terms.astype(np.int32),
        having=having.astype(np.int32),
        texts=(pairs % count).astype(np.uint16),
        often=often.astype(np.min_scalar_type(largest)),
    )


# BM25 as Lucene 8 and 9 compute it, to the last bit of its single-precision scores.

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
class Bm25Index:
    """Texts by their ids. Read-only once it is made, so it may be shared."""

    ids: tuple[str, ...]
    """In order, so that the order of places is the order among equals."""
    _numbers: dict[str, int]
    """Term → its number."""
    _starts: "array[int]"
    """Where a term's postings begin, by its number; they end where the next one's begin."""
    _places: NDArray[np.int32]
    """Of the texts that have the term."""
    _grown: NDArray[np.float32]
    """For each of them one plus frequency over norm."""
    _rarities: NDArray[np.float32]
    """By the term's number."""

    @classmethod
    def from_texts(cls, texts: Iterable[tuple[str, str]]) -> "Bm25Index":
        """Texts are read one at a time, and none is kept."""
        ids, found = collect_postings((key, extract_terms(text)) for key, text in texts)
        order = sorted(range(len(ids)), key=ids.__getitem__)
        rank = np.empty(len(ids), dtype=np.int32)
        rank[order] = np.arange(len(ids), dtype=np.int32)
        lengths = np.array(found.lengths, dtype=np.int64)
        filled = int(np.count_nonzero(lengths))
        places, grown = _lay_out_postings(found, rank, _compute_inverse_norms(lengths, filled))
        return cls(
            ids=tuple(ids[place] for place in order),
            _numbers=found.numbers,
            _starts=array("q", found.starts),
            _places=places,
            _grown=grown,
            _rarities=_compute_idf(filled, np.diff(found.starts)),
        )

    def search(self, query: str, most: int) -> list[Hit]:
        """The texts that share a term with the query, the best first."""
        best, scores = self._rank_texts(query, most)
        return [Hit(self.ids[place], score) for place, score in zip(best, scores, strict=True)]

    def search_ids(self, query: str, most: int) -> list[str]:
        """The ids alone."""
        return [self.ids[place] for place in self._rank_texts(query, most)[0]]

    def _rank_texts(self, query: str, most: int) -> tuple[list[int], list[float]]:
        """The places of the best, and their scores."""
        asked = list(Counter(extract_terms(query)).items())[:_LONGEST_QUERY]
        known = {self._numbers[term]: times for term, times in asked if term in self._numbers}
        if not known or most < 1:
            return [], []
        starts = self._starts
        parts = [slice(starts[number], starts[number + 1]) for number in known]
        each = self._rarities[list(known)] * np.array(list(known.values()), dtype=np.float32)
        weight = np.repeat(each, [part.stop - part.start for part in parts])
        worth = weight - weight / np.concatenate([self._grown[part] for part in parts])
        where = np.concatenate([self._places[part] for part in parts])
        scores = np.bincount(where, weights=worth).astype(np.float32)  # added up in double precision
        best = _select_best(scores, most)
        return best.tolist(), scores[best].tolist()


def _select_best(scores: NDArray[np.float32], most: int) -> NDArray[np.int64]:
    """The places of the largest scores above 0, the largest first, equals in their order."""
    least = np.partition(scores, -most)[-most] if len(scores) > most else 0
    there = np.flatnonzero(scores >= least) if least > 0 else np.flatnonzero(scores)
    return there[np.argsort(-scores[there], kind="stable")][:most]


def quantise_length(length: int) -> int:
    """A length as it is after it was kept in one byte."""
    if length < _EXACT:
        return length
    rest = length - _EXACT
    shift = max(rest.bit_length() - 4, 0)
    return _EXACT + (rest >> shift << shift)


def _compute_inverse_norms(lengths: NDArray[np.int64], filled: int) -> NDArray[np.float32]:
    mean = np.float32(int(lengths.sum()) / filled) if filled else _ONE
    kept = np.array([quantise_length(int(length)) for length in lengths], dtype=np.float32)
    inverse: NDArray[np.float32] = _ONE / (K1 * ((_ONE - B) + B * kept / mean))
    return inverse


def _compute_idf(texts: int, having: NDArray[np.int64]) -> NDArray[np.float32]:
    found: NDArray[np.float32] = np.log(1 + (texts - having + 0.5) / (having + 0.5)).astype(np.float32)
    return found


def _lay_out_postings(
    found: Postings, rank: NDArray[np.int32], inverse: NDArray[np.float32]
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Term after term. The parts are given up as they are read, so that nothing is held twice."""
    total = int(found.starts[-1])
    places, grown = np.empty(total, dtype=np.int32), np.empty(total, dtype=np.float32)
    for where, texts, often in found.pop_parts():
        places[where] = rank[texts]
        grown[where] = _ONE + often.astype(np.float32) * inverse[texts]
    return places, grown


__all__ = ["Bm25Index", "Hit", "extract_terms"]
