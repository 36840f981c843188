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
from agent2rl.gateway.drivers import CALLED
from agent2rl.gateway.forms import Refused

ANSWERS = 8
"""To one request, at most: `n`, `candidateCount`."""
ELSEWHERE = {
    "models", "fallbacks", "contextwindowfallbacks", "contentpolicyfallbacks", "route", "apibase", "baseurl",
    "apikey", "extraheaders", "extrabody", "customllmprovider", "litellmparams", "modellist", "userconfig",
    "provider", "preset",
}  # fmt: skip
"""By which proxies let a client choose who answers."""
STORED = {
    "background": "Work behind the answer cannot be counted.",
    "conversation": "Conversations that are stored at the provider are not the run's.",
    "previousresponseid": "Responses that are stored at the provider may be another run's.",
    "thread": "Conversations that are stored at the provider are not the run's.",
    "prompt": "Prompts that are stored at the provider may bring other models and tools.",
    "cachedcontent": "Contents that are stored at the provider may bring other models and tools.",
}
ORDINARY = {
    "servicetier": {"auto", "default", "standard", "standard_only", "flex"},
    "speed": {"standard"},
    "inferencegeo": {"global"},
}
SERVICES = {
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
DATED = re.compile(r"\w+_\d{8}")
LINK = "url"
LINKS = {
    "url", "uri", "imageurl", "fileurl", "videourl", "audiourl", "documenturl", "filedata", "fileuri",
    "gcsuri", "image", "video", "audio", "document",
}  # fmt: skip
FILES = {"fileid", "fileids"}
SAID = ("messages", "input", "contents", "system", "systeminstruction", "instructions", "prediction")
CONTENT_KEYS = {"system", "input", "content", "output"}
"""Whose values have a type that says what they are."""
HARMLESS = {
    "type", "role", "content", "text", "id", "name", "input", "tool_use_id", "cache_control", "is_error",
    "thinking", "signature", "tool_calls", "tool_call_id", "function", "arguments", "call_id", "output",
    "status", "parts",
}  # fmt: skip
"""Keys of what is said that no provider fetches anything for."""
OWN = {"args", "response"}
"""Arguments and results of the agent's own tools, which may hold anything."""
MEND = "The provider's own tools are closed in this run: use what is in the sandbox."


@lru_cache(4096)
def _plain(name: str) -> str:
    """A key as the most generous server reads it."""
    return name.replace("_", "").casefold()


def fold(object_: dict[str, Any]) -> dict[str, Any]:
    """An object by its plain keys. No two may be the same."""
    found = {_plain(name): value for name, value in object_.items()}
    if len(found) < len(object_):
        raise Refused(400, "Two keys of one object differ in nothing but their spelling.")
    return found


def refuse_elsewhere(view: dict[str, Any]) -> None:
    if closed := sorted(ELSEWHERE & view.keys()):
        raise Refused(403, f"A request may not choose who answers it ({closed[0]}).", "Leave it out.")


def refuse_stored(wire: Wire, view: dict[str, Any]) -> None:
    for name, why in STORED.items():
        unset = view.get(name) is None or view[name] is False
        if not unset and not (name == "prompt" and wire != "openai-responses"):
            raise Refused(403, f"{why} ({name})", "Leave it out.")


def refuse_unknown(wire: Wire, request: dict[str, Any], besides: set[str]) -> None:
    """`besides` are further fields that may be at the top, by their plain names."""
    known = ALLOWED[wire] | besides
    for name, value in request.items():
        if _plain(name) not in known:
            raise _unknown(wire, name)
        if _plain(name) in NESTED and isinstance(value, dict):
            for inner in value:
                if _plain(inner) not in NESTED[_plain(name)]:
                    raise _unknown(wire, f"{name}.{inner}")


def _unknown(wire: Wire, name: str) -> Refused:
    return Refused(
        400,
        f"Unknown request field {name[:80]!r}: only known fields of {CALLED[wire]} are passed on.",
        "Leave it out.",
    )


def refuse_costly(view: dict[str, Any]) -> int:
    """How many answers are asked for."""
    for name, ordinary in ORDINARY.items():
        value = view.get(name)
        if value is not None and not (isinstance(value, str) and value.casefold() in ordinary):
            raise Refused(403, f"{name!r} {str(value)[:40]!r} is billed at another price.", "Leave it out.")
    config = view.get("generationconfig")
    places = [view, fold(config)] if isinstance(config, dict) else [view]
    asked = [place[name] for place in places for name in ("n", "candidatecount", "bestof") if place.get(name)]
    if any(type(number) is not int or not 0 < number <= ANSWERS for number in asked):
        raise Refused(403, f"A request is answered at most {ANSWERS} times.", "Ask again instead.")
    return max(asked, default=1)


def refuse_fetching(wire: Wire, view: dict[str, Any]) -> None:
    if closed := sorted(SERVICES & view.keys()):
        raise Refused(403, f"The provider may not use {closed[0]!r} for the agent.", MEND)
    _refuse_tools(wire, view.get("tools"))
    for key, part in _parts({name: view[name] for name in SAID if name in view}):
        simple = part.keys() <= HARMLESS  # nearly all of them
        folded = part if simple else fold(part)
        kind = folded.get("type")
        _refuse_content(wire, _plain(key), folded)
        if simple and not _dangerous(wire, kind):
            continue
        if "tools" in folded:
            _refuse_tools(wire, folded["tools"])
        if "definition" in folded:
            _refuse_tools(wire, [folded["definition"]])
        if _links(wire, folded):
            raise Refused(403, "The provider may not fetch anything for the agent.", "Send it as data.")
        if any(folded[name] is not None for name in FILES & folded.keys()):
            raise Refused(403, "Files that are stored at the provider are not the run's.", "Send it as data.")
        if _dangerous(wire, kind):
            _refuse_tools(wire, [part])


def _refuse_content(wire: Wire, key: str, part: dict[str, Any]) -> None:
    """What is said must be of a kind that is known. `key` is the one that it was found under."""
    kind, unknown = part.get("type"), ""
    if wire == "gemini":
        unknown = next((name for name in part if key == "parts" and _plain(name) not in PART), "")
    elif key in CONTENT_KEYS and kind is not None:
        unknown = "" if isinstance(kind, str) and kind in CONTENT_TYPES else str(kind)
    elif wire == "openai-responses" and key == "input" and not part.keys() & {"role", "content"}:
        unknown = "item_reference"
    if unknown:
        why = f"Content of the type {unknown[:60]!r} is not passed on."
        raise Refused(403, why, "Send text, or data in the message itself.")


def _refuse_tools(wire: Wire, tools: Any) -> None:
    if tools is None:
        return
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise Refused(400, "'tools' is a list of objects.")
    for tool in map(fold, tools):
        foreign = sorted(tool.keys() - TOOL[wire])
        if wire != "gemini" and not _runs_here(wire, tool):
            foreign = [str(tool.get("type"))]
        if foreign:
            raise Refused(403, f"The provider may not run the tool {foreign[0][:60]!r} for the agent.", MEND)
        if tool.get("type") == "namespace":
            _refuse_tools(wire, tool.get("tools"))


def _runs_here(wire: Wire, tool: dict[str, Any]) -> bool:
    kind = tool.get("type")
    if kind is None:
        return wire == "anthropic"
    if not isinstance(kind, str) or not CLIENT_TOOLS[wire].fullmatch(kind):
        return False
    place = tool.get("environment")
    local = place is None or (isinstance(place, dict) and fold(place).get("type") == "local")
    return kind != "shell" or local


def _links(wire: Wire, part: dict[str, Any]) -> bool:
    if wire == "anthropic" and part.get("type") == LINK:
        return True
    for name in LINKS & part.keys():
        value = part[name]
        for link in value if isinstance(value, list) else [value]:
            if isinstance(link, str) and not _is_inline_data(link):
                return True
    return False


def _is_inline_data(link: str) -> bool:
    """A data URL, or bare base64. Asked the other way round, some reader finds a link where we see none."""
    scheme, colon, rest = link.partition(":")
    return not colon or (scheme.casefold() == "data" and ":" not in rest)


def _dangerous(wire: Wire, kind: Any) -> bool:
    """Whether Anthropic might take an object for a link or for a tool of its own."""
    return wire == "anthropic" and isinstance(kind, str) and (kind == LINK or bool(DATED.fullmatch(kind)))


def _parts(said: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
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
        own = OWN | {"input"} if isinstance(kind, str) and kind.endswith("tool_use") else OWN
        left += [item for item in here.items() if isinstance(item[1], (dict, list)) and item[0] not in own]


def _plain_names(names: Iterable[str]) -> frozenset[str]:
    return frozenset(map(_plain, names))


ALLOWED = {wire: _plain_names(names) for wire, names in REQUEST_FIELDS.items()}
NESTED = {_plain(name): _plain_names(names) for name, names in NESTED_FIELDS.items()}
TOOL = {wire: _plain_names(names) for wire, names in TOOL_FIELDS.items()}
PART = _plain_names(PART_FIELDS)
"""The lists of `allowed_fields` by their plain names."""
