"""The words that the seedling's text is made of, by kind (words.txt), and numbers in words."""

from pathlib import Path


def _read_word_lists() -> dict[str, list[str]]:
    """A line that is not indented begins a list."""
    text = Path(__file__).with_name("words.txt").read_text(encoding="utf-8").replace("\n  ", " ")
    return {name: listed.split() for name, _, listed in (line.partition(": ") for line in text.splitlines())}


_lists = _read_word_lists()
NAMES = _lists["NAMES"]
THINGS = _lists["THINGS"]
THING = _lists["THING"]
COLOURS = _lists["COLOURS"]
SIZES = _lists["SIZES"]
PLACES = _lists["PLACES"]
RECEPTACLES = _lists["RECEPTACLES"]
DAYS = _lists["DAYS"]
MONTHS = _lists["MONTHS"]
JOBS = _lists["JOBS"]
TOWNS = _lists["TOWNS"]
COUNTRIES = _lists["COUNTRIES"]
FIRMS = _lists["FIRMS"]
GENRES = _lists["GENRES"]
BRANDS = _lists["BRANDS"]
MATERIALS = _lists["MATERIALS"]
ADJECTIVES = _lists["ADJECTIVES"]
ANIMALS = _lists["ANIMALS"]
ONES = _lists["ONES"]
TENS = _lists["TENS"]
VERBS = _lists["VERBS"]
SMALL = _lists["SMALL"]
VESSELS = [(one, many) for one, _, many in (pair.partition("/") for pair in _lists["VESSELS"])]


def spell_number(number: int) -> str:
    """A whole number below 1,000 as people say it."""
    if number < 20:
        return ONES[number]
    if number < 100:
        tens, ones = divmod(number, 10)
        return TENS[tens - 2] + (f" {ONES[ones]}" if ones else "")
    hundreds, rest = divmod(number, 100)
    return f"{ONES[hundreds]} hundred" + (f" and {spell_number(rest)}" if rest else "")
