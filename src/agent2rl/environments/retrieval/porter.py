"""Porter's stemmer of 1980 with its author's two later amendments (-bli, -logi), as Lucene has it.

Not Porter 2 ("English" in Snowball), which gives other stems. Letters outside a-z count as consonants.
"""

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
    """Of a word in small letters; one of fewer than three letters is its own stem."""
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
    """What is left of a verb without its -ed or -ing."""
    if rest.endswith(("at", "bl", "iz")):
        return rest + "e"
    if _ends_in_double_consonant(rest):
        return rest if rest[-1] in "lsz" else rest[:-1]
    return rest + "e" if _measure(rest) == 1 and _ends_in_short_syllable(rest) else rest


def _replace_suffix(word: str, pairs: tuple[tuple[str, str], ...]) -> str:
    """With the first suffix that it has replaced, if enough stands before it."""
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
    """Each letter's kind: `v` for a vowel, `c` for a consonant. A y after a consonant is a vowel."""
    shape = ""
    for letter in word:
        vowel = letter in "aeiou" or (letter == "y" and shape.endswith("c"))
        shape += "v" if vowel else "c"
    return shape


def _measure(word: str) -> int:
    """How often a vowel is followed by a consonant."""
    return _classify_letters(word).count("vc")


def _has_vowel(word: str) -> bool:
    return "v" in _classify_letters(word)


def _ends_in_double_consonant(word: str) -> bool:
    return len(word) > 1 and word[-1] == word[-2] and _classify_letters(word)[-1] == "c"


def _ends_in_short_syllable(word: str) -> bool:
    """Ends in consonant, vowel, consonant, the last of them not w, x or y: hop(e), but not snow."""
    return _classify_letters(word)[-3:] == "cvc" and word[-1] not in "wxy"
