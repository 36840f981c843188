"""Scores one answer without a model: by the exact number it ends in, or by a rubric of five qualities.

An answer is the number that follows `####`, directly; the first such place counts. Before anything else
`####` is a heading, as published graders have it. Thousands separators, currency signs, trailing zeros,
signs, decimals and fractions are ways to write a number; units and a full stop may follow it. What is no
plain number (`1,08`, `3-4`, `1e9`, `7/0`, hundreds of digits) is no answer, rather than the part of it that
would parse, and nothing after it is looked at. LaTeX, bold type and numbers in words are not read.

The rubric checks what an example's meta asks for (`value`, `others`, `language`, `length`, `form`). An
answer is worth the share of five qualities that it has, and half of that if it does not answer.
"""

import re
from collections.abc import Mapping, Sequence
from fractions import Fraction

from pydantic import JsonValue

from agent2rl.core.task import Example

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


# A judge that ships: the qualities of a short answer that can be checked without a model.

RUBRIC_NAME = "rubric-2"
"""Changes whenever the same answer could be worth something else."""
SPEECH = {
    "English": "i is was are lives works with born old years the that this it do not know",
    "German": "ich ist war sind wohnt arbeitet mit kam zur welt jahre alt das die so nicht",
}
"""Small words that tell a language."""
END = re.compile(r"(?<![.!?])[.!?]++(?:\s|\"|$)")
"""Of a sentence; looked for once in a row of marks, however long that is."""
REFUSALS = re.compile(
    r"\b(sorry|cannot|can't|unable|do not know|don't know|won't|weiß nicht)\b", re.IGNORECASE
)


def score_by_rubric(output: str, example: Example) -> float:
    return score_qualities(output, example.meta)


def score_qualities(output: str, asked: Mapping[str, JsonValue]) -> float:
    """Of the qualities, those that an answer has; nothing is worth nothing."""
    if not output.strip():
        return 0.0
    kept = check_qualities(output, asked)
    return sum(kept.values()) / len(kept) / (1 if kept["answers"] else 2)


def check_qualities(output: str, asked: Mapping[str, JsonValue]) -> dict[str, bool]:
    return {
        "answers": _answers_question(output, str(asked["value"]), asked["others"]),
        "language": _detect_language(output) == asked["language"],
        "length": _has_length(output, str(asked["length"])),
        "form": _has_form(output, str(asked["form"])),
        "willing": not REFUSALS.search(output),
    }


def _answers_question(output: str, value: str, others: JsonValue) -> bool:
    assert isinstance(others, list)
    beside = any(_mentions_value(output, str(one)) for one in others) or {*re.findall(r"\d+", output)} - {
        value
    }
    return _mentions_value(output, value) and not beside


def _mentions_value(output: str, value: str) -> bool:
    return re.search(rf"\b{re.escape(value)}\b", output, re.IGNORECASE) is not None


def _detect_language(output: str) -> str | None:
    """The one language whose small words it has; None where it has those of none, or of several."""
    said = {word.lower() for word in re.findall(r"\w+", output)}
    found = [language for language, small in SPEECH.items() if said & {*small.split()}]
    return found[0] if len(found) == 1 else None


def _has_length(output: str, length: str) -> bool:
    """`N words` are the most that there may be, `N sentences` as many as there are."""
    number, _, unit = length.partition(" ")
    if unit == "words":
        return len(re.findall(r"\w+", output)) <= int(number)
    return len(split_sentences(output)) == int(number)


def split_sentences(output: str) -> Sequence[str]:
    return [part for part in END.split(output.strip()) if re.search(r"\w", part)]


def _has_form(output: str, form: str) -> bool:
    text = output.strip()
    match form:
        case "capitals":
            return text == text.upper() and any(sign.isalpha() for sign in text)
        case "dash":
            return text.startswith("- ")
        case "quotes":
            return len(text) > 2 and text[0] == text[-1] == '"'
        case "plain":
            return text[:1].isalnum() and text != text.upper()
    raise ValueError(f"there is no form {form!r}")
