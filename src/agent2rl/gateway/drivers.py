"""Parse driver LLM names into providers, URLs and keys.

    claude-opus-4-6   gpt-5.4   gemini-2.5-flash      at their provider, with its key
    MODEL@URL                                         at any compatible server: vLLM, Ollama, a LiteLLM proxy

A URL is assumed to speak every wire format; requests show which ones it really speaks.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from agent2rl.core.errors import UserError
from agent2rl.core.llm import Wire

WIRE_NAMES: Mapping[Wire, str] = {
    "anthropic": "Anthropic Messages",
    "openai-responses": "OpenAI Responses",
    "openai-chat": "OpenAI Chat Completions",
    "gemini": "Gemini generateContent",
}
MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/+-]{0,199}")
DRIVER_NAME_HINT = (
    "Write the name of a model of Anthropic (claude-…), OpenAI (gpt-…, o3, …) or Google (gemini-…), "
    "or MODEL@URL for any compatible endpoint, e.g. Qwen/Qwen3-32B@http://127.0.0.1:8000/v1."
)
OWN_KEY = "AGENT2RL_DRIVER_KEY"


@dataclass(frozen=True)
class Driver:
    model: str
    urls: Mapping[Wire, str]
    """Base URL for each supported wire format, without the format's own path: …/v1 before /messages."""
    key_names: tuple[str, ...]
    """Environment variables that may hold its key; the first one that is set is used."""
    provider: str
    needs_key: bool = True

    def choose_wire(self, wires: Sequence[Wire]) -> Wire:
        """Return the first of these wire formats that the driver speaks."""
        for wire in wires:
            if wire in self.urls:
                return wire
        raise UserError(
            f"{self.provider} does not speak {_join_wire_names(wires)}, which is all that the agent speaks.",
            f"Start a LiteLLM proxy and use it: --driver {self.model}@http://127.0.0.1:4000.",
        )

    @property
    def compatible(self) -> bool:
        """Whether it is a compatible server of which only the URL is known."""
        return not self.needs_key


@dataclass(frozen=True)
class _ProviderPreset:
    name: str
    models: re.Pattern[str]
    urls: Mapping[Wire, str]
    key_names: tuple[str, ...]


PROVIDER_PRESETS = (
    _ProviderPreset(
        "Anthropic",
        re.compile(r"claude-"),
        {"anthropic": "https://api.anthropic.com/v1", "openai-chat": "https://api.anthropic.com/v1"},
        ("ANTHROPIC_API_KEY",),
    ),
    _ProviderPreset(
        "OpenAI",
        re.compile(r"gpt-|chatgpt-|codex-|o\d"),
        {"openai-responses": "https://api.openai.com/v1", "openai-chat": "https://api.openai.com/v1"},
        ("OPENAI_API_KEY",),
    ),
    _ProviderPreset(
        "Google",
        re.compile(r"gemini-"),
        {
            "gemini": "https://generativelanguage.googleapis.com/v1beta",
            "openai-chat": "https://generativelanguage.googleapis.com/v1beta/openai",
        },
        ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
    ),
)


def parse_driver(text: str) -> Driver:
    """Return the driver of this name."""
    model, at, url = text.partition("@")
    if not MODEL.fullmatch(model):
        raise UserError(f"{text[:200]!r} is not a model name.", DRIVER_NAME_HINT)
    if at:
        return Driver(
            model, _build_base_urls(_validate_url(url)), (OWN_KEY,), urlsplit(url).netloc, needs_key=False
        )
    for preset in PROVIDER_PRESETS:
        if preset.models.match(model) and not set(model) & set(":/+"):
            return Driver(model, preset.urls, preset.key_names, preset.name)
    raise UserError(f"The provider of {model!r} is unknown.", DRIVER_NAME_HINT)


def _validate_url(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise UserError(f"Invalid driver URL: {error}.", DRIVER_NAME_HINT) from None
    if parts.scheme not in ("http", "https") or not parts.hostname or re.search(r"[\s\\%]", url):
        raise UserError("The driver's URL must start with http:// or https://.", DRIVER_NAME_HINT)
    if parts.username is not None or parts.query or parts.fragment:
        raise UserError(
            "The driver's URL must not contain a user, a query or a fragment.",
            f"Put a key into {OWN_KEY}, which is never recorded. {DRIVER_NAME_HINT}",
        )
    return parts


def _build_base_urls(parts: SplitResult) -> dict[Wire, str]:
    """Return the base URLs, whether or not the URL ends in a version.

    A path that contains a version is OpenAI's base URL as it is.
    """
    base = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"
    bare = re.sub(r"/v\d+(?:alpha|beta)?$", "", base)
    openai = base if re.search(r"/v\d", parts.path) else f"{base}/v1"
    return {
        "anthropic": f"{bare}/v1",
        "openai-responses": openai,
        "openai-chat": openai,
        "gemini": f"{bare}/v1beta",
    }


def _join_wire_names(wires: Sequence[Wire]) -> str:
    return " or ".join(WIRE_NAMES[wire] for wire in wires) or "any wire format"
