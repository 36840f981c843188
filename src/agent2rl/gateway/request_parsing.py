"""Parse a request: its route, its model, whether it streams, and whether it may be forwarded.

Nothing of a client's path or query is forwarded: the path must match a known one exactly, and the
provider's URL is built from scratch. The body is forwarded byte for byte, so it must mean the same to every
parser: UTF-8, no repeated keys, and no two keys that differ only in spelling. One thing is added: a Chat
Completions stream reports tokens only with `stream_options.include_usage`; the chunk that reports them is
then not forwarded.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import parse_qs, quote

from agent2rl.core.llm import Wire
from agent2rl.gateway.drivers import WIRE_NAMES, Driver
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

# Routing

Kind = Literal["generate", "count", "list"]

MODEL_PATTERN = r"(?P<model>[A-Za-z0-9._:/+-]+)"
FIXED_PATHS: Mapping[str, tuple[Wire, Kind]] = {
    "/messages": ("anthropic", "generate"),
    "/messages/count_tokens": ("anthropic", "count"),
    "/chat/completions": ("openai-chat", "generate"),
    "/responses": ("openai-responses", "generate"),
}
GEMINI_PATH = re.compile(
    rf"(?:/v1(?:alpha|beta)?)?/models/{MODEL_PATTERN}:(?P<method>generateContent|streamGenerateContent|countTokens)"
)
LIST_PATH = re.compile(rf"(?P<version>/v1(?:alpha|beta)?)?/models(?:/{MODEL_PATTERN})?")
KNOWN_PATHS = (
    "POST /v1/messages, /v1/messages/count_tokens, /v1/chat/completions, /v1/responses, "
    "/v1beta/models/MODEL:generateContent, :streamGenerateContent?alt=sse, :countTokens; GET /v1/models"
)


@dataclass(frozen=True)
class RouteMatch:
    """What a request's path determines."""

    wire: Wire
    kind: Kind
    model: str | None = None
    """If the path names it."""
    stream: bool = False
    """If the path says so."""
    beta: bool = False
    """Anthropic's `?beta=true`."""


def guess_wire(path: str, anthropic: bool) -> Wire:
    """Guess the client's wire format from an unknown path, for the error response."""
    if anthropic or "/messages" in path:
        return "anthropic"
    if path.startswith(("/v1beta", "/v1alpha")) or GEMINI_PATH.fullmatch(path):
        return "gemini"
    return "openai-responses" if path.endswith("/responses") else "openai-chat"


def route_request(method: str, path: str, query: str) -> RouteMatch:
    # The first request of Claude Code is `HEAD /`.
    if method in ("GET", "HEAD") and (match := LIST_PATH.fullmatch("/models" if path == "/" else path)):
        versioned = match["version"] in ("/v1beta", "/v1alpha")
        return RouteMatch("gemini" if versioned else "openai-chat", "list", match["model"])
    call = _match_path(path, parse_qs(query))
    if call is None:
        raise RequestRefused(404, "Unknown path.", f"Known paths: {KNOWN_PATHS}.")
    if method != "POST":
        raise RequestRefused(405, f"This path takes POST, not {method[:20]}.")
    return call


def _match_path(path: str, query: Mapping[str, list[str]]) -> RouteMatch | None:
    if route := FIXED_PATHS.get(path.removeprefix("/v1")):
        return RouteMatch(*route, beta=query.get("beta") == ["true"])
    if not (match := GEMINI_PATH.fullmatch(path)):
        return None
    stream = match["method"] == "streamGenerateContent"
    if stream and query.get("alt") != ["sse"]:
        raise RequestRefused(
            400, "A stream in the form of one JSON array cannot be metered.", "Add ?alt=sse to the URL."
        )
    return RouteMatch(
        "gemini", "count" if match["method"] == "countTokens" else "generate", match["model"], stream
    )


def build_provider_url(driver: Driver, call: RouteMatch, model: str, stream: bool) -> str:
    """Return the provider's URL for a request."""
    base = driver.urls.get(call.wire)
    if base is None:
        supported = ", ".join(WIRE_NAMES[wire] for wire in driver.urls)
        raise RequestRefused(
            404,
            f"{driver.provider} does not speak {WIRE_NAMES[call.wire]}.",
            f"This run's driver speaks: {supported}.",
        )
    match call.wire:
        case "anthropic":
            counting = "/count_tokens" if call.kind == "count" else ""
            return f"{base}/messages{counting}{'?beta=true' if call.beta else ''}"
        case "openai-chat":
            return f"{base}/chat/completions"
        case "openai-responses":
            return f"{base}/responses"
        case "gemini":
            method = "streamGenerateContent?alt=sse" if stream else "generateContent"
            method = "countTokens" if call.kind == "count" else method
            return f"{base}/models/{quote(model, safe='/:')}:{method}"


# Parsing and validation

MAX_JSON_VALUES = 2_000_000
"""Maximum commas and brackets of a body: each may become an object in memory."""
DEFAULT_OUTPUT_TOKENS = 8192
"""Assumed maximum length of an answer if the request sets no limit."""
MAX_SHOWN_CHARACTERS = 200
GEMINI_COUNT_FIELD = "generatecontentrequest"
"""Gemini's field with the request whose tokens are to be counted."""
INCLUDE_USAGE_JSON = b'"stream_options":{"include_usage":true}'


@dataclass(frozen=True)
class RequestRules:
    models: tuple[str, ...]
    """Allowed models, the driver first."""
    server_tools: bool = False
    """Whether the provider may search, fetch and run things for the agent."""


@dataclass(frozen=True)
class ParsedRequest:
    model: str
    stream: bool
    body: bytes
    """As sent to the provider."""
    parsed: dict[str, Any]
    unasked: bool = False
    """Whether the gateway, not the client, requested the stream's usage."""
    most_output: int = DEFAULT_OUTPUT_TOKENS
    """Maximum output tokens."""


def parse_json_body(body: bytes) -> dict[str, Any]:
    """Return the body's JSON; refuse it if parsers could read it differently."""
    if sum(map(body.count, (b",", b"[", b"{"))) > MAX_JSON_VALUES:
        raise RequestRefused(413, f"The request has more than {MAX_JSON_VALUES:,} JSON values.")
    try:
        parsed = json.loads(
            body.decode("utf-8"), object_pairs_hook=_reject_duplicate_keys, parse_constant=_reject_constant
        )
    except (ValueError, RecursionError) as error:
        why = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)[:200]
        raise RequestRefused(400, f"The request is not valid, unambiguous JSON: {why}.") from None
    if not isinstance(parsed, dict):
        raise RequestRefused(400, "The request is not a JSON object.")
    return parsed


def find_model_name(call: RouteMatch, parsed: dict[str, Any]) -> str:
    """Return the requested model, without validation."""
    name = call.model or parsed.get("model", "")
    return name if isinstance(name, str) else json.dumps(name)


def validate_request(
    call: RouteMatch, body: bytes, parsed: dict[str, Any], rules: RequestRules
) -> ParsedRequest:
    """Return the parsed request, or refuse it."""
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
    """Apply all limits; return the number of answers requested."""
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
    object_ = dict(pairs)
    if len(object_) < len(pairs):
        twice = next(name for index, (name, _) in enumerate(pairs) if name in dict(pairs[:index]))
        raise ValueError(f"the key {twice[:40]!r} is repeated in one object")
    return object_


def _reject_constant(text: str) -> Any:
    raise ValueError(f"{text} is not a number in JSON")


def _resolve_model(call: RouteMatch, view: dict[str, Any], allowed: Sequence[str]) -> str:
    inner = view.get(GEMINI_COUNT_FIELD)
    objects = [view, normalize_keys(inner)] if isinstance(inner, dict) else [view]
    names = [part["model"] for part in objects if "model" in part]
    if call.wire == "gemini":
        names = [name.removeprefix("models/") if isinstance(name, str) else name for name in names]
        names.append(call.model)
    if not names:
        raise RequestRefused(400, "The request names no model.", f'Set "model": "{allowed[0]}".')
    for name in names:
        if not isinstance(name, str) or name not in allowed:
            shown = (
                name[:MAX_SHOWN_CHARACTERS]
                if isinstance(name, str)
                else json.dumps(name)[:MAX_SHOWN_CHARACTERS]
            )
            raise RequestRefused(
                403,
                f"This run is driven by {allowed[0]} and may not use {shown!r}.",
                f"Use exactly this name: {_join_names(allowed)}. Another date or suffix is another model.",
            )
    if len(set(names)) > 1:
        raise RequestRefused(400, "The path and the body name different models.")
    return str(names[0])


def _join_names(names: Sequence[str]) -> str:
    return " or ".join(names)


def _read_flag(view: dict[str, Any], name: str) -> bool:
    value = view.get(name)
    if value is not None and not isinstance(value, bool):
        raise RequestRefused(400, f"{name!r} must be true or false.")
    return bool(value)


def _includes_usage(parsed: dict[str, Any]) -> bool:
    options = parsed.get("stream_options")
    return isinstance(options, dict) and options.get("include_usage") is True


def _add_include_usage(body: bytes, parsed: dict[str, Any]) -> bytes:
    if "stream_options" not in parsed:
        # Put into the bytes, so that all else stays as the client wrote it.
        head, brace, rest = body.partition(b"{")
        return head + brace + INCLUDE_USAGE_JSON + (b"," if parsed else b"") + rest
    options = parsed["stream_options"]
    if options is not None and not isinstance(options, dict):
        raise RequestRefused(400, "'stream_options' must be an object.")
    return json.dumps(parsed | {"stream_options": {**(options or {}), "include_usage": True}}).encode()


def _find_max_output_tokens(view: dict[str, Any]) -> int:
    config = view.get("generationconfig")
    objects = [view, normalize_keys(config)] if isinstance(config, dict) else [view]
    names = ("maxtokens", "maxcompletiontokens", "maxoutputtokens")
    limits = [part[name] for part in objects for name in names if type(part.get(name)) is int]
    return max(0, min(max(limits, default=DEFAULT_OUTPUT_TOKENS), 1_000_000))
