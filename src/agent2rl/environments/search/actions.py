"""Finds the action in what a model wrote: `search[…]`, `open[…]` or `answer[…]`, wherever the lines break.

    Thought: I need the founder first.
    Action 1: **search[founder of Orin Foods]**          → search[founder of Orin Foods]

The first action counts; what follows it, such as observations that the model makes up, does not. Where a
reply labels its action, one that it only thinks about before does not count either, and nothing counts up to
a `</think>`, whether the reply or its prompt has the `<think>`. Without brackets, the
forms of other harnesses are understood: `search("…")`, `Action: search` with `Action Input: …`,
`Final Answer: …`, and a tool call in JSON. What is left is no action, and the world says so.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Verb = Literal["search", "open", "answer"]

MOST_CHARACTERS = {"search": 400, "open": 400, "answer": 4000}
"""What is longer is cut."""
REPLY_CHARACTERS = 20_000
"""Of a reply, thoughts aside; an action is not looked for behind them."""
NONE = "(no action)"

_VERBS: dict[str, Verb] = {
    "search": "search",
    "open": "open",
    "visit": "open",
    "answer": "answer",
    "finish": "answer",
}
_VERB = rf"(?P<verb>{'|'.join(_VERBS)})"
_EDGE = r"^[^\nA-Za-z0-9]*+"
_ACTION = rf"{_EDGE}action[ \t]*+\d*+[^\w\n:]*+:"
_CALL = re.compile(rf"(?<![A-Za-z]){_VERB}[\s*_`]{{0,5}}\\?[\[［【]", re.IGNORECASE)
_ROUND = re.compile(
    rf"(?<![A-Za-z]){_VERB}\(\s*+(?:\w++\s*+=\s*+)?"
    r"(?:\"(?P<double>[^\"]*+)\"|'(?P<single>[^'\n]*+)'|(?P<bare>[^()\n\"']*+))\s*+\)",
    re.IGNORECASE,
)
_LABEL = re.compile(rf"(?im){_ACTION}")
_SAID = re.compile(
    rf"(?im){_ACTION}[\W_]*+{_VERB}\b[\s*_`]*\n{_EDGE}"
    r"(?:action[ \t]*+)?input[ \t]*+\d*+[^\w\n:]*+:(?P<text>.*)$"
)
_LABELLED = re.compile(rf"(?im){_ACTION}[\W_]*+{_VERB}[ \t*_`]*(?::|[ \t])(?P<text>[^\n]*)$")
_COLON = re.compile(
    rf"(?im){_EDGE}(?:final[ \t]++)?{_VERB}[ \t*_`]*+:(?P<text>[^\n]*(?:\n[ \t]*(?:[-*]|\d+[.)])[^\n]*)*)"
)
_OBSERVATION = re.compile(rf"(?im){_EDGE}observation[ \t]*+\d*+[^\w\n:]*+:")
_THINKING = re.compile(r"(?is)<think(?:ing)?>.*?(?:</think(?:ing)?>|\Z)")
_TAG = re.compile(r"(?i)</?think(?:ing)?>")
_BULLET = re.compile(r"^(?:(?:[-*•]|\d++[.)])\s++)++")
_BRACKET = re.compile(r"[\[\]［］【】]")
_OPENING, _CLOSING = "[［【", "]］】"


@dataclass(frozen=True, slots=True)
class SearchAction:
    verb: Verb
    text: str
    """What stands between the brackets, in one line."""

    def __str__(self) -> str:
        return f"{self.verb}[{self.text}]"


def normalize_action(reply: str) -> str:
    """The action of a reply as the world takes it, in one line. Read again it is the same."""
    found = parse_action(reply)
    return str(found) if found else NONE


def parse_action(reply: str) -> SearchAction | None:
    """The action of a reply."""
    text = _TAG.split(_THINKING.sub("\n", reply))[-1][:REPLY_CHARACTERS]
    if made_up := next(
        (found for found in _OBSERVATION.finditer(text) if text[: found.start()].strip()), None
    ):
        text = text[: made_up.start()]
    label = _LABEL.search(text)
    parts = [text[label.start() :], text] if label else [text]
    for part in parts:
        for found in _iter_actions(part):
            return found
    return None


def _iter_actions(text: str) -> Iterator[SearchAction]:
    """The action by each way to write one, the surest first."""
    call, round_call = _CALL.search(text), _ROUND.search(text)
    if call and not (round_call and round_call.start() < call.start()):
        yield _make_action(call["verb"], _read_brackets(text[call.end() :]))
    if round_call:
        yield _make_action(
            round_call["verb"], round_call["double"] or round_call["single"] or round_call["bare"] or ""
        )
    yield from _parse_tool_call(text)
    for form in (_SAID, _LABELLED, _COLON):
        if found := form.search(text):
            yield _make_action(found["verb"], found["text"])


def _read_brackets(text: str) -> str:
    """Up to the bracket that closes; where none does, to the end of the line."""
    depth = 1
    for place, letter in enumerate(text[: 2 * MOST_CHARACTERS["answer"]]):
        depth += (letter in _OPENING) - (letter in _CLOSING)
        if not depth:
            return text[:place].removesuffix("\\")
    return text.lstrip().partition("\n")[0].rstrip(" *_`\\")


def _parse_tool_call(text: str) -> Iterator[SearchAction]:
    """A call as JSON, as models that were trained on tools write it."""
    for found in re.finditer(r"\{", text[: 2 * MOST_CHARACTERS["answer"]]):
        try:
            call, _ = json.JSONDecoder().raw_decode(text, found.start())
        except (ValueError, RecursionError):
            continue
        name = _find_value(call, "name", "action", "tool")
        given = _find_value(call, "arguments", "action_input", "parameters", "input", "query", "id")
        if isinstance(given, dict):
            given = next(iter(given.values()), "")
        if isinstance(name, str) and name.lower() in _VERBS:
            yield _make_action(name, "; ".join(map(str, given)) if isinstance(given, list) else str(given))
        return


def _find_value(call: dict[str, object], *keys: str) -> object:
    return next((call[key] for key in keys if key in call), "")


def _make_action(verb: str, text: str) -> SearchAction:
    """What it says is stripped until nothing can be, so that it reads the same the next time."""
    named = _VERBS[verb.lower()]
    text = text.encode("utf-8", "replace").decode("utf-8")  # half a character, as JSON can tell it
    before = None
    while before != text:
        before, text = (
            text,
            _strip_quotes(
                _drop_unmatched_brackets(_join_lines(_TAG.sub(" ", text))[: MOST_CHARACTERS[named]])
            ),
        )
    return SearchAction(named, text)


def _join_lines(text: str) -> str:
    """In one line: what was a list stays one."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    listed = len(lines) > 1 and any(map(_BULLET.match, lines))
    bare = [_BULLET.sub("", line) for line in lines]
    whole = "; ".join(line.rstrip(" ;,") for line in bare) if listed else " ".join(bare)
    return " ".join(whole.split())


def _drop_unmatched_brackets(text: str) -> str:
    """Without brackets that have no other half: they would end the action too early or never."""
    opened, lone = [], set()
    for bracket in _BRACKET.finditer(text):
        if bracket[0] in _OPENING:
            opened.append(bracket.start())
        elif opened:
            opened.pop()
        else:
            lone.add(bracket.start())
    lone.update(opened)
    return "".join(letter for place, letter in enumerate(text) if place not in lone) if lone else text


def _strip_quotes(text: str) -> str:
    """Without emphasis or quotes around it."""
    text = text.strip("*` ").rstrip("*` \\")
    quoted = len(text) > 1 and (text[0], text[-1]) in (("'", "'"), ('"', '"'), ("“", "”"))
    return text[1:-1] if quoted and text[0] not in text[1:-1] else text
