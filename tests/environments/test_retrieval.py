"""Search: words, stems, lengths and scores that were worked out by hand."""

import math
import random
import re

import pytest
import snowballstemmer
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from agent2rl.environments import retrieval
from agent2rl.environments.retrieval import Bm25Index, extract_terms, quantise_length
from agent2rl.environments.retrieval.tokenizer import stem

STEMS = {
    # from Porter's paper, each after all of its steps
    "caresses": "caress",
    "ponies": "poni",
    "ties": "ti",
    "cats": "cat",
    "feed": "feed",
    "agreed": "agre",
    "plastered": "plaster",
    "bled": "bled",
    "motoring": "motor",
    "sing": "sing",
    "conflated": "conflat",
    "troubled": "troubl",
    "sized": "size",
    "hopping": "hop",
    "tanned": "tan",
    "falling": "fall",
    "hissing": "hiss",
    "failing": "fail",
    "filing": "file",
    "happy": "happi",
    "sky": "sky",
    "relational": "relat",
    "conditional": "condit",
    "rational": "ration",
    "digitizer": "digit",
    "vietnamization": "vietnam",
    "operator": "oper",
    "hopefulness": "hope",
    "sensibility": "sensibl",
    "triplicate": "triplic",
    "electrical": "electr",
    "goodness": "good",
    "revival": "reviv",
    "replacement": "replac",
    "adoption": "adopt",
    "homologous": "homolog",
    "probate": "probat",
    "rate": "rate",
    "cease": "ceas",
    "controlling": "control",
    "roll": "roll",
    # the two amendments, and words on which careless stemmers stumble
    "possibly": "possibl",
    "apology": "apolog",
    "aed": "a",
    "ion": "ion",
    "is": "is",
    "grokking": "grok",
    "café": "café",
}


@pytest.mark.parametrize(("word", "root"), STEMS.items())
def test_stems_are_porters(word: str, root: str) -> None:
    assert stem(word) == root


SUFFIXES = re.findall(
    r"\w+",
    "ational tional enci anci izer alli entli eli ousli ization ation ator alism iveness fulness ousness "
    "aliti iviti biliti icate ative alize iciti ical ful ness al ance ence er ic able ible ant ement ment "
    "ent sion tion ou ism ate iti ous ive ize s ed ing eed y e es ies sses ll",
)
DEPARTURES = re.compile(r"bl[iy]|log[iy]|([^aeioubdfgmnprtlsz])\1(ed|ing)")
"""Lucene follows Porter's own program, and Snowball his paper: -bli, -logi and rarer double consonants."""


@settings(max_examples=500)
@given(
    st.text("abcdefghijklmnopqrstuvwxyzé3'", min_size=1, max_size=6),
    st.lists(st.sampled_from(SUFFIXES), max_size=3),
)
def test_stems_are_those_of_snowballs_porter_except_for_lucenes_departures(
    root: str, suffixes: list[str]
) -> None:
    word = root + "".join(suffixes)
    assume(len(word) > 2 and not DEPARTURES.search(word))
    assert stem(word) == snowballstemmer.stemmer("porter").stemWord(word)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("The Women's shoes", ["women", "shoe"]),
        ("o'neil’s 3.5mm u.s.a. 1,000.50", ["o'neil", "3.5mm", "u.s.a", "1,000.50"]),
        ("a:b _x_ foo_bar __ - 5'10", ["a:b", "_x_", "foo_bar", "5'10"]),
        ("b.3 3.b 1;2", ["b", "3", "3", "b", "1;2"]),
        ("size ½ x² naïve ™", ["size", "x", "naïv", "™"]),
        ("❤️ ★ ☆ 👍🏽", ["❤️", "★", "👍🏽"]),
        ("日本 カタカナ soft\u00adware", ["日", "本", "カタカナ", "soft\u00adwar"]),
        ("x" * 300, ["x" * 255, "x" * 45]),
        ("to be or not to be", []),
    ],
)
def test_words_are_broken_as_lucene_breaks_them(text: str, found: list[str]) -> None:
    assert extract_terms(text) == found


def test_a_length_keeps_four_significant_bits_above_twenty_four() -> None:
    kept = {0: 0, 23: 23, 24: 24, 39: 39, 40: 40, 41: 40, 42: 42, 57: 56, 100: 96, 250: 248, 1000: 984}
    assert {length: quantise_length(length) for length in kept} == kept


def test_a_score_is_bm25_with_anserinis_parameters() -> None:
    hits = Bm25Index.from_texts([("a", "red hat"), ("b", "red red shoe lace"), ("c", "blue shoe")]).search(
        "red", 10
    )
    mean = 8 / 3
    rarity = math.log(1 + (3 - 2 + 0.5) / (2 + 0.5))

    def worth(often: int, length: int) -> float:
        return rarity * often / (often + 0.9 * (1 - 0.4 + 0.4 * length / mean))

    assert [hit.id for hit in hits] == ["b", "a"]
    assert [hit.score for hit in hits] == pytest.approx([worth(2, 4), worth(1, 2)], rel=1e-6)


def test_the_ranking_is_that_of_the_formula_written_out_plainly() -> None:
    """Texts of every length, words of every frequency, queries that repeat words: score by score."""
    chance = random.Random(0)
    words = [f"w{number}" for number in range(60)]
    weights = [1 / (1 + number) for number in range(60)]
    texts = {
        f"{number:03}": " ".join(chance.choices(words, weights, k=chance.randrange(90)))
        for number in range(300)
    }
    index = Bm25Index.from_texts(texts.items())
    for _ in range(40):
        query = " ".join(chance.choices(words, k=chance.randrange(1, 12)))
        hits = index.search(query, 20)
        plain = _plainly(texts, query.split())
        best = sorted(plain.values(), reverse=True)[:20]
        assert [hit.score for hit in hits] == pytest.approx(best, rel=1e-5)
        assert [plain[hit.id] for hit in hits] == pytest.approx(best, rel=1e-5)
        assert index.search_ids(query, 20) == [hit.id for hit in hits]


def _plainly(texts: dict[str, str], query: list[str]) -> dict[str, float]:
    """What each text that has a word of the query is worth."""
    split = {name: text.split() for name, text in texts.items()}
    filled = [words for words in split.values() if words]
    mean = sum(map(len, filled)) / len(filled)
    having = {word: sum(word in words for words in filled) for word in query}

    def worth(words: list[str]) -> float:
        norm = 0.9 * (1 - 0.4 + 0.4 * quantise_length(len(words)) / mean)
        total = 0.0
        for word in query:
            often, texts = words.count(word), having[word]
            total += math.log(1 + (len(filled) - texts + 0.5) / (texts + 0.5)) * often / (often + norm)
        return total

    return {name: worth(words) for name, words in split.items() if set(words) & set(query)}


def test_parts_are_put_together_as_if_there_were_one(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [(f"{number:02}", f"red hat {number % 7} " * (number % 3)) for number in range(50)]
    whole = Bm25Index.from_texts(texts).search("red hat 3", 50)
    monkeypatch.setattr(retrieval, "PART_TERMS", 5)
    assert Bm25Index.from_texts(texts).search("red hat 3", 50) == whole
    monkeypatch.setattr(retrieval, "PART_TEXTS", 1)
    assert Bm25Index.from_texts(texts).search("red hat 3", 50) == whole


def test_a_word_that_is_asked_for_twice_counts_twice() -> None:
    index = Bm25Index.from_texts([("a", "red hat"), ("b", "blue shoe")])
    (once,), (twice,) = index.search("red", 1), index.search("red reds", 1)
    assert twice.score == pytest.approx(2 * once.score, rel=1e-6)


def test_equals_are_in_the_order_of_their_ids_even_where_the_list_is_cut() -> None:
    index = Bm25Index.from_texts([(f"{number:02}", "red hat") for number in reversed(range(30))])
    assert [hit.id for hit in index.search("hats", 7)] == [f"{number:02}" for number in range(7)]


def test_what_nothing_has_is_not_found() -> None:
    index = Bm25Index.from_texts([("a", "red hat"), ("b", "")])
    assert index.search("the", 10) == []
    assert index.search("shoe", 10) == []
    assert index.search("red", 0) == []
    assert Bm25Index.from_texts([]).search("red", 10) == []


@given(st.text(max_size=60), st.lists(st.text(max_size=40), max_size=6))
def test_any_texts_can_be_indexed_and_any_query_asked(query: str, texts: list[str]) -> None:
    index = Bm25Index.from_texts([(str(number), text) for number, text in enumerate(texts)])
    hits = index.search(query, 3)
    assert len(hits) <= 3
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    assert all(hit.score > 0 for hit in hits)


def test_a_long_run_of_joins_or_marks_takes_no_time() -> None:
    assert extract_terms("_" * 100_000) == []
    assert extract_terms("é" + "\u0301" * 100_000 + " " + "_" * 100_000 + "'" * 1000)


def test_a_mark_that_only_extends_letters_is_no_word_of_its_own() -> None:
    assert extract_terms("(\uff9f\u2200\uff9f) hat") == ["hat"]
    assert extract_terms("\uff92\uff9f hat") == ["\uff92\uff9f", "hat"]
