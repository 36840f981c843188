"""What a path asks for, and where that is asked of the provider.

Nothing of a client's path or query goes up: the path must be one of these, letter for letter, and the
provider's is made anew. So no trick with slashes, dots, escapes or other hosts reaches anybody.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal
from urllib.parse import parse_qs, quote

from agent2rl.core.llm import Wire
from agent2rl.gateway.drivers import WIRE_NAMES, Driver
from agent2rl.gateway.errors import RequestRefused

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
    """What is asked for, as far as the path tells."""

    wire: Wire
    kind: Kind
    model: str | None = None
    """Where the path names it."""
    stream: bool = False
    """Where the path says so."""
    beta: bool = False
    """Anthropic's `?beta=true`."""


def guess_wire(path: str, anthropic: bool) -> Wire:
    """The wire format in which somebody is to be answered whose path nobody knows."""
    if anthropic or "/messages" in path:
        return "anthropic"
    if path.startswith(("/v1beta", "/v1alpha")) or GEMINI_PATH.fullmatch(path):
        return "gemini"
    return "openai-responses" if path.endswith("/responses") else "openai-chat"


def route_request(method: str, path: str, query: str) -> RouteMatch:
    if method in ("GET", "HEAD") and (found := LIST_PATH.fullmatch("/models" if path == "/" else path)):
        versioned = found["version"] in ("/v1beta", "/v1alpha")
        return RouteMatch("gemini" if versioned else "openai-chat", "list", found["model"])
    call = _match_path(path, parse_qs(query))
    if call is None:
        raise RequestRefused(404, "There is nothing at this path.", f"There is: {KNOWN_PATHS}.")
    if method != "POST":
        raise RequestRefused(405, f"This path takes POST, not {method[:20]}.")
    return call


def _match_path(path: str, query: Mapping[str, list[str]]) -> RouteMatch | None:
    if known := FIXED_PATHS.get(path.removeprefix("/v1")):
        return RouteMatch(*known, beta=query.get("beta") == ["true"])
    if not (found := GEMINI_PATH.fullmatch(path)):
        return None
    stream = found["method"] == "streamGenerateContent"
    if stream and query.get("alt") != ["sse"]:
        raise RequestRefused(
            400, "A stream that is one long JSON array cannot be counted.", "Ask with ?alt=sse."
        )
    return RouteMatch(
        "gemini", "count" if found["method"] == "countTokens" else "generate", found["model"], stream
    )


def build_provider_url(driver: Driver, call: RouteMatch, model: str, stream: bool) -> str:
    """The provider's URL for it."""
    base = driver.urls.get(call.wire)
    if base is None:
        spoken = ", ".join(WIRE_NAMES[wire] for wire in driver.urls)
        raise RequestRefused(
            404,
            f"{driver.provider} does not speak {WIRE_NAMES[call.wire]}.",
            f"This run's driver speaks: {spoken}.",
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
