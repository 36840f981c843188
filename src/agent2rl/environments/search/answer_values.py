"""Parse numbers, dates and places as people write them: 1,000, one thousand, 1.0k; July 7, 1972, 1972-07-07.

The whole text must match: `12 monkeys` is twelve of something, `the 12 of May` is nothing.
Not covered: ranges, fractions with a slash, two-digit years, other languages.
"""

import re
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

Date = tuple[int, int, int | None]
"""Year, month, day; the day is None if only the month is given."""

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
"""Scales that differ from a unit only by their upper case, or by a currency before them."""
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
"""Possible units."""
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
    """Empty if none is given."""

    def agrees_with(self, other: "Quantity") -> bool:
        """Return whether the amounts are equal; a unit that only one of them has is ignored."""
        return self.value == other.value and (not self.unit or not other.unit or self.unit == other.unit)


@lru_cache(maxsize=4096)
def parse_quantity(text: str) -> Quantity | None:
    """Parse a text as a number with an optional unit."""
    text = _LEAD.sub("", text.strip(), count=1) if _LEAD.match(text.strip()) else text.strip()
    text = text.rstrip(".")
    if match := _NUMBER.fullmatch(text):
        return _parse_figures(match)
    return _parse_number_words(text)


def _parse_figures(match: re.Match[str]) -> Quantity | None:
    value = Fraction("0" + re.sub(r"\D", "", match["digits"]) + (match["decimals"] or ""))
    rest, currency = match["rest"].strip(), _CURRENCIES.get((match["currency"] or "").lower(), "")
    if rest.lower() in ("st", "nd", "rd", "th") and not match["gap"]:
        return Quantity(value, "ordinal")
    if rest.lower() == "s" and not match["gap"]:  # a decade such as 1990s is not a year
        return None
    scale, unit = _parse_scale(rest, attached=not match["gap"], money=bool(currency))
    if unit and not _NAMED.fullmatch(unit):
        return None
    sign = -1 if match["sign"] in ("-", "\u2212") else 1
    return Quantity(sign * value * scale, currency or _normalize_unit(unit))


def _parse_scale(rest: str, attached: bool, money: bool) -> tuple[int, str]:
    """Parse the text after a number as a factor and a unit."""
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
    """Return whether a number word may follow: `twenty three` is valid, `three twenty` is not."""
    if not part:
        return True
    return 0 < value < (10 if part % 100 else 100) and not part % 10 and part % 100 != 10


@lru_cache(maxsize=4096)
def parse_dates(text: str) -> frozenset[Date]:
    """Return every date that a text may mean: 03/04/1999 may mean two."""
    text = re.sub(r"^on\s+", "", text.strip().rstrip("."), flags=re.IGNORECASE)
    text = _WEEKDAY.sub("", text, count=1)
    if match := _FIGURES.fullmatch(text):
        year, month, day = map(int, match.groups())
        return _keep_valid((year, month, day))
    if match := _EITHER.fullmatch(text):
        first, second, year = int(match[1]), int(match[3]), int(match[4])
        return _keep_valid((year, first, second), (year, second, first))
    for pattern in _DATES:
        match = pattern.fullmatch(text)
        if match and (month_number := _MONTHS.get(match["month"].lower())):
            day_text = match.groupdict().get("day")
            return _keep_valid((int(match["year"]), month_number, int(day_text) if day_text else None))
    return frozenset()


def _keep_valid(*dates: Date) -> frozenset[Date]:
    return frozenset(
        (year, month, day)
        for year, month, day in dates
        if month in range(1, 13) and day in (None, *range(1, 32))
    )


# Other names of states and countries, for matching answers. Names are in lower case without accents.


_STATES = """
AL Alabama, AK Alaska, AZ Arizona, AR Arkansas, CA California, CO Colorado, CT Connecticut, DE Delaware,
FL Florida, GA Georgia, HI Hawaii, ID Idaho, IL Illinois, IN Indiana, IA Iowa, KS Kansas, KY Kentucky,
LA Louisiana, ME Maine, MD Maryland, MA Massachusetts, MI Michigan, MN Minnesota, MS Mississippi, MO Missouri,
MT Montana, NE Nebraska, NV Nevada, NH New Hampshire, NJ New Jersey, NM New Mexico, NY New York,
NC North Carolina, ND North Dakota, OH Ohio, OK Oklahoma, OR Oregon, PA Pennsylvania, RI Rhode Island,
SC South Carolina, SD South Dakota, TN Tennessee, TX Texas, UT Utah, VT Vermont, VA Virginia, WA Washington,
WV West Virginia, WI Wisconsin, WY Wyoming
"""
STATE_CODES: dict[str, str] = {
    code: name.lower() for code, name in re.findall(r"([A-Z]{2}) ([\w ]+)", _STATES)
}
"""Postal codes of the states of the USA. They are read only in upper case."""
STATES = frozenset(STATE_CODES.values())

OTHER_NAMES = {
    "usa": "united states",
    "us": "united states",
    "united states of america": "united states",
    "uk": "united kingdom",
    "great britain": "united kingdom",
    "uae": "united arab emirates",
    "holland": "netherlands",
    "czechia": "czech republic",
    "turkiye": "turkey",
    "burma": "myanmar",
    "cabo verde": "cape verde",
    "ivory coast": "cote divoire",
    "timor leste": "east timor",
    "swaziland": "eswatini",
    "macedonia": "north macedonia",
    "russian federation": "russia",
    "viet nam": "vietnam",
    "lao pdr": "laos",
    "brunei darussalam": "brunei",
    "syrian arab republic": "syria",
    "republic of korea": "south korea",
    "korea republic": "south korea",
    "dprk": "north korea",
    "democratic peoples republic of korea": "north korea",
    "prc": "china",
    "peoples republic of china": "china",
    "republic of china": "taiwan",
    "drc": "democratic republic of congo",
    "dr congo": "democratic republic of congo",
    "congo kinshasa": "democratic republic of congo",
    "congo brazzaville": "republic of congo",
    "vatican": "vatican city",
    "holy see": "vatican city",
    "new york state": "new york",
    "washington state": "washington",
    "district of columbia": "washington dc",
    "nyc": "new york city",
}
