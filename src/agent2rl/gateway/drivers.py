"""Driver LLMs by name, and where they are asked.

    claude-opus-4-6   gpt-5.4   gemini-2.5-flash      at their maker's, with its key
    MODEL@URL                                         at anything compatible: vLLM, Ollama, a LiteLLM proxy

A URL is taken to speak every wire format; which ones it really speaks shows when it is asked.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from agent2rl.core.errors import UserError
from agent2rl.core.llm import Wire

WIRES: tuple[Wire, ...] = ("anthropic", "openai-responses", "openai-chat", "gemini")
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
    """For each wire format that it speaks, what comes before the format's own path: …/v1 before /messages."""
    key_names: tuple[str, ...]
    """The environment variables that may hold its key, the first that is set counts."""
    provider: str
    needs_key: bool = True

    def choose_wire(self, wanted: Sequence[Wire]) -> Wire:
        """The first of these that the driver speaks."""
        for one in wanted:
            if one in self.urls:
                return one
        raise UserError(
            f"{self.provider} does not speak {_join_wire_names(wanted)}, which is all that the agent speaks.",
            f"Put a LiteLLM proxy between them and name it: --driver {self.model}@http://127.0.0.1:4000.",
        )

    @property
    def compatible(self) -> bool:
        """Somebody else's server, of which no more is known than its address."""
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
    """The driver that a name means."""
    model, at, url = text.partition("@")
    if not MODEL.fullmatch(model):
        raise UserError(f"{text[:200]!r} names no model.", DRIVER_NAME_HINT)
    if at:
        return Driver(
            model, _build_base_urls(_validate_url(url)), (OWN_KEY,), urlsplit(url).netloc, needs_key=False
        )
    for maker in PROVIDER_PRESETS:
        if maker.models.match(model) and not set(model) & set(":/+"):
            return Driver(model, maker.urls, maker.key_names, maker.name)
    raise UserError(f"Whose model {model!r} is, its name does not tell.", DRIVER_NAME_HINT)


def _validate_url(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise UserError(f"The driver's URL is none: {error}.", DRIVER_NAME_HINT) from None
    if parts.scheme not in ("http", "https") or not parts.hostname or re.search(r"[\s\\%]", url):
        raise UserError("The driver has no URL that begins with http:// or https://.", DRIVER_NAME_HINT)
    if parts.username is not None or parts.query or parts.fragment:
        raise UserError(
            "The driver's URL holds a user, a query or a fragment.",
            f"A key belongs into {OWN_KEY}, where no record shows it. {DRIVER_NAME_HINT}",
        )
    return parts


def _build_base_urls(parts: SplitResult) -> dict[Wire, str]:
    """Whether or not the URL ends in a version: a path with one in it is OpenAI's base as it stands."""
    whole = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"
    bare = re.sub(r"/v\d+(?:alpha|beta)?$", "", whole)
    openai = whole if re.search(r"/v\d", parts.path) else f"{whole}/v1"
    return {
        "anthropic": f"{bare}/v1",
        "openai-responses": openai,
        "openai-chat": openai,
        "gemini": f"{bare}/v1beta",
    }


def _join_wire_names(wires: Sequence[Wire]) -> str:
    return " or ".join(WIRE_NAMES[wire] for wire in wires) or "any wire format"
