"""Reads a request: which model it asks, whether it streams, and whether it may be passed on.

The body goes up byte for byte. So it must mean the same to everybody who reads it: it is UTF-8, no key stands
twice in an object, and no two keys that matter differ in spelling alone (some servers read `Model` as
`model`, others `web_search` as `webSearch`).

One thing is added: without `stream_options.include_usage` a stream of Chat Completions tells no tokens. The
chunk that tells them then goes no further than the gateway (`Asked.unasked`).
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agent2rl.core.llm import Wire
from agent2rl.gateway.forms import Refused
from agent2rl.gateway.limits import (
    SERVICES,
    fold,
    refuse_costly,
    refuse_elsewhere,
    refuse_fetching,
    refuse_stored,
    refuse_unknown,
)
from agent2rl.gateway.wires import Call

VALUES = 2_000_000
"""Commas and brackets of a body: each may become an object in memory."""
OUTPUT = 8192
"""Tokens that an answer is taken to have, at most, where the request sets no limit."""
NAMES = 200
INNER = "generatecontentrequest"
"""In which Gemini is asked for a request's tokens before that is made."""
ADDED = b'"stream_options":{"include_usage":true}'


@dataclass(frozen=True)
class Rules:
    models: tuple[str, ...]
    """The driver's first."""
    server_tools: bool = False
    """Whether the provider may search, fetch and run things for the agent."""


@dataclass(frozen=True)
class Asked:
    model: str
    stream: bool
    body: bytes
    """As it goes up."""
    parsed: dict[str, Any]
    unasked: bool = False
    """The stream's usage was asked for by the gateway: the client does not expect it."""
    most_output: int = OUTPUT
    """Tokens."""


def loads(body: bytes) -> dict[str, Any]:
    """The body's JSON, if it has only one meaning."""
    if sum(map(body.count, (b",", b"[", b"{"))) > VALUES:
        raise Refused(413, f"A request holds at most {VALUES:,} values.")
    try:
        parsed = json.loads(body.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_number)
    except (ValueError, RecursionError) as error:
        why = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)[:200]
        raise Refused(400, f"The request is no JSON that everybody reads alike: {why}.") from None
    if not isinstance(parsed, dict):
        raise Refused(400, "The request is no JSON object.")
    return parsed


def named(call: Call, parsed: dict[str, Any]) -> str:
    """The model that is asked for, whatever it is worth."""
    name = call.model or parsed.get("model", "")
    return name if isinstance(name, str) else json.dumps(name)


def read(call: Call, body: bytes, parsed: dict[str, Any], rules: Rules) -> Asked:
    """What is asked, if it may be."""
    view = fold(parsed)
    model = _model(call, view, rules.models)
    stream = call.stream or _flag(view, "stream")
    counting = call.wire == "gemini" and call.kind == "count"
    answers = _answers(call.wire, parsed, rules, {INNER} if counting else set())
    inner = view.get(INNER)
    if isinstance(inner, dict):
        _answers(call.wire, inner, rules, set())
    unasked = call.wire == "openai-chat" and stream and not _tells(parsed)
    sent = _telling(body, parsed) if unasked else body
    return Asked(model, stream, sent, parsed, unasked, answers * _most_output(view))


def _answers(wire: Wire, request: dict[str, Any], rules: Rules, besides: set[str]) -> int:
    """How many answers are asked for, if nothing is that may not be."""
    view = fold(request)
    refuse_elsewhere(view)
    refuse_stored(wire, view)
    answers = refuse_costly(view)
    if rules.server_tools:
        besides = besides | SERVICES
    else:
        refuse_fetching(wire, view)
    refuse_unknown(wire, request, besides)
    return answers


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(name for place, (name, _) in enumerate(pairs) if name in dict(pairs[:place]))
        raise ValueError(f"the key {twice[:40]!r} stands twice in one object")
    return found


def _number(text: str) -> Any:
    raise ValueError(f"{text} is no number")


def _model(call: Call, view: dict[str, Any], allowed: Sequence[str]) -> str:
    inner = view.get(INNER)
    places = [view, fold(inner)] if isinstance(inner, dict) else [view]
    said = [place["model"] for place in places if "model" in place]
    if call.wire == "gemini":
        said = [name.removeprefix("models/") if isinstance(name, str) else name for name in said]
        said.append(call.model)
    if not said:
        raise Refused(400, "The request names no model.", f'Ask "model": "{allowed[0]}".')
    for name in said:
        if not isinstance(name, str) or name not in allowed:
            shown = name[:NAMES] if isinstance(name, str) else json.dumps(name)[:NAMES]
            raise Refused(
                403,
                f"This run is driven by {allowed[0]} and may not ask {shown!r}.",
                f"Ask for {_listed(allowed)}, by this very name: another date or suffix is another model.",
            )
    if len(set(said)) > 1:
        raise Refused(400, "The path and the body name different models.")
    return str(said[0])


def _listed(names: Sequence[str]) -> str:
    return " or ".join(names)


def _flag(view: dict[str, Any], name: str) -> bool:
    value = view.get(name)
    if value is not None and not isinstance(value, bool):
        raise Refused(400, f"{name!r} is true or false.")
    return bool(value)


def _tells(parsed: dict[str, Any]) -> bool:
    options = parsed.get("stream_options")
    return isinstance(options, dict) and options.get("include_usage") is True


def _telling(body: bytes, parsed: dict[str, Any]) -> bytes:
    if "stream_options" not in parsed:
        head, brace, rest = body.partition(b"{")
        return head + brace + ADDED + (b"," if parsed else b"") + rest
    options = parsed["stream_options"]
    if options is not None and not isinstance(options, dict):
        raise Refused(400, "'stream_options' is an object.")
    return json.dumps(parsed | {"stream_options": {**(options or {}), "include_usage": True}}).encode()


def _most_output(view: dict[str, Any]) -> int:
    config = view.get("generationconfig")
    places = [view, fold(config)] if isinstance(config, dict) else [view]
    names = ("maxtokens", "maxcompletiontokens", "maxoutputtokens")
    found = [place[name] for place in places for name in names if type(place.get(name)) is int]
    return max(0, min(max(found, default=OUTPUT), 1_000_000))
