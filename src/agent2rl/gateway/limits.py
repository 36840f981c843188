"""What a request may not ask of the provider, whichever model it names.

    refuse_elsewhere   that another model or another server answers
    refuse_stored      that something of the account is used, or work goes on behind the answer, uncounted
    refuse_costly      many answers at once, or an answer at another price than the table's
    refuse_fetching    that the provider searches, fetches or runs things: the sandbox has no network, and
                       a provider's tools would be one

Tools are allowed by name, so that what a provider adds tomorrow is refused until somebody has looked at it.
Keys are compared as the most generous server reads them: `googleSearch` is `google_search`.
"""

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from agent2rl.core.llm import Wire
from agent2rl.gateway.forms import Refused

ANSWERS = 8
"""To one request, at most: `n`, `candidateCount`."""
ELSEWHERE = {
    "models", "fallbacks", "contextwindowfallbacks", "contentpolicyfallbacks", "route", "apibase", "baseurl",
    "apikey", "extraheaders", "customllmprovider", "litellmparams",
}  # fmt: skip
"""By which proxies let a client choose who answers."""
STORED = {
    "background": "Work behind the answer cannot be counted.",
    "conversation": "Conversations that are stored at the provider are not the run's.",
    "prompt": "Prompts that are stored at the provider may bring other models and tools.",
    "cachedcontent": "Contents that are stored at the provider may bring other models and tools.",
}
ORDINARY = {
    "servicetier": {"auto", "default", "standard", "standard_only", "flex"},
    "speed": {"standard"},
    "inferencegeo": {"global"},
}
SERVICES = {"mcpservers", "container", "websearchoptions", "plugins"}
CLIENT_TOOLS = {
    "anthropic": re.compile(r"custom|(bash|text_editor|computer|memory|tool_search_tool\w*)_\d{8}"),
    "openai-chat": re.compile(r"function|custom"),
    "openai-responses": re.compile(
        r"function|custom|local_shell|shell|apply_patch|computer\w*|namespace|tool_search"
    ),
}
"""Tools that the client runs itself. The provider searches among tools, which reaches nothing else."""
CLIENT_KEYS = {"functiondeclarations", "computeruse"}
"""The same in Gemini's form, where a tool is known by its key."""
DATED = re.compile(r"\w+_\d{8}")
LINK = "url"
LINKS = {"imageurl", "fileurl", "videourl", "audiourl", "filedata"}
SCHEME = re.compile(r"\s*(?!data:)[a-z][a-z0-9+.-]*:", re.I)
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
    for name in sorted(ELSEWHERE & view.keys()):
        if view[name]:
            raise Refused(403, f"A request may not choose who answers it ({name}).", "Leave it out.")


def refuse_stored(wire: Wire, view: dict[str, Any]) -> None:
    for name, why in STORED.items():
        if view.get(name) and not (name == "prompt" and wire != "openai-responses"):
            raise Refused(403, f"{why} ({name})", "Leave it out.")


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
    for name in sorted(SERVICES & view.keys()):
        if view[name]:
            raise Refused(403, f"The provider may not use {name!r} for the agent.", MEND)
    _refuse_tools(wire, view.get("tools"))
    said = [view.get(name) for name in ("messages", "input", "contents", "system")]
    for part in _parts(said):
        if part.keys() <= HARMLESS and not _dangerous(wire, part.get("type")):
            continue  # nearly all of them
        folded = fold(part)
        if isinstance(folded.get("tools"), list):
            _refuse_tools(wire, folded["tools"])
        if _links(wire, folded):
            raise Refused(403, "The provider may not fetch anything for the agent.", "Send it as data.")
        if _dangerous(wire, folded.get("type")):
            _refuse_tools(wire, [part])


def _refuse_tools(wire: Wire, tools: Any) -> None:
    if tools is None:
        return
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise Refused(400, "'tools' is a list of objects.")
    for tool in map(fold, tools):
        if wire == "gemini":
            foreign = sorted(name for name in tool.keys() - CLIENT_KEYS if tool[name] is not None)
        else:
            foreign = [] if _runs_here(wire, tool) else [str(tool.get("type"))]
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
    if wire == "gemini":
        return bool(part.get("fileuri"))
    if wire == "anthropic":
        return part.get("type") == LINK
    for name in LINKS & part.keys():
        link = part[name]
        link = fold(link).get("url") if isinstance(link, dict) else link
        if isinstance(link, str) and SCHEME.match(link):
            return True
    return False


def _dangerous(wire: Wire, kind: Any) -> bool:
    """Whether Anthropic might take an object for a link or for a tool of its own."""
    return wire == "anthropic" and isinstance(kind, str) and (kind == LINK or bool(DATED.fullmatch(kind)))


def _parts(value: Any) -> Iterator[dict[str, Any]]:
    """Every object in what was said, but not in the arguments and results of the agent's own tools."""
    left: list[Any] = [value]
    while left:
        here = left.pop()
        if isinstance(here, list):
            left += [inner for inner in here if isinstance(inner, (dict, list))]
            continue
        yield here
        kind = here.get("type")
        own = OWN | {"input"} if isinstance(kind, str) and kind.endswith("tool_use") else OWN
        left += [inner for name, inner in here.items() if isinstance(inner, (dict, list)) and name not in own]
