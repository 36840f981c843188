"""Score an answer without a judge: one item, or a set of items in any order and any common notation.

    marks = mark_answer("Lyon; Paris and Metz", parse_gold_answer("Paris, Lyon"))
    marks.recall == 1.0 and not marks.correct            # one too many

Two items are the same if they agree without case, accents, articles, punctuation, titles and legal forms of
companies, as numbers or as dates, or if one only adds a middle initial or something in brackets. States and
countries have other names (`answer_values`). Nothing else is guessed: a misspelling, a translation or another
name is right only as an alias of the gold answer. An empty answer is never correct. This module is here and
not with the evaluators because the environment computes rewards with it.

Lists are split at commas, semicolons, lines and `and`, but not within brackets or quotes. An answer may be a
sentence: words that introduce the items or close the sentence are skipped, and a sentence that says that
nothing fits is `None`.
"""

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations

from agent2rl.environments.search.answer_values import (
    OTHER_NAMES,
    STATE_CODES,
    STATES,
    Date,
    Quantity,
    parse_dates,
    parse_quantity,
)

# Splitting lists

_LIST = r"[;\n|•]|(?:(?<!\d),|,(?!\d{3}(?!\d)))(?!\s*(?i:inc|ltd|llc|plc|corp|co|jr|sr)\b)"
"""The comma in a number, or before a company's legal form, does not separate items."""
COMMA = re.compile(rf"\s*(?:{_LIST})\s*")
SEPARATOR = re.compile(rf"\s*(?:{_LIST}|(?<=\s)(?:and|or|&|/)(?=\s))\s*")
_AND = re.compile(r"^(?:and|or|&)(?:\s+|$)")


def split_list(text: str) -> list[str]:
    """Split a well-formed list, in which `and` separates only the last two items."""
    parts = [text[start:end] for start, end in iter_pieces(text, COMMA)]
    if len(parts) > 1 and not _AND.match(parts[-1]):
        halves = re.split(r"\s+and\s+", parts[-1])
        parts[-1:] = halves if len(halves) == 2 else parts[-1:]
    bare = [_AND.sub("", part).strip('"“” ') for part in parts]
    return [part for part in bare if re.search(r"\w", part)]


def iter_pieces(text: str, separator: re.Pattern[str] = SEPARATOR) -> Iterator[tuple[int, int]]:
    """Yield the start and end of each piece between separators."""
    depth = _measure_depths(text)
    start = 0
    for match in separator.finditer(text):
        if depth[match.start()]:
            continue
        if text[start : match.start()].strip():
            yield start, match.start()
        start = match.end()
    if text[start:].strip():
        yield start, len(text)


def _measure_depths(text: str) -> list[int]:
    """Return the nesting depth in brackets or quotes at each character; all 0 if they are unbalanced."""
    depths, depth, quoted = [], 0, False
    for letter in text:
        depth = depth + (letter in "([“") - (letter in ")]”")
        quoted ^= letter == '"'
        depths.append(depth + quoted)
    balanced = not depth and not quoted and all(level >= 0 for level in depths)
    return [*depths, 0] if balanced else [0] * (len(text) + 1)


# Matching

MATCHER = "matcher-3"
"""Must change whenever the same answer could get other marks."""
SET = "Set Answer"
MOST_CHARACTERS = 4000
"""A longer answer is cut."""
MOST_ITEMS = 200
_RUN = 6
"""Maximum number of pieces between separators that form one item."""

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
_TITLE = re.compile(r"^(?:dr|mr|mrs|ms|prof|professor|sir|dame|rev)\s+(?=\w)")
_FORM = re.compile(
    r"(?<=\w)(?:\s+(?:and\s+)?(?:inc|incorporated|ltd|limited|llc|plc|corp|corporation|co|company|gmbh|ag|sa))+$"
)
_RANK = re.compile(r"^(?:state|commonwealth|republic|kingdom|country)\s+of\s+(?=\w)")
_INITIAL = re.compile(r"(?<=\w\w\s)\w\s(?=\w)")
_BRACKETS = re.compile(r"\s*(?:\([^()]*\)|\[[^\[\]]*\])")
_INITIALS = re.compile(r"[(\[]([A-Z]{2,8})[)\]]$")
_ALSO = re.compile(
    r"[(\[](?:also known as|also called|aka|a\.k\.a\.|or|formerly|now)[\s:]+([^()\[\]]+)[)\]]", re.I
)
_TICKER = re.compile(r"[(\[](?:[A-Za-z]+:\s*)?([A-Z]{2,8})[)\]]")
_SHORT = OTHER_NAMES | dict.fromkeys(
    ("none of them", "no one", "nobody", "nothing", "there are none", "there is none"), "none"
)
_WORDS = {"st": "saint", "mt": "mount", "ft": "fort", "vs": "v", "versus": "v"}

_LEAD_IN = re.compile(
    r"^\W*(?:(?:so|thus|therefore|hence)\b,?\s*)?(?:my\s+|the\s+)?(?:final\s+|correct\s+|complete\s+)?"
    r"answers?(?:\s+to\s+(?:the|this|your)\s+question)?\s*(?:(?:is|are|would\s+be)\b\s*:?|[:=])[\s*]*(?=\S)"
    r"|^\W*(?:it|they|these|there)\s+(?:is|are|was|were)\b\s*:?\s*(?=\S)",
    re.IGNORECASE,
)
_SENTENCE = re.compile(
    r"(?:the|these|those|all|both)\s+(?:[\w'’-]+\s+){1,9}?(?:is|are|was|were)\b\s*:?\s+", re.I
)
"""Matches e.g. `The founder of the company was `."""
_INTRODUCTION = re.compile(
    r"(?:based on|according to|after|among|given|considering|using|as of|per|from)\s[^,\n]{1,150},\s+"
    r"|(?:in|for|during|by)\s+(?:the\s+)?(?:year\s+)?\d{4}s?,\s+"
    r"|(?:i|we)\s+(?:found|believe|think|concluded?|determined)\s+(?:that\s+)?"
    r"|it\s+(?:appears|seems)\s+(?:that\s+)?|(?:so|thus|therefore|hence|finally),\s+|both\s+",
    re.IGNORECASE,
)
"""Matches e.g. `Based on the search results, `."""
_CLOSING = re.compile(
    r"\s+(?:(?:is|are|was|were)\s+the\s|(?:all\s+|both\s+)?(?:meet|satisf[yi]|fulfil|match|qualif[yi])\w*\b)"
    r"(?:(?!\b(?:and|or|but|while|not|second|wrong)\b)[^\n,;.:]){0,120}$",
    re.IGNORECASE,
)
"""Matches e.g. ` are the states that meet both conditions`."""
_NO_ITEM = re.compile(
    r"(?!.*\b(?:except|besides|other than|but)\b)(?:none\s+of\s+(?:the|these|those)\b.{0,200}"
    r"|(?:there\s+(?:is|are|was|were)\s+)?no\s+(?!(?:information|results?|data|answers?|evidence|records?)\b)"
    r"(?:such\s+[\w\s]{1,60}"
    r"|[\w\s'’-]{1,60}?\b(?:meet|met|satisf[yi]|match|fulfil|qualif[yi]|exist|fit)\w*\b.{0,200}))$",
    re.IGNORECASE,
)
"""Matches e.g. `No films meet all the criteria`."""
_MOST_INTRODUCTIONS = 4
_HEADING = re.compile(r"^[^\n,;]{1,200}:[ \t*]*\n+(?=\s*\S)")
_BULLET = re.compile(r"(?m)(?:^|(?<=[;,])[ \t]*)[ \t]*(?:[-*•–]|\(?\d{1,3}[.)])[ \t]+(?=\S)")
_FIRST_NUMBER = re.compile(r"\(?1[.)]\s")
_NEXT_NUMBER = re.compile(r"(?<=[^\s;,])[ \t]+\(?\d{1,2}[.)][ \t]+(?=\S)")
"""The numbers of a list that is on one line."""
_BOXED = re.compile(r"\\boxed\s*\{([^{}]*)\}")


@dataclass(frozen=True, slots=True)
class GoldAnswer:
    """The correct answer: items, each with all its names. The first name is the one shown."""

    items: tuple[tuple[str, ...], ...]

    def __post_init__(self) -> None:
        if not self.items or not all(names and all(map(normalize_text, names)) for names in self.items):
            raise ValueError("a gold answer has items, and every item has names that are not empty")


@dataclass(frozen=True, slots=True)
class AnswerMarks:
    """How much of an answer is right, item by item."""

    precision: float
    recall: float
    correct: bool
    """The answer has every item, and nothing else."""

    @property
    def f1(self) -> float:
        total = self.precision + self.recall
        return 2 * self.precision * self.recall / total if total else 0.0


NOTHING = AnswerMarks(0.0, 0.0, False)


def parse_gold_answer(
    answer: str, answer_type: str = SET, aliases: Mapping[str, Sequence[str]] | None = None
) -> GoldAnswer:
    """Parse the gold answer of an official record. A list is split at commas, semicolons and line breaks.

    If an item contains a comma, better build the `GoldAnswer` directly: here it becomes two items, but an
    answer that has both is still correct.
    """
    text = clean_answer(answer)
    items = split_list(text) if answer_type == SET else [text]
    aliases = aliases or {}
    return GoldAnswer(
        tuple((item, *aliases.get(item, ()), *_parse_aliases(item)) for item in dict.fromkeys(items))
    )


def mark_answer(predicted: str, right: GoldAnswer) -> AnswerMarks:
    """Mark a predicted answer, as it is or without the words of a sentence around it, whichever is better."""
    readings = list(_iter_readings(clean_answer(predicted)))
    marks = max((_mark_text(text, right) for text in readings), key=lambda marks: (marks.correct, marks.f1))
    if marks.correct:
        return marks
    # "Ohio and Utah" can be one item of the gold answer; their order does not matter then either.
    parts = GoldAnswer(tuple(_split_items(right)))
    if len(parts.items) > len(right.items):
        marks = next((split for text in readings if (split := _mark_text(text, parts)).correct), marks)
    return marks


def _iter_readings(text: str) -> Iterator[str]:
    """Yield the text, and what remains if words that introduce or close a sentence are left out."""
    for _ in range(_MOST_INTRODUCTIONS):
        yield text
        if closing := _CLOSING.search(text):
            yield text[: closing.start()]
        if _NO_ITEM.match(text):
            yield "None"
        found = _INTRODUCTION.match(text) or _LEAD_IN.match(text) or _SENTENCE.match(text)
        if not found or found.end() == len(text):
            return
        text = clean_answer(text[found.end() :])


def _split_items(right: GoldAnswer) -> Iterator[tuple[str, ...]]:
    for names in right.items:
        parts = [names[0][start:end] for start, end in iter_pieces(names[0])]
        yield from (
            [(part,) for part in parts] if len(parts) > 1 and all(map(normalize_text, parts)) else [names]
        )


def _mark_text(text: str, right: GoldAnswer) -> AnswerMarks:
    pieces = AnswerPieces(text)
    if not normalize_text(pieces.text) or len(pieces.pieces) > MOST_ITEMS:
        return NOTHING
    # Longest names first, so that a short name cannot take a part of a longer one.
    found = sum(map(pieces.take_item, sorted(right.items, key=lambda names: -max(map(len, names)))))
    excess = pieces.count_left_over([name for item in right.items for name in item])
    recall, precision = found / len(right.items), found / (found + excess) if found else 0.0
    return AnswerMarks(precision, recall, found == len(right.items) and not excess)


def is_same_item(one: str, other: str) -> bool:
    """Return whether two texts name the same thing."""
    first, second = normalize_text(one), normalize_text(other)
    if not first or not second:
        return False
    left, right = _parse_amount(one), _parse_amount(other)
    if left and right:
        return left.agrees_with(right)
    if first == second or (_has_no_digits(first) and first.replace(" ", "") == second.replace(" ", "")):
        return True
    if (days := parse_dates(one)) and (others := parse_dates(other)):
        return bool(days & others)
    if first in _shorten_name(other) or second in _shorten_name(one):
        return True
    return _is_same_core(one, other) or _is_same_core(other, one)


def _is_same_core(one: str, other: str) -> bool:
    """Compare without titles and legal forms. Only the first text may have something in brackets."""
    if _BRACKETS.search(other):
        return False
    return _cut_affixes(_BRACKETS.sub("", one)) == _cut_affixes(other) or other.strip() in _TICKER.findall(
        one
    )


@lru_cache(maxsize=65536)
def _cut_affixes(text: str) -> str:
    plain = normalize_text(text)
    for affix in (_TITLE, _FORM, _RANK):
        plain = affix.sub("", plain)
    return plain


@lru_cache(maxsize=65536)
def normalize_text(text: str) -> str:
    """Remove case, accents, articles and punctuation; numbers in digits keep their decimal points."""
    if (code := text.strip(" .")) in STATE_CODES:
        return STATE_CODES[code]
    if not (text.isascii() and text.replace(" ", "").isalpha()):  # a shortcut for most names
        text = _fold_letters(text)
    text = _ARTICLE.sub("", " ".join(text.lower().split()))
    text = " ".join(_WORDS.get(word, word) for word in text.split())
    return _SHORT.get(text, text)


def _fold_letters(text: str) -> str:
    text = unicodedata.normalize("NFKD", text.casefold()).translate(_LETTERS)
    text = "".join(letter for letter in text if not unicodedata.combining(letter))
    text = re.sub(r"['’‘ʻʼ`´]", "", text)
    text = re.sub(r"\b(?:[^\W\d_]\.)+[^\W\d_]\b\.?", lambda dotted: dotted[0].replace(".", "") + " ", text)
    text = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", text)
    text = re.sub(r"(?:(?<=^)|(?<=[\s:(]))[-\u2212](?=\d)", "minus ", text)
    text = re.sub(r"(?<=\d)\.(?=\d)", "\0", text)
    return re.sub(r"[\W_]", lambda sign: "." if sign[0] == "\0" else " ", text)


def clean_answer(answer: str) -> str:
    """Strip an answer's lead-in, heading and list markers."""
    text = answer[:MOST_CHARACTERS].strip()
    text = _BOXED.sub(r"\1", text)
    text = re.sub(r"\*\*|__|`+|^#+\s", "", text)
    text = _LEAD_IN.sub("", text, count=1)
    text = _HEADING.sub("", text)
    if _FIRST_NUMBER.match(text):
        text = _NEXT_NUMBER.sub("; ", text)
    text = _BULLET.sub(" ", text)
    text = re.sub(r"^\[([^\[\]]*)\]$", r"\1", text.strip().rstrip(" ."))
    return re.sub(r'^["“]([^"“”]*)["”]$', r"\1", text).rstrip(" .").strip()


class AnswerPieces:
    """An answer split into pieces. An item is a run of one or more pieces, and is removed when found."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.pieces = list(iter_pieces(text))[: MOST_ITEMS + 1]
        self._taken: set[int] = set()
        self._found = 0
        self._runs: dict[str, list[range]] = {}
        # The longest runs first: "Trinidad and Tobago" is one item before it is two.
        for length in range(_RUN, 0, -1):
            for first in range(len(self.pieces) - length + 1):
                run = range(first, first + length)
                text = self._join_run(run)
                for key in {normalize_text(text), _cut_affixes(text)}:
                    self._runs.setdefault(key, []).append(run)

    def take_item(self, names: Sequence[str]) -> bool:
        """Find an item by any of its names, and remove it. Returns whether it was found."""
        run = next((run for run in self._iter_matches(names) if self._taken.isdisjoint(run)), None)
        self._taken.update(run or ())
        self._found += run is not None
        return run is not None

    def count_left_over(self, names: Sequence[str]) -> int:
        """Count the remaining items that are not in the gold answer; repeated items do not count."""
        count, previous = 0, -2
        states = [index for index in range(1, len(self.pieces)) if self._is_state_of_item(index)]
        # Either every place that was found has its state, or a state is an item of its own.
        skipped = self._taken.union(states if len(states) == self._found else ())
        for index in range(len(self.pieces)):
            text = self._join_run(range(index, index + 1))
            if (
                index in skipped
                or not normalize_text(text)
                or any(is_same_item(text, name) for name in names)
            ):
                continue
            # "Trinidad and Tobago" counts as one extra item, not two; after a further `and` a new one begins.
            joined = previous == index - 1 and self._is_joined(previous)
            count += not joined
            previous = -2 if joined else index
        return count

    def _is_state_of_item(self, index: int) -> bool:
        """Return whether a piece is the state that a found place is in, as in `Springfield, Illinois`."""
        before, state = (normalize_text(self._join_run(range(at, at + 1))) for at in (index - 1, index))
        between = self.text[self.pieces[index - 1][1] : self.pieces[index][0]].strip()
        of_item = index - 1 in self._taken and index not in self._taken
        return of_item and between == "," and state in STATES and before not in STATES

    def _iter_matches(self, names: Sequence[str]) -> Iterator[range]:
        keys = dict.fromkeys(
            key
            for name in names
            for key in (normalize_text(name), _cut_affixes(name), *sorted(_shorten_name(name)))
        )
        candidates = [run for key in keys for run in self._runs.get(key, ())]
        yield from self._iter_value_matches(names)
        for run in sorted(candidates, key=len, reverse=True):
            if len(run) > 1 or any(is_same_item(self._join_run(run), name) for name in names):
                yield run
        for index in range(len(self.pieces)):
            run = range(index, index + 1)
            if index not in self._taken and any(is_same_item(self._join_run(run), name) for name in names):
                yield run

    def _iter_value_matches(self, names: Sequence[str]) -> Iterator[range]:
        """Yield runs that are dates with commas, or numbers in words with `and`."""
        days = frozenset[Date]().union(*map(parse_dates, names))
        amounts = [amount for amount in map(parse_quantity, names) if amount]
        for length in (3, 2) if days or amounts else ():
            for first in range(len(self.pieces) - length + 1):
                run = range(first, first + length)
                text = self._join_run(run)
                amount = parse_quantity(text)
                if days & parse_dates(text) or (amount and any(map(amount.agrees_with, amounts))):
                    yield run

    def _join_run(self, run: range) -> str:
        return self.text[self.pieces[run[0]][0] : self.pieces[run[-1]][1]]

    def _is_joined(self, index: int) -> bool:
        """Return whether `and` follows a piece."""
        return "and" in self.text[self.pieces[index][1] : self.pieces[index + 1][0]].lower()


@lru_cache(maxsize=65536)
def _shorten_name(text: str) -> frozenset[str]:
    """Return shorter forms of a name, without titles, legal forms, initials or brackets."""
    cuts = (_TITLE, _FORM, _INITIAL)
    forms = set()
    for name in {text, _BRACKETS.sub("", text)}:
        plain = normalize_text(name)
        for number in range(len(cuts) + 1):
            for chosen in combinations(cuts, number):
                short = plain
                for cut in chosen:
                    short = cut.sub("", short).strip()
                forms.add(short)
    return frozenset(forms) - {""}


def _parse_aliases(item: str) -> list[str]:
    """Return the other names that an item gives in brackets."""
    return [name.strip() for name in (*_ALSO.findall(item), *_INITIALS.findall(item))]


def _parse_amount(text: str) -> Quantity | None:
    """Parse a number, also one that is repeated in brackets as in `fourteen (14)`."""
    return parse_quantity(text) or parse_quantity(_BRACKETS.sub("", text))


def _has_no_digits(text: str) -> bool:
    return not any(letter.isdigit() for letter in text)
