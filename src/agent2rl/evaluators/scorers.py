"""Answers as exact numbers: the one rule that says whether an answer to a word problem is right.

An answer is the number that follows `####`, directly; the first such place counts. Before anything else
`####` is a heading, as published graders have it. Thousands separators, currency signs, trailing zeros,
signs, decimals and fractions are ways to write a number; units and a full stop may follow it. What is no
plain number (`1,08`, `3-4`, `1e9`, `7/0`, hundreds of digits) is no answer, rather than the part of it that
would parse, and nothing after it is looked at. LaTeX, bold type and numbers in words are not read.
"""

import re
from fractions import Fraction

MARKER = "####"

_MINUS = r"\-\u2212"
_CURRENCY = r"[$\u20ac\u00a3]"
_GAP = r"[^\S\r\n]*"
# Digits are bounded, so that no text takes long or makes a number that int() refuses.
_DIGITS = r"[0-9]{1,40}"
_WHOLE = rf"(?:[1-9][0-9]{{0,2}}(?:,[0-9]{{3}}){{1,12}}|{_DIGITS})"
_OPERATOR = rf"[+{_MINUS}*/^=x\u00d7\u00f7]"
_GOES_ON = rf"[.,:_'\u2019]\d|[a-zA-Z][+{_MINUS}]?\d|{_GAP}(?:{_OPERATOR}{_GAP})?{_CURRENCY}?\d"
_ANSWER = re.compile(
    rf"""\s*
    (?:(?P<sign>[+{_MINUS}])[ ]?)? (?:{_CURRENCY}[ ]?)? (?P<inner_sign>[{_MINUS}])?
    (?:
        (?P<mixed>{_DIGITS})[ ](?P<part>{_DIGITS})/(?P<of>{_DIGITS})
      | (?P<top>{_WHOLE})[ ]?/[ ]?(?P<bottom>{_WHOLE})
      | (?P<whole>{_WHOLE})?(?:\.(?P<decimals>{_DIGITS}))?
    )
    (?<=[0-9]) (?!{_GOES_ON})
    """,
    re.VERBOSE,
)
_PLACE = re.compile(rf"{MARKER}(?!#)(?=\s*(?:[+{_MINUS}][ ]?)?(?:{_CURRENCY}[ ]?)?[{_MINUS}]?\.?\d)")
_LAST_NUMBER = re.compile(
    rf"(?:(?<![\w)])[{_MINUS}])?{_CURRENCY}?(?:[0-9]+[ ](?=[0-9]+/[0-9]))?[0-9](?:[0-9,./]*[0-9])?"
)


def final_answer(text: str, last_number_fallback: bool = False) -> Fraction | None:
    """The number after `####`; without that mark None, or on request the last number of the text."""
    if place := _PLACE.search(text):
        return _parse_number(text[place.end() :])
    if last_number_fallback and MARKER not in text and (numbers := _LAST_NUMBER.findall(text)):
        return _parse_number(numbers[-1])
    return None


def exact_number(output: str, target: str) -> float:
    """1.0 where both end in the same number, else 0.0."""
    right = final_answer(target)
    if right is None:
        raise ValueError(f"the target has no number after {MARKER}: {target[-80:]!r}")
    return float(final_answer(output) == right)


def _parse_number(text: str) -> Fraction | None:
    found = _ANSWER.match(text)
    if found is None or (found["sign"] and found["inner_sign"]):
        return None
    size = _parse_magnitude(found)
    if size is None:
        return None
    return size if (found["sign"] or found["inner_sign"] or "+") == "+" else -size


def _parse_magnitude(found: re.Match[str]) -> Fraction | None:
    if found["mixed"]:
        part, of = int(found["part"]), int(found["of"])
        return int(found["mixed"]) + Fraction(part, of) if part < of else None
    if found["top"]:
        bottom = _parse_int(found["bottom"])
        return Fraction(_parse_int(found["top"]), bottom) if bottom else None
    decimals = found["decimals"] or ""
    return Fraction(_parse_int((found["whole"] or "0") + decimals), 10 ** len(decimals))


def _parse_int(digits: str) -> int:
    return int(digits.replace(",", ""))
