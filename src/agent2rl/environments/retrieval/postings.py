"""Which texts have which terms, counted part by part so that a million texts fit into memory.

Terms are numbered as they are met. A part is some thousand texts, its postings sorted by term and then by
text; the parts' postings of one term follow one another in the end.
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

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
