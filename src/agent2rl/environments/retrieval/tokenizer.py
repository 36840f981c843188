"""Split a text into index terms: words without possessives and stop words, each reduced to its Porter stem.

Words follow Unicode's annex 29 as in Lucene's StandardTokenizer, simplified for Hebrew
quotes, key caps, flags, skin tones and marks of rarer scripts. The stemmer is Porter's of 1980 with its
author's two amendments (-bli, -logi), as in Lucene; not Porter 2.
"""

import re
from itertools import chain

# Porter's stemmer

_DOUBLE = (
    *(("ational", "ate"), ("tional", "tion"), ("enci", "ence"), ("anci", "ance"), ("izer", "ize")),
    *(("bli", "ble"), ("alli", "al"), ("entli", "ent"), ("eli", "e"), ("ousli", "ous")),
    *(("ization", "ize"), ("ation", "ate"), ("ator", "ate"), ("alism", "al"), ("iveness", "ive")),
    *(("fulness", "ful"), ("ousness", "ous"), ("aliti", "al"), ("iviti", "ive"), ("biliti", "ble")),
    ("logi", "log"),
)
_SINGLE = (
    *(("icate", "ic"), ("ative", ""), ("alize", "al"), ("iciti", "ic"), ("ical", "ic"), ("ful", "")),
    ("ness", ""),
)
_LAST = (
    *("al", "ance", "ence", "er", "ic", "able", "ible", "ant", "ement", "ment", "ent", "sion", "tion"),
    *("ou", "ism", "ate", "iti", "ous", "ive", "ize"),
)
_REPLACED = tuple(suffix for suffix, _ in (*_DOUBLE, *_SINGLE))


def stem(word: str) -> str:
    """Return the stem of a lower-case word; a word of fewer than three letters is its own stem."""
    if len(word) < 3:
        return word
    word = _strip_past_tense(_strip_plural(word))
    if word.endswith("y") and _has_vowel(word[:-1]):
        word = word[:-1] + "i"
    if word.endswith(_REPLACED):
        word = _replace_suffix(_replace_suffix(word, _DOUBLE), _SINGLE)
    return _strip_final_e(_strip_last_suffix(word))


def _strip_plural(word: str) -> str:
    if word.endswith(("sses", "ies")):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith("ss") else word


def _strip_past_tense(word: str) -> str:
    if word.endswith("eed"):
        return word[:-1] if _measure(word[:-3]) else word
    for suffix in ("ed", "ing"):
        rest = word.removesuffix(suffix)
        if rest != word:
            return _restore_ending(rest) if _has_vowel(rest) else word
    return word


def _restore_ending(rest: str) -> str:
    """Repair the ending of a verb after its -ed or -ing was stripped."""
    if rest.endswith(("at", "bl", "iz")):
        return rest + "e"
    if _ends_in_double_consonant(rest):
        return rest if rest[-1] in "lsz" else rest[:-1]
    return rest + "e" if _measure(rest) == 1 and _ends_in_short_syllable(rest) else rest


def _replace_suffix(word: str, pairs: tuple[tuple[str, str], ...]) -> str:
    """Replace the first suffix that the word has, if enough letters remain before it."""
    for suffix, other in pairs:
        if word.endswith(suffix):
            rest = word[: -len(suffix)]
            return rest + other if _measure(rest) else word
    return word


def _strip_last_suffix(word: str) -> str:
    if not word.endswith(_LAST):
        return word
    for suffix in _LAST:
        if word.endswith(suffix):
            rest = word[: -3 if suffix in ("sion", "tion") else -len(suffix)]
            return rest if _measure(rest) > 1 else word
    return word


def _strip_final_e(word: str) -> str:
    measure = _measure(word)
    if word.endswith("e") and (measure > 1 or (measure == 1 and not _ends_in_short_syllable(word[:-1]))):
        word = word[:-1]
    return word[:-1] if word.endswith("ll") and measure > 1 else word


def _classify_letters(word: str) -> str:
    """Map each letter to `v` for a vowel or `c` for a consonant. A y after a consonant is a vowel."""
    shape = ""
    for letter in word:
        vowel = letter in "aeiou" or (letter == "y" and shape.endswith("c"))
        shape += "v" if vowel else "c"
    return shape


def _measure(word: str) -> int:
    """Count how often a consonant follows a vowel."""
    return _classify_letters(word).count("vc")


def _has_vowel(word: str) -> bool:
    return "v" in _classify_letters(word)


def _ends_in_double_consonant(word: str) -> bool:
    return len(word) > 1 and word[-1] == word[-2] and _classify_letters(word)[-1] == "c"


def _ends_in_short_syllable(word: str) -> bool:
    """Check for an ending consonant, vowel, consonant other than w, x, y: hop(e), but not snow."""
    return _classify_letters(word)[-3:] == "cvc" and word[-1] not in "wxy"


STOP_WORDS = frozenset(
    (
        *("a", "an", "and", "are", "as", "at", "be", "but", "by", "for", "if", "in", "into", "is", "it"),
        *("no", "not", "of", "on", "or", "such", "that", "the", "their", "then", "there", "these", "they"),
        *("this", "to", "was", "will", "with"),
    )
)
LONGEST = 255
"""Maximum letters of a word; a longer one is cut into several."""

_EXTEND = (
    "\u0300-\u036f\u0483-\u0489\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0610-\u061a\u064b-\u065f\u0670"
    "\u0900-\u0903\u093a-\u093c\u093e-\u094f\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe00-\ufe0f\ufe20-\ufe2f"
    "\uff9e\uff9f\u200c\u200d\u00ad\u061c\u180e\u200e\u200f\u202a-\u202e\u2060-\u2064\u2066-\u206f\ufeff"
)
_HAN = (
    "\u2e80-\u2fd5\u3005\u3007\u3021-\u3029\u3038-\u303b\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\U00020000-\U0003134f"
)
_HIRAGANA = "\u3041-\u3096\u309d-\u309f"
_KATAKANA = (
    "\u3031-\u3035\u309b\u309c\u30a0-\u30fa\u30fc-\u30ff\u31f0-\u31ff\u32d0-\u32fe\u3300-\u3357\uff66-\uff9d"
)
_SOUTHEAST = "\u0e01-\u0e3a\u0e40-\u0e4e\u0e81-\u0ec6\u1000-\u103f\u1050-\u108f\u1780-\u17d3\u17d7\u17dc"
_NUMBERS = (  # letters to Python, but not to the annex
    "\u00b2\u00b3\u00b9\u00bc-\u00be\u2070\u2074-\u2079\u2080-\u2089\u2150-\u215f\u2189\u2460-\u249b\u24ea-\u24ff"
    "\u2776-\u2793\u3192-\u3195\u3220-\u3229\u3248-\u324f\u3251-\u325f\u3280-\u3289\u32b1-\u32bf"
)
_PICTURES = (  # Extended_Pictographic of Unicode 11
    "\u00a9\u00ae\u203c\u2049\u2122\u2139\u2194-\u2199\u21a9\u21aa\u231a\u231b\u2328\u2388\u23cf\u23e9-\u23f3"
    "\u23f8-\u23fa\u24c2\u25aa\u25ab\u25b6\u25c0\u25fb-\u25fe\u2600-\u2605\u2607-\u2612\u2614-\u2685\u2690-\u2705"
    "\u2708-\u2712\u2714\u2716\u271d\u2721\u2728\u2733\u2734\u2744\u2747\u274c\u274e\u2753-\u2755\u2757\u2763-\u2767"
    "\u2795-\u2797\u27a1\u27b0\u27bf\u2934\u2935\u2b05-\u2b07\u2b1b\u2b1c\u2b50\u2b55\u3030\u303d\u3297\u3299"
    "\U0001f000-\U0001f0ff\U0001f10d-\U0001f10f\U0001f12f\U0001f16c-\U0001f171\U0001f17e\U0001f17f\U0001f18e"
    "\U0001f191-\U0001f19a\U0001f1ad-\U0001f1e5\U0001f201-\U0001f20f\U0001f21a\U0001f22f\U0001f232-\U0001f23a"
    "\U0001f23c-\U0001f23f\U0001f249-\U0001f53d\U0001f546-\U0001f64f\U0001f680-\U0001f6ff\U0001f774-\U0001f77f"
    "\U0001f7d5-\U0001f7ff\U0001f80c-\U0001f80f\U0001f848-\U0001f84f\U0001f85a-\U0001f85f\U0001f888-\U0001f88f"
    "\U0001f8ae-\U0001f8ff\U0001f90c-\U0001f93a\U0001f93c-\U0001f945\U0001f947-\U0001fffd"
)
_MID_BOTH = "'.\u2018\u2019\u2024\ufe52\uff07\uff0e"
_MID_LETTER = ":\u00b7\u0387\u05f4\u2027\ufe13\ufe55\uff1a" + _MID_BOTH
_MID_NUMBER = ",;\u037e\u0589\u060c\u060d\u066c\u07f8\u2044\ufe10\ufe14\ufe50\ufe54\uff0c\uff1b" + _MID_BOTH
_ALWAYS = "abcdefghijklmnopqrstuvwxyz0123456789_:.',;"
"""The ASCII characters that a word may have. A text can be split at all others without further checks."""
_JOIN = "_\u202f\u203f\u2040\u2054\ufe33\ufe34\ufe4d-\ufe4f\uff3f"


def _build_word_pattern(
    letter: str, number: str, join: str, mid_letter: str, mid_number: str, after: str = ""
) -> str:
    """Build the pattern of a word. Everything after a first letter or number is optional: no backtracking."""
    one, digit, low = f"{letter}{after}", f"{number}{after}", f"[{join}]{after}"
    letters = f"(?:{one})++(?:[{mid_letter}]{after}(?:{one})++)*"
    numbers = f"(?:{digit})++(?:[{mid_number}]{after}(?:{digit})++)*"
    part = f"(?:{letters}|{numbers})+"
    return f"(?<![{join}])(?:{low})*+{part}(?:(?:{low})++{part})*(?:{low})*"


_NOT_LETTERS = rf"\W\d_{_NUMBERS}{_HAN}{_HIRAGANA}{_KATAKANA}{_SOUTHEAST}\uff9e\uff9f"
_AFTER = f"[{_EXTEND}]*+"
_PICTURE = f"(?:[{_PICTURES}][\ufe0f\U0001f3fb-\U0001f3ff]?|[\U0001f3fb-\U0001f3ff])"

_WORD = _build_word_pattern(f"[^{_NOT_LETTERS}]", r"\d", _JOIN, _MID_LETTER, _MID_NUMBER, _AFTER)

_ASCII = re.compile(_build_word_pattern("[a-z]", "[0-9]", "_", ":.'", ",;.'"))
_ANY = re.compile(
    f"{_PICTURE}(?:\u200d{_PICTURE})*|{_WORD}"
    f"|(?:[{_KATAKANA}]{_AFTER})+|(?:[{_SOUTHEAST}]{_AFTER})+|[{_HAN}{_HIRAGANA}]{_AFTER}"
)
_POSSESSIVES = ("'s", "\u2019s", "\uff07s")
_CUT = bytes(ord(" ") if code < 128 and chr(code) not in _ALWAYS else code for code in range(256))
"""Translation table for UTF-8, in which non-ASCII characters have no byte below 128."""
_KEPT, _SHORT = 1 << 17, 40
"""Size of the cache of short pieces, and their maximum length. Most pieces of a text occur before."""


def extract_terms(text: str) -> list[str]:
    """Return the index terms of a text or a query, in order, with repetitions."""
    cut = text.lower().encode("utf-8", "surrogatepass").translate(_CUT).decode("utf-8", "surrogatepass")
    return list(chain.from_iterable(map(_TERMS.__getitem__, cut.split(" "))))


class _TermCache(dict[str, tuple[str, ...]]):
    """Cache: piece of a text between characters that are in no word → its terms."""

    def __missing__(self, piece: str) -> tuple[str, ...]:
        words = (_ASCII if piece.isascii() else _ANY).findall(piece)
        cut = (word[start : start + LONGEST] for word in words for start in range(0, len(word), LONGEST))
        found = tuple(term for term in map(_stem_word, cut) if term)
        if len(piece) <= _SHORT:
            if len(self) >= _KEPT:
                self.clear()
            self[piece] = found
        return found


_TERMS = _TermCache({"": ()})


def _stem_word(word: str) -> str:
    """Return the stem of a word; empty for a stop word."""
    if word.endswith(_POSSESSIVES):
        word = word[:-2]
    return "" if word in STOP_WORDS else stem(word)
