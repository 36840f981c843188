"""Parse the action out of a model's reply: `search[…]`, `open[…]` or `answer[…]`, also across lines.

    Thought: I need the founder first.
    Action 1: **search[founder of Orin Foods]**          → search[founder of Orin Foods]

The first action counts; text after it, such as made-up observations, is ignored. If a reply labels its
action, earlier mentions in its thoughts are ignored too, and so is everything up to a `</think>`, whether
the reply or its prompt has the `<think>`. Without brackets, the forms of other harnesses are accepted:
`search("…")`, `Action: search` with `Action Input: …`, `Final Answer: …`, and a tool call in JSON. Anything
else is no action, and the environment answers so.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Verb = Literal["search", "open", "answer"]

MOST_CHARACTERS = {"search": 400, "open": 400, "answer": 4000}
"""Longer arguments are cut."""
REPLY_CHARACTERS = 20_000
"""How much of a reply, without its thoughts, is searched for an action."""
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
_ACTION_INPUT = re.compile(
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
    """The text between the brackets, as one line."""

    def __str__(self) -> str:
        return f"{self.verb}[{self.text}]"


def normalize_action(reply: str) -> str:
    """Return the action of a reply in canonical form, as one line. Idempotent."""
    action = parse_action(reply)
    return str(action) if action else NONE


def parse_action(reply: str) -> SearchAction | None:
    """Return the action of a reply, or None."""
    text = _TAG.split(_THINKING.sub("\n", reply))[-1][:REPLY_CHARACTERS]
    if made_up := next(
        (match for match in _OBSERVATION.finditer(text) if text[: match.start()].strip()), None
    ):
        text = text[: made_up.start()]
    label = _LABEL.search(text)
    parts = [text[label.start() :], text] if label else [text]
    for part in parts:
        for action in _iter_actions(part):
            return action
    return None


def _iter_actions(text: str) -> Iterator[SearchAction]:
    """Yield the action that each notation finds, the most reliable notation first."""
    call, round_call = _CALL.search(text), _ROUND.search(text)
    if call and not (round_call and round_call.start() < call.start()):
        yield _make_action(call["verb"], _read_brackets(text[call.end() :]))
    if round_call:
        yield _make_action(
            round_call["verb"], round_call["double"] or round_call["single"] or round_call["bare"] or ""
        )
    yield from _parse_tool_call(text)
    for pattern in (_ACTION_INPUT, _LABELLED, _COLON):
        if match := pattern.search(text):
            yield _make_action(match["verb"], match["text"])


def _read_brackets(text: str) -> str:
    """Return the text up to the closing bracket, or to the end of the line if there is none."""
    depth = 1
    for index, letter in enumerate(text[: 2 * MOST_CHARACTERS["answer"]]):
        depth += (letter in _OPENING) - (letter in _CLOSING)
        if not depth:
            return text[:index].removesuffix("\\")
    return text.lstrip().partition("\n")[0].rstrip(" *_`\\")


def _parse_tool_call(text: str) -> Iterator[SearchAction]:
    """Parse a JSON tool call, as models trained on tools write it."""
    for brace in re.finditer(r"\{", text[: 2 * MOST_CHARACTERS["answer"]]):
        try:
            call, _ = json.JSONDecoder().raw_decode(text, brace.start())
        except (ValueError, RecursionError):
            continue
        name = _find_value(call, "name", "action", "tool")
        argument = _find_value(call, "arguments", "action_input", "parameters", "input", "query", "id")
        if isinstance(argument, dict):
            argument = next(iter(argument.values()), "")
        if isinstance(name, str) and name.lower() in _VERBS:
            joined = "; ".join(map(str, argument)) if isinstance(argument, list) else str(argument)
            yield _make_action(name, joined)
        return


def _find_value(call: dict[str, object], *keys: str) -> object:
    return next((call[key] for key in keys if key in call), "")


def _make_action(verb: str, text: str) -> SearchAction:
    """Build an action, stripping its text until nothing changes, so that it parses to itself again."""
    canonical_verb = _VERBS[verb.lower()]
    text = text.encode("utf-8", "replace").decode("utf-8")  # JSON can contain lone surrogates
    before = None
    while before != text:
        before, text = (
            text,
            _strip_quotes(
                _drop_unmatched_brackets(_join_lines(_TAG.sub(" ", text))[: MOST_CHARACTERS[canonical_verb]])
            ),
        )
    return SearchAction(canonical_verb, text)


def _join_lines(text: str) -> str:
    """Join lines into one; the items of a list are joined with semicolons."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    listed = len(lines) > 1 and any(map(_BULLET.match, lines))
    bare = [_BULLET.sub("", line) for line in lines]
    joined = "; ".join(line.rstrip(" ;,") for line in bare) if listed else " ".join(bare)
    return " ".join(joined.split())


def _drop_unmatched_brackets(text: str) -> str:
    """Drop unmatched brackets: they would end the action too early or never."""
    opened, unmatched = [], set()
    for bracket in _BRACKET.finditer(text):
        if bracket[0] in _OPENING:
            opened.append(bracket.start())
        elif opened:
            opened.pop()
        else:
            unmatched.add(bracket.start())
    unmatched.update(opened)
    return (
        "".join(letter for index, letter in enumerate(text) if index not in unmatched) if unmatched else text
    )


def _strip_quotes(text: str) -> str:
    """Strip emphasis and quotes around a text."""
    text = text.strip("*` ").rstrip("*` \\")
    quoted = len(text) > 1 and (text[0], text[-1]) in (("'", "'"), ('"', '"'), ("“", "”"))
    return text[1:-1] if quoted and text[0] not in text[1:-1] else text
