"""A judge that ships: the qualities of a short answer that can be checked without a model.

What an instruction asks for stands in its example's meta: `value` (what answers it), `others` (what might be
said in its place), `language`, `length` and `form`. An answer is worth the share of five qualities that it
has: it answers, in the language, length and form that was asked for, without refusing. One that does not
answer is worth half of that, so that no form makes up for it; one that names other values or numbers too does
not answer, so that nobody need know which is right.
"""

import re
from collections.abc import Mapping, Sequence

from pydantic import JsonValue

from agent2rl.core.task import Example

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
