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

# Collecting postings in parts

PART_TERMS, PART_TEXTS = 1 << 21, 1 << 16
"""A part is complete when it has this many terms or texts."""


class _PostingsPart(NamedTuple):
    first: int
    """The number of the part's first text."""
    terms: NDArray[np.int32]
    having: NDArray[np.int32]
    """The number of texts with each term."""
    texts: NDArray[np.uint16]
    """Texts relative to `first`, grouped by term."""
    often: NDArray[np.integer]
    """Term frequency in each of `texts`."""


@dataclass
class Postings:
    """The texts that have each term, with term frequencies."""

    numbers: dict[str, int]
    """Term → its number."""
    lengths: "array[int]"
    """Length of every text, in terms."""
    starts: NDArray[np.int64]
    """Start of each term's postings when all parts are concatenated by term, and the end of the last."""
    _parts: list[_PostingsPart]

    def pop_parts(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.integer]]]:
        """Yield the positions, texts and term frequencies of each part's postings, and free the part."""
        free = self.starts[:-1].copy()
        self._parts.reverse()
        while self._parts:
            part = self._parts.pop()
            before = np.cumsum(part.having) - part.having
            positions = np.repeat(free[part.terms] - before, part.having) + np.arange(len(part.texts))
            free[part.terms] += part.having
            yield positions, part.first + part.texts.astype(np.int64), part.often


class _TermNumbers(dict[str, int]):
    def __missing__(self, term: str) -> int:
        self[term] = number = len(self)
        return number


def collect_postings(texts: Iterable[tuple[str, Sequence[str]]]) -> tuple[list[str], Postings]:
    """Return the ids of the texts, and the postings of their terms."""
    ids: list[str] = []
    numbers, lengths, parts = _TermNumbers(), array("q"), list[_PostingsPart]()
    term_numbers = array("i")
    first = 0
    for key, terms in texts:
        ids.append(key)
        lengths.append(len(terms))
        term_numbers.extend(map(numbers.__getitem__, terms))
        if len(term_numbers) >= PART_TERMS or len(ids) - first >= PART_TEXTS:
            parts.append(_build_part(first, term_numbers, lengths[first:]))
            term_numbers, first = array("i"), len(ids)
    parts.append(_build_part(first, term_numbers, lengths[first:]))
    having = np.zeros(len(numbers), dtype=np.int64)
    for part in parts:
        having[part.terms] += part.having
    starts = np.concatenate([[0], np.cumsum(having)]).astype(np.int64)
    return ids, Postings(dict(numbers), lengths, starts, parts)


def _build_part(first: int, term_numbers: "array[int]", lengths: "array[int]") -> _PostingsPart:
    """Build a part; `term_numbers` has the terms of all its texts, one after another."""
    count = max(len(lengths), 1)
    owners = np.repeat(np.arange(len(lengths)), np.array(lengths, dtype=np.int64))
    # Term and text in one number, so that a single sort groups and counts the pairs.
    pairs, often = np.unique(np.array(term_numbers, dtype=np.int64) * count + owners, return_counts=True)
    terms, having = np.unique(pairs // count, return_counts=True)
    largest = int(often.max(initial=0))
    return _PostingsPart(
        first=first,
        terms=terms.astype(np.int32),
        having=having.astype(np.int32),
        texts=(pairs % count).astype(np.uint16),
        often=often.astype(np.min_scalar_type(largest)),
    )


# BM25 as in Lucene 8 and 9, exact to the last bit of its single-precision scores

K1, B = np.float32(0.9), np.float32(0.4)
_EXACT = 24
"""Lengths below this are exact; from here on only four significant bits are kept."""
_ONE = np.float32(1)
_LONGEST_QUERY = 1024
"""Maximum number of distinct terms, as in Lucene; further terms are ignored."""


class Hit(NamedTuple):
    id: str
    score: float


@dataclass(frozen=True)
class Bm25Index:
    """A search index of texts. Immutable, so it may be shared between threads."""

    ids: tuple[str, ...]
    """Sorted, so that ties are ordered by id."""
    _numbers: dict[str, int]
    """Term → its number."""
    _starts: "array[int]"
    """Start of each term's postings, by its number; they end at the start of the next."""
    _places: NDArray[np.int32]
    """Indices in `ids` of the texts that have the term."""
    _grown: NDArray[np.float32]
    """For each of them, one plus frequency over norm."""
    _rarities: NDArray[np.float32]
    """Inverse document frequency, by the term's number."""

    @classmethod
    def from_texts(cls, texts: Iterable[tuple[str, str]]) -> "Bm25Index":
        """Index texts with their ids. Texts are read one at a time, and none is kept."""
        ids, postings = collect_postings((key, extract_terms(text)) for key, text in texts)
        order = sorted(range(len(ids)), key=ids.__getitem__)
        rank = np.empty(len(ids), dtype=np.int32)
        rank[order] = np.arange(len(ids), dtype=np.int32)
        lengths = np.array(postings.lengths, dtype=np.int64)
        filled = int(np.count_nonzero(lengths))
        places, grown = _lay_out_postings(postings, rank, _compute_inverse_norms(lengths, filled))
        return cls(
            ids=tuple(ids[place] for place in order),
            _numbers=postings.numbers,
            _starts=array("q", postings.starts),
            _places=places,
            _grown=grown,
            _rarities=_compute_idf(filled, np.diff(postings.starts)),
        )

    def search(self, query: str, most: int) -> list[Hit]:
        """Return at most `most` texts that share a term with the query, best first."""
        best, scores = self._rank_texts(query, most)
        return [Hit(self.ids[place], score) for place, score in zip(best, scores, strict=True)]

    def search_ids(self, query: str, most: int) -> list[str]:
        """Like `search`, but return only the ids."""
        return [self.ids[place] for place in self._rank_texts(query, most)[0]]

    def _rank_texts(self, query: str, most: int) -> tuple[list[int], list[float]]:
        """Return the indices and scores of the best texts."""
        query_terms = list(Counter(extract_terms(query)).items())[:_LONGEST_QUERY]
        counts = {self._numbers[term]: times for term, times in query_terms if term in self._numbers}
        if not counts or most < 1:
            return [], []
        starts = self._starts
        parts = [slice(starts[number], starts[number + 1]) for number in counts]
        term_weights = self._rarities[list(counts)] * np.array(list(counts.values()), dtype=np.float32)
        weight = np.repeat(term_weights, [part.stop - part.start for part in parts])
        # Written as Lucene does: the usual tf / (tf + norm) rounds differently in the last bit.
        contributions = weight - weight / np.concatenate([self._grown[part] for part in parts])
        texts = np.concatenate([self._places[part] for part in parts])
        scores = np.bincount(texts, weights=contributions).astype(np.float32)  # sums in double precision
        best = _select_best(scores, most)
        return best.tolist(), scores[best].tolist()


def _select_best(scores: NDArray[np.float32], most: int) -> NDArray[np.int64]:
    """Return the indices of the largest positive scores, largest first, ties in index order."""
    least = np.partition(scores, -most)[-most] if len(scores) > most else 0
    candidates = np.flatnonzero(scores >= least) if least > 0 else np.flatnonzero(scores)
    return candidates[np.argsort(-scores[candidates], kind="stable")][:most]


def quantise_length(length: int) -> int:
    """Round a length down to what Lucene can store in one byte."""
    if length < _EXACT:
        return length
    rest = length - _EXACT
    shift = max(rest.bit_length() - 4, 0)
    return _EXACT + (rest >> shift << shift)


def _compute_inverse_norms(lengths: NDArray[np.int64], filled: int) -> NDArray[np.float32]:
    mean = np.float32(int(lengths.sum()) / filled) if filled else _ONE
    quantised = np.array([quantise_length(int(length)) for length in lengths], dtype=np.float32)
    inverse: NDArray[np.float32] = _ONE / (K1 * ((_ONE - B) + B * quantised / mean))
    return inverse


def _compute_idf(texts: int, having: NDArray[np.int64]) -> NDArray[np.float32]:
    idf: NDArray[np.float32] = np.log(1 + (texts - having + 0.5) / (having + 0.5)).astype(np.float32)
    return idf


def _lay_out_postings(
    postings: Postings, rank: NDArray[np.int32], inverse: NDArray[np.float32]
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Concatenate the postings by term. Each part is freed once read, to save memory."""
    total = int(postings.starts[-1])
    places, grown = np.empty(total, dtype=np.int32), np.empty(total, dtype=np.float32)
    for positions, texts, often in postings.pop_parts():
        places[positions] = rank[texts]
        grown[positions] = _ONE + often.astype(np.float32) * inverse[texts]
    return places, grown


__all__ = ["Bm25Index", "Hit", "extract_terms"]
