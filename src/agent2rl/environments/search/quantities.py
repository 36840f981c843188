"""Numbers and dates as people write them: 1,000, one thousand, 1.0k; July 7, 1972, 1972-07-07.

A text is read as a whole or not at all: `12 monkeys` is twelve of something, `the 12 of May` is nothing.
Not covered: ranges, fractions with a slash, two-digit years, other languages.
"""

import re
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

Date = tuple[int, int, int | None]
"""Year, month, day; no day where only the month is told."""

_SMALL = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen "
)
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
_WORDS = {word: value for value, word in enumerate(_SMALL.split())} | {
    word: 20 + 10 * place for place, word in enumerate(_TENS.split())
}
_ORDINALS = {"first": 1, "second": 2, "third": 3, "fifth": 5, "eighth": 8, "ninth": 9, "twelfth": 12} | {
    f"{word}th": value
    for word, value in _WORDS.items()
    if word not in ("one", "two", "three", "five", "nine")
}
_LARGE = {"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_SCALES = {
    **_LARGE,
    "hundred": 100,
    "k": 10**3,
    "mn": 10**6,
    "mln": 10**6,
    "mio": 10**6,
    "bn": 10**9,
    "bln": 10**9,
    "tn": 10**12,
}
_LETTERS = {"K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
"""Scales that only an upper-case letter, or a currency before it, tells from a unit."""
_CURRENCIES = {"$": "usd", "us$": "usd", "€": "eur", "£": "gbp", "¥": "jpy"}
_UNITS = {
    "%": "percent",
    "per cent": "percent",
    "pct": "percent",
    "km": "kilometre",
    "kilometer": "kilometre",
    "m": "metre",
    "meter": "metre",
    "cm": "centimetre",
    "centimeter": "centimetre",
    "mm": "millimetre",
    "millimeter": "millimetre",
    "mi": "mile",
    "ft": "foot",
    "feet": "foot",
    "kg": "kilogram",
    "kilo": "kilogram",
    "g": "gram",
    "lb": "pound weight",
    "yr": "year",
    "dollar": "usd",
    "us dollar": "usd",
    "u.s. dollar": "usd",
    "euro": "eur",
    "pound": "gbp",
    "pound sterling": "gbp",
    "km2": "square kilometre",
    "km²": "square kilometre",
    "sq km": "square kilometre",
    "square kilometer": "square kilometre",
    "people": "person",
}
_NUMBER = re.compile(
    r"""(?P<sign>[-+\u2212])?\s?(?P<currency>us\$|[$€£¥])?\s?
    (?P<digits>\d{1,3}(?:[, \u00a0\u202f]\d{3}){1,6}(?!\d)|\d{1,40}|(?=\.\d))(?P<decimals>\.\d{1,40})?
    (?P<gap>[\x20\u00a0-]*)(?P<rest>(?![\d.,/:])[^\d\n]{0,60})""",
    re.VERBOSE | re.IGNORECASE,
)
_NAMED = re.compile(r"(?!.*\b(?:and|or)\b)[%A-Za-z][\w .²%'-]*")
"""What may be a unit."""
_LEAD = re.compile(
    r"(?:(?:the year|in|exactly|about|approximately|approx\.?|around|roughly|nearly|circa|c\.|a total of"
    r"|total of|total:|the number is)\s+|~\s*|≈\s*)+",
    re.IGNORECASE,
)
_YEAR_ROUND = "january february march april may june july august september october november december"
_MONTHS = {
    name[:size]: place for place, name in enumerate(_YEAR_ROUND.split(), 1) for size in (3, 4, len(name))
}
_WEEKDAY = re.compile(r"(?:mon|tues|wednes|thurs|fri|satur|sun)day,?\s+", re.IGNORECASE)
_DAY, _MONTH, _YEAR = r"(?P<day>\d{1,2})(?:st|nd|rd|th)?", r"(?P<month>[a-z]{3,9})\.?", r"(?P<year>\d{4})"
_DATES = tuple(
    re.compile(form, re.IGNORECASE)
    for form in (
        rf"{_MONTH}\s+(?:the\s+)?{_DAY}\s*,?\s+{_YEAR}",
        rf"(?:the\s+)?{_DAY}[\s-]+(?:of\s+)?{_MONTH}[\s,-]+(?:of\s+)?{_YEAR}",
        rf"{_YEAR}[\s,-]+{_MONTH}[\s-]+{_DAY}",
        rf"{_MONTH}\s*(?:,|of)?\s+{_YEAR}",
    )
)
_FIGURES = re.compile(r"(\d{4})[-/.](\d{1,2})[-/.](\d{1,2})(?:T00:00.*)?")
_EITHER = re.compile(r"(\d{1,2})([-/.])(\d{1,2})\2(\d{4})")


@dataclass(frozen=True, slots=True)
class Quantity:
    value: Fraction
    unit: str = ""
    """Empty where none is told."""

    def agrees_with(self, other: "Quantity") -> bool:
        """The same amount; a unit that only one of them tells is no difference."""
        return self.value == other.value and (not self.unit or not other.unit or self.unit == other.unit)


@lru_cache(maxsize=4096)
def parse_quantity(text: str) -> Quantity | None:
    """The number that a text is, with its unit."""
    text = _LEAD.sub("", text.strip(), count=1) if _LEAD.match(text.strip()) else text.strip()
    text = text.rstrip(".")
    if found := _NUMBER.fullmatch(text):
        return _parse_figures(found)
    return _parse_number_words(text)


def _parse_figures(found: re.Match[str]) -> Quantity | None:
    value = Fraction("0" + re.sub(r"\D", "", found["digits"]) + (found["decimals"] or ""))
    rest, currency = found["rest"].strip(), _CURRENCIES.get((found["currency"] or "").lower(), "")
    if rest.lower() in ("st", "nd", "rd", "th") and not found["gap"]:
        return Quantity(value, "ordinal")
    if rest.lower() == "s" and not found["gap"]:  # the 1990s are no year
        return None
    scale, unit = _parse_scale(rest, attached=not found["gap"], money=bool(currency))
    if unit and not _NAMED.fullmatch(unit):
        return None
    sign = -1 if found["sign"] in ("-", "\u2212") else 1
    return Quantity(sign * value * scale, currency or _normalize_unit(unit))


def _parse_scale(rest: str, attached: bool, money: bool) -> tuple[int, str]:
    """What stands behind a number, as a factor and a unit."""
    word, _, unit = rest.partition(" ")
    if (attached or money) and word.upper() in _LETTERS and (word.isupper() or money):
        return _LETTERS[word.upper()], unit
    if word.lower() in _SCALES and (scale := _SCALES[word.lower()]):
        more, unit = _parse_scale(unit, attached=False, money=False) if unit else (1, "")
        return scale * more, unit
    return 1, rest


def _normalize_unit(text: str) -> str:
    text = re.sub(r"^(?:of|in)\s+", "", text.lower().strip(" .-"))
    if text in _UNITS:
        return _UNITS[text]
    single = text[:-1] if text.endswith("s") and not text.endswith("ss") else text
    return _UNITS.get(single, single)


def _parse_number_words(text: str) -> Quantity | None:
    words = re.findall(r"[a-z%]+", text.lower())
    if not words or not re.fullmatch(r"[A-Za-z%\s,-]+", text):
        return None
    negative = words[0] in ("minus", "negative")
    words = words[negative:]
    if len(words) == 1 and words[0] in _ORDINALS:
        return Quantity(Fraction(_ORDINALS[words[0]]), "ordinal")
    total, part, taken = 0, 0, 0
    for place, word in enumerate(words):
        before, after = words[place - 1] if place else "", words[place + 1] if place + 1 < len(words) else ""
        if word in _WORDS and _can_follow(_WORDS[word], part):
            part += _WORDS[word]
        elif word == "hundred" and (0 < part < 10 or before == "a"):
            part = max(part, 1) * 100
        elif word in _LARGE and (part or before == "a"):
            total, part = total + max(part, 1) * _LARGE[word], 0
        elif not (
            (word == "a" and not place and after in ("hundred", *_LARGE))
            or (word == "and" and before in ("hundred", *_LARGE) and after in _WORDS)
        ):
            break
        taken = place + 1
    if not taken or words[:taken] == ["a"]:
        return None
    value = Fraction(total + part)
    if words[taken:] and words[taken] in ("and", "or", "hundred", *_LARGE, *_WORDS):
        return None
    unit = " ".join(words[taken:])
    if unit and ("," in text or "\n" in text or not _NAMED.fullmatch(unit)):
        return None
    return Quantity(-value if negative else value, _normalize_unit(unit))


def _can_follow(value: int, part: int) -> bool:
    """Whether a word may follow: `twenty three` may, `three twenty` may not."""
    if not part:
        return True
    return 0 < value < (10 if part % 100 else 100) and not part % 10 and part % 100 != 10


@lru_cache(maxsize=4096)
def parse_dates(text: str) -> frozenset[Date]:
    """Every date that a text may be: 03/04/1999 is two of them."""
    text = re.sub(r"^on\s+", "", text.strip().rstrip("."), flags=re.IGNORECASE)
    text = _WEEKDAY.sub("", text, count=1)
    if found := _FIGURES.fullmatch(text):
        year, month, day = map(int, found.groups())
        return _keep_valid((year, month, day))
    if found := _EITHER.fullmatch(text):
        first, second, year = int(found[1]), int(found[3]), int(found[4])
        return _keep_valid((year, first, second), (year, second, first))
    for form in _DATES:
        found = form.fullmatch(text)
        if found and (named := _MONTHS.get(found["month"].lower())):
            day_told = found.groupdict().get("day")
            return _keep_valid((int(found["year"]), named, int(day_told) if day_told else None))
    return frozenset()


def _keep_valid(*found: Date) -> frozenset[Date]:
    return frozenset(
        (year, month, day)
        for year, month, day in found
        if month in range(1, 13) and day in (None, *range(1, 32))
    )
