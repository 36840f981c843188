"""Search texts for evaluation examples by shared word n-grams, with a measured threshold.

A word is a run of letters and digits, in lower case and normalised (NFKC), so that case, punctuation, white
space and the escapes of JSON and Python strings do not matter. Every part of an example (prompt, target, each
string of its meta) is searched for by its word n-grams. An n-gram is no evidence if it is in the material
that the agent was given, or in more than a few examples: that is the task's own phrasing.

A passage is a stretch of text with matches close together. It contains a part if it has at least a given
share of the part's n-grams, or a long run of them, and enough distinct matched words: chains like
"74 2 74 2 37 37 37" agree by chance.

Not detected: paraphrase, translation, encryption, text with other text between its words, languages that do
not separate words. N-grams are compared by 64-bit hashes; one pair in 2**64 collides.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice, repeat
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue

Numbers = NDArray[np.int64]
Keys = NDArray[np.uint64]

OVERLAP_CHARACTERS = 20_000
"""Overlap between pieces of a long text. A longer passage may be split in two."""
PLANES = 0x30000
"""All letters have smaller code points than this."""
SIEVE_BITS = 20
BATCH_TEXTS = 1000
SHOWN_WORDS = 80
STEP = np.uint64(0x9E3779B97F4A7C15)
SEPARATORS = {code: " " for code in range(128) if not chr(code).isalnum()}
UNICODE_ESCAPE = re.compile(r"\\u([0-9a-fA-F]{4})")


@dataclass(frozen=True)
class ContaminationRule:
    """Thresholds. docs/design/contamination.md has their measured error rates."""

    n: int = 8
    """Words in an n-gram."""
    share: float = 0.3
    """Least share of a part's n-grams in one passage."""
    run_words: int = 30
    """Alternatively, this many matched words in a row, for long parts."""
    different_words: int = 10
    """Least number of distinct matched words. A part with fewer must match in full."""
    least_words: int = 8
    """A part with fewer distinct words cannot be checked."""
    most_examples: int = 3
    """An n-gram in more examples than this is ignored."""
    gap_words: int = 30
    """Matches further apart than this are two passages."""


RULE = ContaminationRule()


class ExamplePart(NamedTuple):
    """One text of an example."""

    split: str
    example: str
    name: str
    text: str


class PassageMatch(NamedTuple):
    """A passage that contains a part."""

    part: ExamplePart
    words: int
    share: float
    run_words: int
    text: str
    """The first words of the passage."""


def split_example(
    split: str, example: str, prompt: str, target: str, meta: Mapping[str, JsonValue]
) -> Iterator[ExamplePart]:
    """Yield each text of an example, so that an answer is found without its question."""
    yield ExamplePart(split, example, "prompt", prompt)
    yield ExamplePart(split, example, "target", target)
    for name, value in meta.items():
        if isinstance(value, str):
            yield ExamplePart(split, example, name, value)


def split_words(text: str) -> list[str]:
    for escape in ("\\n", "\\r", "\\t"):
        text = text.replace(escape, "  ")
    if "\\u" in text:
        text = UNICODE_ESCAPE.sub(lambda match: chr(int(match[1], 16)), text)
    if text.isascii():
        return text.lower().translate(SEPARATORS).split()
    text = unicodedata.normalize("NFKC", text).lower()
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32).copy()
    codes[~_alphanumeric_table()[np.minimum(codes, PLANES - 1)]] = ord(" ")
    return codes.tobytes().decode("utf-32-le").split()


@cache
def _alphanumeric_table() -> NDArray[np.bool_]:
    """Return which code points are alphanumeric. `str.translate` would look up one character at a time."""
    return np.fromiter((chr(code).isalnum() for code in range(PLANES)), np.bool_, PLANES)


class NgramIndex:
    """Index of the n-grams of example parts."""

    def __init__(
        self, sought: Iterable[ExamplePart], given: Iterable[str] = (), rule: ContaminationRule = RULE
    ) -> None:
        self.rule = rule
        self.parts = list(sought)
        spelled = [split_words(part.text) for part in self.parts]
        self._vocabulary: dict[str, int] = {}
        for each in spelled:
            for word in each:
                self._vocabulary.setdefault(word, len(self._vocabulary) + 1)
        self._values = np.random.default_rng(0).integers(
            0, 2**64, size=len(self._vocabulary) + 1, dtype=np.uint64
        )
        numbers = self._encode_words(spelled)
        places, keys = self._hash_ngrams(numbers)
        ends = np.cumsum([len(each) + 1 for each in spelled])
        owners = np.searchsorted(ends, places, side="right")
        fit = ~np.isin(keys, self._find_given(given, keys)) & ~np.isin(keys, self._find_common(keys, owners))
        self._different = self._count_distinct_words(numbers, places[fit], owners[fit])
        fit &= (self._different >= rule.least_words)[owners]
        self._build_index(keys[fit], owners[fit])

    @property
    def examples(self) -> int:
        return len({(part.split, part.example) for part in self.parts})

    @property
    def unchecked(self) -> int:
        """Number of examples that are too short, or too similar to given material, to be checked."""
        seen = {part[:2] for part, total in zip(self.parts, self._totals, strict=True) if total}
        return self.examples - len(seen)

    def search_text(self, text: str) -> list[PassageMatch]:
        """Return the parts that a text contains, each with its best passage."""
        spelled = split_words(text)
        numbers = self._encode_words([spelled])
        places, keys = self._hash_ngrams(numbers)
        # Nearly all n-grams of a text are in no example. A bit for the first 20 bits of a hash
        # sorts them out before the search, which is slower.
        maybe_known = self._sieve[keys >> np.uint64(64 - SIEVE_BITS)]
        places, keys = places[maybe_known], keys[maybe_known]
        if not len(keys):
            return []
        key_indices = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        is_known = self._keys[key_indices] == keys
        places, key_indices = places[is_known], key_indices[is_known]
        best: dict[int, PassageMatch] = {}
        for owner, where, found in self._group_passages(places, key_indices):
            match = self._judge_passage(owner, where, found, numbers, spelled)
            if match and (owner not in best or match.share > best[owner].share):
                best[owner] = match
        return list(best.values())

    def _encode_words(self, spelled: Iterable[Sequence[str]]) -> Numbers:
        """Encode texts as word numbers, with 0 for unknown words and after each text."""
        found = []
        for each in spelled:
            found.append(np.fromiter(map(self._vocabulary.get, each, repeat(0)), np.int64, len(each)))
            found.append(np.zeros(1, np.int64))
        return np.concatenate(found) if found else np.zeros(0, np.int64)

    def _hash_ngrams(self, numbers: Numbers) -> tuple[Numbers, Keys]:
        """Return where n-grams of known words begin, and their hashes."""
        n, count = self.rule.n, len(numbers) - self.rule.n + 1
        if count <= 0:
            return np.zeros(0, np.int64), np.zeros(0, np.uint64)
        known_before = np.concatenate(([0], np.cumsum(numbers > 0)))
        places = np.flatnonzero(known_before[n:] - known_before[:-n] == n)
        values = self._values[numbers]
        keys = np.zeros(count, np.uint64)
        # A polynomial hash, of all places at once.
        for offset in range(n):
            keys *= STEP
            keys += values[offset : offset + count]
        return places, keys[places]

    def _find_given(self, given: Iterable[str], sought: Keys) -> Keys:
        """Return the n-grams that are in given texts, read in batches."""
        found, texts = np.zeros(0, np.uint64), iter(given)
        while batch := list(islice(texts, BATCH_TEXTS)):
            _, keys = self._hash_ngrams(self._encode_words(map(split_words, batch)))
            found = np.union1d(found, keys[np.isin(keys, sought)])
        return found

    def _find_common(self, keys: Keys, owners: Numbers) -> Keys:
        """Return n-grams that too many examples share."""
        names = {key: number for number, key in enumerate(dict.fromkeys(part[:2] for part in self.parts))}
        examples = np.array([names[part[:2]] for part in self.parts], np.int64)
        order = np.lexsort((examples[owners], keys))
        keys, of = keys[order], examples[owners][order]
        first = np.ones(len(keys), np.bool_)
        first[1:] = (keys[1:] != keys[:-1]) | (of[1:] != of[:-1])
        each, many = np.unique(keys[first], return_counts=True)
        return each[many > self.rule.most_examples]

    def _count_distinct_words(self, numbers: Numbers, places: Numbers, owners: Numbers) -> Numbers:
        """Return the number of distinct words in each part's n-grams."""
        found = np.zeros(len(self.parts), np.int64)
        edges = np.flatnonzero(np.diff(owners)) + 1
        for group in np.split(places, edges) if len(places) else ():
            owner = owners[np.searchsorted(places, group[0])]
            found[owner] = len(np.unique(numbers[_list_covered_words(group, self.rule.n)]))
        return found

    def _build_index(self, keys: Keys, owners: Numbers) -> None:
        """Sort the keys, each with the parts that have it."""
        order = np.lexsort((owners, keys))
        keys, owners = keys[order], owners[order]
        first = np.ones(len(keys), np.bool_)
        first[1:] = (keys[1:] != keys[:-1]) | (owners[1:] != owners[:-1])
        keys, self._owners = keys[first], owners[first]
        self._totals = np.bincount(self._owners, minlength=len(self.parts))
        self._keys, starts = np.unique(keys, return_index=True)
        self._starts = np.append(starts, len(keys))
        self._sieve = np.zeros(1 << SIEVE_BITS, np.bool_)
        self._sieve[self._keys >> np.uint64(64 - SIEVE_BITS)] = True

    def _group_passages(
        self, places: Numbers, key_indices: Numbers
    ) -> Iterator[tuple[int, Numbers, Numbers]]:
        """Group matches by part and passage; yield those with enough matches."""
        match_counts = self._starts[key_indices + 1] - self._starts[key_indices]
        offsets = np.repeat(np.cumsum(match_counts) - match_counts, match_counts)
        owners = self._owners[
            np.repeat(self._starts[key_indices], match_counts) + np.arange(match_counts.sum()) - offsets
        ]
        places, key_indices = np.repeat(places, match_counts), np.repeat(key_indices, match_counts)
        order = np.lexsort((places, owners))
        places, key_indices, owners = places[order], key_indices[order], owners[order]
        is_boundary = (np.diff(owners) != 0) | (np.diff(places) > self.rule.gap_words)
        edges = np.concatenate(([0], np.flatnonzero(is_boundary) + 1, [len(places)]))
        run = self.rule.run_words - self.rule.n + 1
        needed = np.minimum(self.rule.share * self._totals[owners[edges[:-1]]], run) if len(places) else []
        for number in np.flatnonzero(np.diff(edges) >= needed):
            span = slice(edges[number], edges[number + 1])
            yield int(owners[span.start]), places[span], key_indices[span]

    def _judge_passage(
        self, owner: int, places: Numbers, found: Numbers, numbers: Numbers, spelled: list[str]
    ) -> PassageMatch | None:
        rule = self.rule
        share = len(np.unique(found)) / int(self._totals[owner])
        run_words = _longest_run(places) + rule.n - 1
        if share < rule.share and run_words < rule.run_words:
            return None
        covered = _list_covered_words(places, rule.n)
        needed = min(rule.different_words, int(self._different[owner]))
        if len(np.unique(numbers[covered])) < needed:
            return None
        begin, end = int(covered[0]), int(covered[-1]) + 1
        text = " ".join(spelled[begin : min(end, begin + SHOWN_WORDS)])
        return PassageMatch(self.parts[owner], len(covered), share, run_words, text)


def search_chunks(index: NgramIndex, chunks: Iterable[str]) -> list[PassageMatch]:
    """Return the parts that a long text contains, best first. Use chunks of about a megabyte."""
    best: dict[ExamplePart, PassageMatch] = {}
    for piece in overlap_chunks(chunks):
        for match in index.search_text(piece):
            if match.part not in best or match.share > best[match.part].share:
                best[match.part] = match
    return sorted(best.values(), key=lambda match: (-match.words, match.part))


def overlap_chunks(chunks: Iterable[str]) -> Iterator[str]:
    """Yield pieces that overlap, so that a passage across two chunks is complete in the second."""
    tail = ""
    for chunk in chunks:
        yield (piece := tail + chunk)
        tail = piece[-OVERLAP_CHARACTERS:]


def _list_covered_words(places: Numbers, n: int) -> Numbers:
    """Return the positions of all words of the n-grams that begin at `places`, which are sorted."""
    return np.unique(places[:, None] + np.arange(n))


def _longest_run(places: Numbers) -> int:
    """Return the length of the longest run of consecutive positions, which are sorted."""
    edges = np.concatenate(([0], np.flatnonzero(np.diff(places) != 1) + 1, [len(places)]))
    return int(np.diff(edges).max())
