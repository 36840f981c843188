"""Score one answer without a model: by its exact final number, or by a rubric of five qualities.

The answer is the number after the first `####` that a number directly follows, as in published graders. Any
other `####` is a heading. If no number directly follows any, decorations may be between them: bold type,
LaTeX, brackets, a colon, `=`, a currency, `Answer:`. Of a calculation (`9 * 2 = 18`) the result counts. Text
up to `</think>` is not read.

Numbers may have thousands separators, currency signs, trailing zeros, signs, decimals and fractions; units
and a full stop may follow. Text that is not a plain number (`1,08`, `3-4`, `1e9`, `7/0`, hundreds of digits)
is no answer: neither the part that would parse nor any later text counts. Numbers in words are not read.

`last_number` is the flexible rule: the last number of the text, wherever it is. `published_number` is that of
the paper's protocol: the last number before a `Question:` that the model may write, compared to 1e-6.

The scorers of numbers take the target or the whole example, so that a task can use them as its `score`.

The rubric checks what the meta of an example requests (`value`, `others`, `language`, `length`, `form`). The
score is the share of five qualities that the answer has, halved if it does not answer the question.
"""

import re
from collections.abc import Mapping, Sequence
from fractions import Fraction

from pydantic import JsonValue

from agent2rl.core.task import Example

REASONING_END = "</think>"
NEXT_QUESTION = "Question:"
PUBLISHED_TOLERANCE = 1e-6
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
_NUMBER_AHEAD = rf"(?=(?:[+{_MINUS}][ ]?)?(?:{_CURRENCY}[ ]?)?[{_MINUS}]?\.?\d)"
_PLACE = re.compile(rf"{MARKER}(?!#)\s*{_NUMBER_AHEAD}")
_WORDS = "the|final|answer|result|total|is|boxed|text|textbf|mathbf|rs|usd|eur|gbp|inr"
_DECORATION = rf"(?:[\s*_:=~\u2248(){{}}\[\]\\\u20b9]|{_CURRENCY}|(?i:{_WORDS})\b\.?)"
_DECORATED_PLACE = re.compile(rf"{MARKER}(?!#){_DECORATION}*+{_NUMBER_AHEAD}")
_ANNOTATION = re.compile("<<[^<>]*>>")
_CALCULATION = re.compile(rf"^(?:(?:[0-9.,+{_MINUS}*/x\u00d7\u00f7()%\\ ]|{_CURRENCY})*+=)++")
_LAST_NUMBER = re.compile(
    rf"(?:(?<![\w)])[{_MINUS}])?{_CURRENCY}?(?:[0-9]+[ ](?=[0-9]+/[0-9]))?[0-9](?:[0-9,./]*[0-9])?"
)
_PUBLISHED_NUMBER = re.compile(r"-?[0-9]+(?:\.[0-9]+)?")


def cut_reasoning(text: str) -> str:
    """Return the text after the model's reasoning, which ends with `</think>`."""
    return text.rpartition(REASONING_END)[2]


def final_answer(text: str) -> Fraction | None:
    """Return the number after `####`, or None."""
    text = cut_reasoning(text)
    place = _PLACE.search(text) or _DECORATED_PLACE.search(text)
    return _parse_result(text[place.end() :].partition("\n")[0]) if place else None


def last_number(text: str) -> Fraction | None:
    """Return the last number of the text, or None."""
    numbers = _LAST_NUMBER.findall(cut_reasoning(text))
    return _parse_number(numbers[-1]) if numbers else None


def exact_number(output: str, target: str | Example) -> float:
    """Return 1.0 if both have the same final number, else 0.0."""
    return float(final_answer(output) == _require_final_answer(target))


def same_last_number(output: str, target: str | Example) -> float:
    """Return 1.0 if the last number of the output is the final number of the target, else 0.0."""
    return float(last_number(output) == final_answer(_read_target(target)))


def same_published_number(output: str, target: str | Example) -> float:
    """Return 1.0 if the last number of the output, as published, is the final number of the target."""
    right, found = _require_final_answer(target), published_number(output)
    return float(found is not None and abs(found - float(right)) < PUBLISHED_TOLERANCE)


def _require_final_answer(target: str | Example) -> Fraction:
    text = _read_target(target)
    answer = final_answer(text)
    if answer is None:
        raise ValueError(f"the target has no number after {MARKER}: {text[-80:]!r}")
    return answer


def _read_target(target: str | Example) -> str:
    return target.target if isinstance(target, Example) else target


def published_number(output: str) -> float | None:
    """Return the last run of digits, with its sign and decimals, before a new question, or None.

    A comma ends a number, as published: `1,234` is 234.
    """
    numbers = _PUBLISHED_NUMBER.findall(cut_reasoning(output).partition(NEXT_QUESTION)[0])
    return float(numbers[-1]) if numbers else None


def _parse_result(line: str) -> Fraction | None:
    """Parse a number, or the result of a calculation such as `9 * 2 = <<9*2=18>>18`."""
    return _parse_number(_CALCULATION.sub("", _ANNOTATION.sub("", line)))


def _parse_number(text: str) -> Fraction | None:
    match = _ANSWER.match(text)
    if match is None or (match["sign"] and match["inner_sign"]):
        return None
    size = _parse_magnitude(match)
    if size is None:
        return None
    return size if (match["sign"] or match["inner_sign"] or "+") == "+" else -size


def _parse_magnitude(match: re.Match[str]) -> Fraction | None:
    if match["mixed"]:
        part, of = int(match["part"]), int(match["of"])
        return int(match["mixed"]) + Fraction(part, of) if part < of else None
    if match["top"]:
        bottom = _parse_int(match["bottom"])
        return Fraction(_parse_int(match["top"]), bottom) if bottom else None
    decimals = match["decimals"] or ""
    return Fraction(_parse_int((match["whole"] or "0") + decimals), 10 ** len(decimals))


def _parse_int(digits: str) -> int:
    return int(digits.replace(",", ""))


# The rubric: qualities of a short answer that can be checked without a model

RUBRIC_NAME = "rubric-2"
"""Must change whenever the same answer could score differently."""
SPEECH = {
    "English": "i is was are lives works with born old years the that this it do not know",
    "German": "ich ist war sind wohnt arbeitet mit kam zur welt jahre alt das die so nicht",
}
"""Small words that identify a language."""
END = re.compile(r"(?<![.!?])[.!?]++(?:\s|\"|$)")
"""The end of a sentence. Matches only once in a long row of marks, in linear time."""
REFUSALS = re.compile(
    r"\b(sorry|cannot|can't|unable|do not know|don't know|won't|weiß nicht)\b", re.IGNORECASE
)


def score_by_rubric(output: str, example: Example) -> float:
    return score_qualities(output, example.meta)


def score_qualities(output: str, asked: Mapping[str, JsonValue]) -> float:
    """Score an answer by its qualities; an empty answer scores 0."""
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
    """Return the language of the small words in the text; None if there are none, or of several languages."""
    said = {word.lower() for word in re.findall(r"\w+", output)}
    found = [language for language, small in SPEECH.items() if said & {*small.split()}]
    return found[0] if len(found) == 1 else None


def _has_length(output: str, length: str) -> bool:
    """Check the length: at most N for `N words`, exactly N for `N sentences`."""
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
