"""What a request may not ask of the provider, whichever model it names.

    refuse_elsewhere   that another model or another server answers
    refuse_stored      that something of the account is used, or work goes on behind the answer, uncounted
    refuse_costly      many answers at once, or an answer at another price than the table's
    refuse_fetching    that the provider searches, fetches or runs things: the sandbox has no network, and
                       a provider's tools would be one
    refuse_unknown     fields that are not in `allowed_fields`

Fields, tools and types of content are allowed by name, so that what a provider adds tomorrow is refused until
somebody has looked at it. The other lists here only give a better reason. A closed field is refused for being
there: an empty object is a way to say yes. Keys are compared as the most generous server reads them:
`googleSearch` is `google_search`.
"""

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

from agent2rl.core.llm import Wire
from agent2rl.gateway.allowed_fields import (
    CONTENT_TYPES,
    NESTED_FIELDS,
    PART_FIELDS,
    REQUEST_FIELDS,
    TOOL_FIELDS,
)
from agent2rl.gateway.drivers import WIRE_NAMES
from agent2rl.gateway.errors import RequestRefused

MAX_ANSWERS = 8
"""To one request, at most: `n`, `candidateCount`."""
REROUTING_FIELDS = {
    "models", "fallbacks", "contextwindowfallbacks", "contentpolicyfallbacks", "route", "apibase", "baseurl",
    "apikey", "extraheaders", "extrabody", "customllmprovider", "litellmparams", "modellist", "userconfig",
    "provider", "preset",
}  # fmt: skip
"""By which proxies let a client choose who answers."""
STORED_STATE_FIELDS = {
    "background": "Work behind the answer cannot be counted.",
    "conversation": "Conversations that are stored at the provider are not the run's.",
    "previousresponseid": "Responses that are stored at the provider may be another run's.",
    "thread": "Conversations that are stored at the provider are not the run's.",
    "prompt": "Prompts that are stored at the provider may bring other models and tools.",
    "cachedcontent": "Contents that are stored at the provider may bring other models and tools.",
}
STANDARD_PRICE_VALUES = {
    "servicetier": {"auto", "default", "standard", "standard_only", "flex"},
    "speed": {"standard"},
    "inferencegeo": {"global"},
}
SERVER_TOOL_FIELDS = {
    "mcpservers", "container", "websearchoptions", "searchparameters", "enablesearch", "plugins",
    "datasources",
}  # fmt: skip
CLIENT_TOOLS = {
    "anthropic": re.compile(r"custom|(bash|text_editor|computer|memory|tool_search_tool\w*)_\d{8}"),
    "openai-chat": re.compile(r"function|custom"),
    "openai-responses": re.compile(
        r"function|custom|local_shell|shell|apply_patch|computer\w*|namespace|tool_search"
    ),
}
"""Tools that the client runs itself. The provider searches among tools, which reaches nothing else."""
DATED_TYPE = re.compile(r"\w+_\d{8}")
URL_TYPE = "url"
LINK_KEYS = {
    "url", "uri", "imageurl", "fileurl", "videourl", "audiourl", "documenturl", "filedata", "fileuri",
    "gcsuri", "image", "video", "audio", "document",
}  # fmt: skip
FILE_ID_KEYS = {"fileid", "fileids"}
CONTENT_FIELDS = (
    "messages",
    "input",
    "contents",
    "system",
    "systeminstruction",
    "instructions",
    "prediction",
)
CONTENT_KEYS = {"system", "input", "content", "output"}
"""Whose values have a type that says what they are."""
HARMLESS_KEYS = {
    "type", "role", "content", "text", "id", "name", "input", "tool_use_id", "cache_control", "is_error",
    "thinking", "signature", "tool_calls", "tool_call_id", "function", "arguments", "call_id", "output",
    "status", "parts",
}  # fmt: skip
"""Keys of what is said that no provider fetches anything for."""
TOOL_DATA_KEYS = {"args", "response"}
"""Arguments and results of the agent's own tools, which may hold anything."""
CLOSED_TOOLS_HINT = "The provider's own tools are closed in this run: use what is in the sandbox."


@lru_cache(4096)
def _normalize_key(name: str) -> str:
    """A key as the most generous server reads it."""
    return name.replace("_", "").casefold()


def normalize_keys(object_: dict[str, Any]) -> dict[str, Any]:
    """An object by its plain keys. No two may be the same."""
    found = {_normalize_key(name): value for name, value in object_.items()}
    if len(found) < len(object_):
        raise RequestRefused(400, "Two keys of one object differ in nothing but their spelling.")
    return found


def refuse_rerouting(view: dict[str, Any]) -> None:
    if closed := sorted(REROUTING_FIELDS & view.keys()):
        raise RequestRefused(403, f"A request may not choose who answers it ({closed[0]}).", "Leave it out.")


def refuse_stored_state(wire: Wire, view: dict[str, Any]) -> None:
    for name, why in STORED_STATE_FIELDS.items():
        unset = view.get(name) is None or view[name] is False
        if not unset and not (name == "prompt" and wire != "openai-responses"):
            raise RequestRefused(403, f"{why} ({name})", "Leave it out.")


def refuse_unknown_fields(wire: Wire, request: dict[str, Any], besides: set[str]) -> None:
    """`besides` are further fields that may be at the top, by their plain names."""
    known = NORMALIZED_REQUEST_FIELDS[wire] | besides
    for name, value in request.items():
        if _normalize_key(name) not in known:
            raise _build_unknown_field_error(wire, name)
        if _normalize_key(name) in NORMALIZED_NESTED_FIELDS and isinstance(value, dict):
            for inner in value:
                if _normalize_key(inner) not in NORMALIZED_NESTED_FIELDS[_normalize_key(name)]:
                    raise _build_unknown_field_error(wire, f"{name}.{inner}")


def _build_unknown_field_error(wire: Wire, name: str) -> RequestRefused:
    return RequestRefused(
        400,
        f"Unknown request field {name[:80]!r}: only known fields of {WIRE_NAMES[wire]} are passed on.",
        "Leave it out.",
    )


def refuse_costly_options(view: dict[str, Any]) -> int:
    """How many answers are asked for."""
    for name, ordinary in STANDARD_PRICE_VALUES.items():
        value = view.get(name)
        if value is not None and not (isinstance(value, str) and value.casefold() in ordinary):
            raise RequestRefused(
                403, f"{name!r} {str(value)[:40]!r} is billed at another price.", "Leave it out."
            )
    config = view.get("generationconfig")
    places = [view, normalize_keys(config)] if isinstance(config, dict) else [view]
    asked = [place[name] for place in places for name in ("n", "candidatecount", "bestof") if place.get(name)]
    if any(type(number) is not int or not 0 < number <= MAX_ANSWERS for number in asked):
        raise RequestRefused(403, f"A request is answered at most {MAX_ANSWERS} times.", "Ask again instead.")
    return max(asked, default=1)


def refuse_server_tools(wire: Wire, view: dict[str, Any]) -> None:
    if closed := sorted(SERVER_TOOL_FIELDS & view.keys()):
        raise RequestRefused(403, f"The provider may not use {closed[0]!r} for the agent.", CLOSED_TOOLS_HINT)
    _refuse_tools(wire, view.get("tools"))
    for key, part in _iter_content_objects({name: view[name] for name in CONTENT_FIELDS if name in view}):
        simple = part.keys() <= HARMLESS_KEYS  # nearly all of them
        folded = part if simple else normalize_keys(part)
        kind = folded.get("type")
        _refuse_content(wire, _normalize_key(key), folded)
        if simple and not _is_suspicious_type(wire, kind):
            continue
        if "tools" in folded:
            _refuse_tools(wire, folded["tools"])
        if "definition" in folded:
            _refuse_tools(wire, [folded["definition"]])
        if _has_remote_link(wire, folded):
            raise RequestRefused(
                403, "The provider may not fetch anything for the agent.", "Send it as data."
            )
        if any(folded[name] is not None for name in FILE_ID_KEYS & folded.keys()):
            raise RequestRefused(
                403, "Files that are stored at the provider are not the run's.", "Send it as data."
            )
        if _is_suspicious_type(wire, kind):
            _refuse_tools(wire, [part])


def _refuse_content(wire: Wire, key: str, part: dict[str, Any]) -> None:
    """What is said must be of a kind that is known. `key` is the one that it was found under."""
    kind, unknown = part.get("type"), ""
    if wire == "gemini":
        unknown = next(
            (name for name in part if key == "parts" and _normalize_key(name) not in NORMALIZED_PART_FIELDS),
            "",
        )
    elif key in CONTENT_KEYS and kind is not None:
        unknown = "" if isinstance(kind, str) and kind in CONTENT_TYPES else str(kind)
    elif wire == "openai-responses" and key == "input" and not part.keys() & {"role", "content"}:
        unknown = "item_reference"
    if unknown:
        why = f"Content of the type {unknown[:60]!r} is not passed on."
        raise RequestRefused(403, why, "Send text, or data in the message itself.")


def _refuse_tools(wire: Wire, tools: Any) -> None:
    if tools is None:
        return
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise RequestRefused(400, "'tools' is a list of objects.")
    for tool in map(normalize_keys, tools):
        foreign = sorted(tool.keys() - NORMALIZED_TOOL_FIELDS[wire])
        if wire != "gemini" and not _runs_in_client(wire, tool):
            foreign = [str(tool.get("type"))]
        if foreign:
            raise RequestRefused(
                403,
                f"The provider may not run the tool {foreign[0][:60]!r} for the agent.",
                CLOSED_TOOLS_HINT,
            )
        if tool.get("type") == "namespace":
            _refuse_tools(wire, tool.get("tools"))


def _runs_in_client(wire: Wire, tool: dict[str, Any]) -> bool:
    kind = tool.get("type")
    if kind is None:
        return wire == "anthropic"
    if not isinstance(kind, str) or not CLIENT_TOOLS[wire].fullmatch(kind):
        return False
    place = tool.get("environment")
    local = place is None or (isinstance(place, dict) and normalize_keys(place).get("type") == "local")
    return kind != "shell" or local


def _has_remote_link(wire: Wire, part: dict[str, Any]) -> bool:
    if wire == "anthropic" and part.get("type") == URL_TYPE:
        return True
    for name in LINK_KEYS & part.keys():
        value = part[name]
        for link in value if isinstance(value, list) else [value]:
            if isinstance(link, str) and not _is_inline_data(link):
                return True
    return False


def _is_inline_data(link: str) -> bool:
    """A data URL, or bare base64. Asked the other way round, some reader finds a link where we see none."""
    scheme, colon, rest = link.partition(":")
    return not colon or (scheme.casefold() == "data" and ":" not in rest)


def _is_suspicious_type(wire: Wire, kind: Any) -> bool:
    """Whether Anthropic might take an object for a link or for a tool of its own."""
    return (
        wire == "anthropic"
        and isinstance(kind, str)
        and (kind == URL_TYPE or bool(DATED_TYPE.fullmatch(kind)))
    )


def _iter_content_objects(said: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every object in what was said, with the key that it stands under, but not those in the arguments and
    results of the agent's own tools."""
    left: list[tuple[str, Any]] = [item for item in said.items() if isinstance(item[1], (dict, list))]
    while left:
        key, here = left.pop()
        if isinstance(here, list):
            left += [(key, inner) for inner in here if isinstance(inner, (dict, list))]
            continue
        yield key, here
        kind = here.get("type")
        own = (
            TOOL_DATA_KEYS | {"input"}
            if isinstance(kind, str) and kind.endswith("tool_use")
            else TOOL_DATA_KEYS
        )
        left += [item for item in here.items() if isinstance(item[1], (dict, list)) and item[0] not in own]


def _normalize_names(names: Iterable[str]) -> frozenset[str]:
    return frozenset(map(_normalize_key, names))


NORMALIZED_REQUEST_FIELDS = {wire: _normalize_names(names) for wire, names in REQUEST_FIELDS.items()}
NORMALIZED_NESTED_FIELDS = {
    _normalize_key(name): _normalize_names(names) for name, names in NESTED_FIELDS.items()
}
NORMALIZED_TOOL_FIELDS = {wire: _normalize_names(names) for wire, names in TOOL_FIELDS.items()}
NORMALIZED_PART_FIELDS = _normalize_names(PART_FIELDS)
"""The lists of `allowed_fields` by their plain names."""
