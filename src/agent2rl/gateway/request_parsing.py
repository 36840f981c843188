"""Reads a request: which model it asks, whether it streams, and whether it may be passed on.

The body goes up byte for byte. So it must mean the same to everybody who reads it: it is UTF-8, no key stands
twice in an object, and no two keys that matter differ in spelling alone (some servers read `Model` as
`model`, others `web_search` as `webSearch`).

One thing is added: without `stream_options.include_usage` a stream of Chat Completions tells no tokens. The
chunk that tells them then goes no further than the gateway (`ParsedRequest.unasked`).
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agent2rl.core.llm import Wire
from agent2rl.gateway.errors import RequestRefused
from agent2rl.gateway.request_limits import (
    SERVER_TOOL_FIELDS,
    normalize_keys,
    refuse_costly_options,
    refuse_rerouting,
    refuse_server_tools,
    refuse_stored_state,
    refuse_unknown_fields,
)
from agent2rl.gateway.routing import RouteMatch

MAX_JSON_VALUES = 2_000_000
"""Commas and brackets of a body: each may become an object in memory."""
DEFAULT_OUTPUT_TOKENS = 8192
"""Tokens that an answer is taken to have, at most, where the request sets no limit."""
MAX_SHOWN_CHARACTERS = 200
GEMINI_COUNT_FIELD = "generatecontentrequest"
"""In which Gemini is asked for a request's tokens before that is made."""
INCLUDE_USAGE_JSON = b'"stream_options":{"include_usage":true}'


@dataclass(frozen=True)
class RequestRules:
    models: tuple[str, ...]
    """The driver's first."""
    server_tools: bool = False
    """Whether the provider may search, fetch and run things for the agent."""


@dataclass(frozen=True)
class ParsedRequest:
    model: str
    stream: bool
    body: bytes
    """As it goes up."""
    parsed: dict[str, Any]
    unasked: bool = False
    """The stream's usage was asked for by the gateway: the client does not expect it."""
    most_output: int = DEFAULT_OUTPUT_TOKENS
    """Tokens."""


def parse_json_body(body: bytes) -> dict[str, Any]:
    """The body's JSON, if it has only one meaning."""
    if sum(map(body.count, (b",", b"[", b"{"))) > MAX_JSON_VALUES:
        raise RequestRefused(413, f"A request holds at most {MAX_JSON_VALUES:,} values.")
    try:
        parsed = json.loads(
            body.decode("utf-8"), object_pairs_hook=_reject_duplicate_keys, parse_constant=_reject_constant
        )
    except (ValueError, RecursionError) as error:
        why = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)[:200]
        raise RequestRefused(400, f"The request is no JSON that everybody reads alike: {why}.") from None
    if not isinstance(parsed, dict):
        raise RequestRefused(400, "The request is no JSON object.")
    return parsed


def find_model_name(call: RouteMatch, parsed: dict[str, Any]) -> str:
    """The model that is asked for, whatever it is worth."""
    name = call.model or parsed.get("model", "")
    return name if isinstance(name, str) else json.dumps(name)


def validate_request(
    call: RouteMatch, body: bytes, parsed: dict[str, Any], rules: RequestRules
) -> ParsedRequest:
    """What is asked, if it may be."""
    view = normalize_keys(parsed)
    model = _resolve_model(call, view, rules.models)
    stream = call.stream or _read_flag(view, "stream")
    counting = call.wire == "gemini" and call.kind == "count"
    answers = _check_and_count_answers(call.wire, parsed, rules, {GEMINI_COUNT_FIELD} if counting else set())
    inner = view.get(GEMINI_COUNT_FIELD)
    if isinstance(inner, dict):
        _check_and_count_answers(call.wire, inner, rules, set())
    unasked = call.wire == "openai-chat" and stream and not _includes_usage(parsed)
    sent = _add_include_usage(body, parsed) if unasked else body
    return ParsedRequest(model, stream, sent, parsed, unasked, answers * _find_max_output_tokens(view))


def _check_and_count_answers(
    wire: Wire, request: dict[str, Any], rules: RequestRules, besides: set[str]
) -> int:
    """How many answers are asked for, if nothing is that may not be."""
    view = normalize_keys(request)
    refuse_rerouting(view)
    refuse_stored_state(wire, view)
    answers = refuse_costly_options(view)
    if rules.server_tools:
        besides = besides | SERVER_TOOL_FIELDS
    else:
        refuse_server_tools(wire, view)
    refuse_unknown_fields(wire, request, besides)
    return answers


def _reject_duplicate_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(name for place, (name, _) in enumerate(pairs) if name in dict(pairs[:place]))
        raise ValueError(f"the key {twice[:40]!r} stands twice in one object")
    return found


def _reject_constant(text: str) -> Any:
    raise ValueError(f"{text} is no number")


def _resolve_model(call: RouteMatch, view: dict[str, Any], allowed: Sequence[str]) -> str:
    inner = view.get(GEMINI_COUNT_FIELD)
    places = [view, normalize_keys(inner)] if isinstance(inner, dict) else [view]
    said = [place["model"] for place in places if "model" in place]
    if call.wire == "gemini":
        said = [name.removeprefix("models/") if isinstance(name, str) else name for name in said]
        said.append(call.model)
    if not said:
        raise RequestRefused(400, "The request names no model.", f'Ask "model": "{allowed[0]}".')
    for name in said:
        if not isinstance(name, str) or name not in allowed:
            shown = (
                name[:MAX_SHOWN_CHARACTERS]
                if isinstance(name, str)
                else json.dumps(name)[:MAX_SHOWN_CHARACTERS]
            )
            raise RequestRefused(
                403,
                f"This run is driven by {allowed[0]} and may not ask {shown!r}.",
                f"Ask for {_join_names(allowed)}, by this very name: another date or suffix is another "
                "model.",
            )
    if len(set(said)) > 1:
        raise RequestRefused(400, "The path and the body name different models.")
    return str(said[0])


def _join_names(names: Sequence[str]) -> str:
    return " or ".join(names)


def _read_flag(view: dict[str, Any], name: str) -> bool:
    value = view.get(name)
    if value is not None and not isinstance(value, bool):
        raise RequestRefused(400, f"{name!r} is true or false.")
    return bool(value)


def _includes_usage(parsed: dict[str, Any]) -> bool:
    options = parsed.get("stream_options")
    return isinstance(options, dict) and options.get("include_usage") is True


def _add_include_usage(body: bytes, parsed: dict[str, Any]) -> bytes:
    if "stream_options" not in parsed:
        head, brace, rest = body.partition(b"{")
        return head + brace + INCLUDE_USAGE_JSON + (b"," if parsed else b"") + rest
    options = parsed["stream_options"]
    if options is not None and not isinstance(options, dict):
        raise RequestRefused(400, "'stream_options' is an object.")
    return json.dumps(parsed | {"stream_options": {**(options or {}), "include_usage": True}}).encode()


def _find_max_output_tokens(view: dict[str, Any]) -> int:
    config = view.get("generationconfig")
    places = [view, normalize_keys(config)] if isinstance(config, dict) else [view]
    names = ("maxtokens", "maxcompletiontokens", "maxoutputtokens")
    found = [place[name] for place in places for name in names if type(place.get(name)) is int]
    return max(0, min(max(found, default=DEFAULT_OUTPUT_TOKENS), 1_000_000))
