"""Whether an answer is right, without a judge: one item, or a set of them in any order and any common form.

    marks = mark("Lyon; Paris and Metz", gold("Paris, Lyon"))
    marks.recall == 1.0 and not marks.correct            # one too many

Two items are the same where they agree without case, accents, articles and punctuation, as numbers or as
dates, or where one only tells more: a title, a company's legal form, a middle initial, something in brackets.
Nothing is guessed: a misspelling, a translation or another name is right only as an alias of the gold answer.
An empty answer is never correct. It stands here and not with the evaluators, since the world itself rewards.
"""

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations

from agent2rl.environments.search.values import dates, quantity

SET = "Set Answer"
MOST_CHARACTERS = 4000
"""Of an answer; what is longer is cut."""
MOST_ITEMS = 200
_RUN = 6
"""How many pieces between separators one item may consist of."""

_LETTERS = str.maketrans(
    {
        "ß": "ss",
        "ø": "o",
        "ł": "l",
        "đ": "d",
        "æ": "ae",
        "œ": "oe",
        "ı": "i",
        "ð": "d",
        "þ": "th",
        "&": " and ",
    }
)
_ARTICLE = re.compile(r"\b(?:the|an?)\s+(?=\w)")
_TITLE = re.compile(r"^(?:dr|mr|mrs|ms|prof|professor|sir|dame|rev|president|senator|king|queen)\s+(?=\w)")
_FORM = re.compile(
    r"(?<=\w)\s+(?:inc|incorporated|ltd|limited|llc|plc|corp|corporation|co|company|gmbh|ag|sa)$"
)
_INITIAL = re.compile(r"(?<=\w\w\s)\w\s(?=\w)")
_BRACKETS = re.compile(r"\s*(?:\([^()]*\)|\[[^\[\]]*\])")
_ALSO = re.compile(
    r"[(\[](?:also known as|also called|aka|a\.k\.a\.|or|formerly|now)[\s:]+([^()\[\]]+)[)\]]", re.I
)
_SHORT = {
    "usa": "united states",
    "us": "united states",
    "united states of america": "united states",
    "uk": "united kingdom",
    "none of them": "none",
    "no one": "none",
    "nobody": "none",
    "nothing": "none",
    "there are none": "none",
    "there is none": "none",
}
_WORDS = {"st": "saint", "mt": "mount", "ft": "fort", "vs": "v", "versus": "v"}

_LEAD_IN = re.compile(
    r"^\W*(?:(?:so|thus|therefore|hence)\b,?\s*)?(?:my\s+|the\s+)?(?:final\s+|correct\s+|complete\s+)?"
    r"answers?(?:\s+to\s+(?:the|this|your)\s+question)?\s*(?:(?:is|are|would\s+be)\b\s*:?|[:=])[\s*]*(?=\S)"
    r"|^\W*(?:it|they|these|there)\s+(?:is|are|was|were)\b\s*:?\s*(?=\S)",
    re.IGNORECASE,
)
_HEADING = re.compile(r"^[^\n,;]{1,200}:[ \t*]*\n+(?=\s*\S)")
_BULLET = re.compile(r"(?m)(?:^|(?<=[;,])[ \t]*)[ \t]*(?:[-*•–]|\(?\d{1,3}[.)])[ \t]+(?=\S)")
_BOXED = re.compile(r"\\boxed\s*\{([^{}]*)\}")
_LIST = r"[;\n|•]|(?:(?<!\d),|,(?!\d{3}(?!\d)))(?!\s*(?:inc|ltd|llc|plc|corp|co|jr|sr)\b)"
"""Neither the comma of a number nor that of a company parts a list."""
_COMMA = re.compile(rf"\s*(?:{_LIST})\s*", re.IGNORECASE)
_SEPARATOR = re.compile(
    rf"\s*(?:{_LIST}|(?<=\s)(?:and|or|&|/)(?=\s))\s*",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Gold:
    """What is right: items, each under all its names. The first of them is the one that it is shown by."""

    items: tuple[tuple[str, ...], ...]

    def __post_init__(self) -> None:
        if not self.items or not all(names and all(map(normal, names)) for names in self.items):
            raise ValueError("a gold answer has items, and every item has names that are not empty")


@dataclass(frozen=True, slots=True)
class Marks:
    """How much of an answer is right, item by item."""

    precision: float
    recall: float
    correct: bool
    """Every item is there, and nothing else."""

    @property
    def f1(self) -> float:
        both = self.precision + self.recall
        return 2 * self.precision * self.recall / both if both else 0.0


NOTHING = Marks(0.0, 0.0, False)


def gold(answer: str, answer_type: str = SET, aliases: Mapping[str, Sequence[str]] | None = None) -> Gold:
    """The gold answer of an official record. Its list is taken apart at commas, semicolons and line breaks.

    An item with a comma of its own is best given as `Gold` itself; read from a list it becomes two items, but
    an answer that has both is right all the same.
    """
    whole = clean(answer)
    items = _listed(whole) if answer_type == SET else [whole]
    more = aliases or {}
    return Gold(tuple((item, *more.get(item, ()), *_called(item)) for item in dict.fromkeys(items)))


def mark(predicted: str, right: Gold) -> Marks:
    """How a predicted answer stands to the right one."""
    text = clean(predicted)
    pieces = list(_pieces(text))
    if not normal(text) or len(pieces) > MOST_ITEMS:
        return NOTHING
    taken: set[int] = set()
    found = 0
    names = [name for item in right.items for name in item]
    for item in sorted(right.items, key=lambda names: -max(map(len, names))):
        run = _find(text, pieces, taken, item)
        found += run is not None
        taken.update(run or ())
    excess = sum(1 for _ in _left_over(text, pieces, taken, names))
    recall, precision = found / len(right.items), found / (found + excess) if found else 0.0
    return Marks(precision, recall, found == len(right.items) and not excess)


def same(one: str, other: str) -> bool:
    """Whether two texts name one thing."""
    first, second = normal(one), normal(other)
    if not first or not second:
        return False
    left, right = quantity(one), quantity(other)
    if left and right:
        return left.agrees(right)
    if first == second or (_digitless(first) and first.replace(" ", "") == second.replace(" ", "")):
        return True
    if (days := dates(one)) and (others := dates(other)):
        return bool(days & others)
    return first in _shorter(other) or second in _shorter(one)


@lru_cache(maxsize=65536)
def normal(text: str) -> str:
    """Without case, accents, articles and punctuation; numbers in figures keep their points."""
    if not (text.isascii() and text.replace(" ", "").isalpha()):  # most names need none of this
        text = _lettered(text)
    text = _ARTICLE.sub("", " ".join(text.lower().split()))
    text = " ".join(_WORDS.get(word, word) for word in text.split())
    return _SHORT.get(text, text)


def _lettered(text: str) -> str:
    text = unicodedata.normalize("NFKD", text.casefold()).translate(_LETTERS)
    text = "".join(letter for letter in text if not unicodedata.combining(letter))
    text = re.sub(r"['’‘ʻʼ`´]", "", text)
    text = re.sub(r"\b(?:[^\W\d_]\.)+[^\W\d_]\b\.?", lambda dotted: dotted[0].replace(".", "") + " ", text)
    text = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", text)
    text = re.sub(r"(?:(?<=^)|(?<=[\s:(]))[-\u2212](?=\d)", "minus ", text)
    text = re.sub(r"(?<=\d)\.(?=\d)", "\0", text)
    return re.sub(r"[\W_]", lambda sign: "." if sign[0] == "\0" else " ", text)


def clean(answer: str) -> str:
    """What is left of an answer without its lead-in, its heading and the marks of a list."""
    text = answer[:MOST_CHARACTERS].strip()
    text = _BOXED.sub(r"\1", text)
    text = re.sub(r"\*\*|__|`+|^#+\s", "", text)
    text = _LEAD_IN.sub("", text, count=1)
    text = _HEADING.sub("", text)
    text = _BULLET.sub(" ", text)
    return text.strip().strip('"“”').rstrip(" .").strip()


def _listed(text: str) -> list[str]:
    """The items of a list that is well written: `and` only parts the last two."""
    parts = [text[start:end] for start, end in _pieces(text, _COMMA)]
    if not parts:
        return []
    *before, last = parts
    last = re.sub(r"^(?:and|&)\s+", "", last)
    if before and last == parts[-1] and len(halves := re.split(r"\s+and\s+", last)) == 2:
        return [*before, *halves]
    return [*before, last]


def _pieces(text: str, separator: re.Pattern[str] = _SEPARATOR) -> Iterator[tuple[int, int]]:
    """Where the pieces between separators begin and end. What stands in brackets is not taken apart."""
    depth = _depths(text)
    start = 0
    for found in separator.finditer(text):
        if not depth[found.start()] and text[start : found.start()].strip():
            yield start, found.start()
            start = found.end()
        elif not depth[found.start()]:
            start = found.end()
    if text[start:].strip():
        yield start, len(text)


def _depths(text: str) -> list[int]:
    depths, depth = [], 0
    for letter in text:
        depth = depth + (letter in "([") - (letter in ")]")
        depths.append(depth)
    balanced = not depth and all(level >= 0 for level in depths)
    return [*depths, 0] if balanced else [0] * (len(text) + 1)


def _find(
    text: str, pieces: Sequence[tuple[int, int]], taken: set[int], names: Sequence[str]
) -> range | None:
    """The pieces, one or some in a row, that are an item."""
    for length in range(_RUN, 0, -1):
        for first in range(len(pieces) - length + 1):
            run = range(first, first + length)
            if taken.isdisjoint(run):
                said = text[pieces[first][0] : pieces[run[-1]][1]]
                if any(same(said, name) for name in names):
                    return run
    return None


def _left_over(
    text: str, pieces: Sequence[tuple[int, int]], taken: set[int], names: Sequence[str]
) -> Iterator[str]:
    """What was said beyond the items; one that is said again is nothing new."""
    before = -2
    for place, (start, end) in enumerate(pieces):
        said = text[start:end]
        if place in taken or not normal(said) or any(same(said, name) for name in names):
            continue
        joined = before == place - 1 and " and " in text[pieces[before][1] - 1 : start + 1]
        before = place
        if not joined:  # "Trinidad and Tobago" is one thing too many, not two
            yield said


@lru_cache(maxsize=65536)
def _shorter(text: str) -> frozenset[str]:
    """The same name, telling less."""
    cuts = (_TITLE, _FORM, _INITIAL)
    found = set()
    for told in {text, _BRACKETS.sub("", text)}:
        plain = normal(told)
        for number in range(len(cuts) + 1):
            for chosen in combinations(cuts, number):
                short = plain
                for cut in chosen:
                    short = cut.sub("", short).strip()
                found.add(short)
    return frozenset(found) - {""}


def _called(item: str) -> list[str]:
    """Other names that an item brings along in brackets."""
    return [name.strip() for name in _ALSO.findall(item)]


def _digitless(text: str) -> bool:
    return not any(letter.isdigit() for letter in text)
