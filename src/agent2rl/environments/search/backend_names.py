"""Open search backends by name, in the harness, which has the network and the API keys.

ddgs                 public search pages, through the package ddgs; no key
tavily               TAVILY_API_KEY
brave                BRAVE_API_KEY
serpapi              SERPAPI_API_KEY
searxng:URL          a SearXNG instance
local:FOLDER         documents.jsonl, or .txt and .md files
replay:FILE          only what --record-searches recorded
"""

from collections.abc import Mapping
from pathlib import Path

from agent2rl.core.errors import UserError
from agent2rl.environments.search.backends import Backend, ReplayBackend, read_corpus
from agent2rl.environments.search.search_engines import (
    ENGINES,
    DdgsBackend,
    EngineBackend,
    make_searxng_engine,
)

KEYS = tuple(engine.key for engine in ENGINES.values() if engine.key)
"""The environment variables that hold API keys."""
NAMES = ("ddgs", *ENGINES, "searxng:URL", "local:FOLDER", "replay:FILE")
KNOWN = f"Backends: {', '.join(NAMES)}."


def resolve_name(name: str) -> str:
    """Make a path in the name absolute, so that it is valid from any directory."""
    head, _, argument = name.partition(":")
    return f"{head}:{Path(argument).resolve()}" if head in ("local", "replay") and argument else name


def is_live(name: str) -> bool:
    """Return whether the backend's answers can change over time."""
    return name.partition(":")[0] not in ("local", "replay")


def open_backend(name: str, keys: Mapping[str, str]) -> Backend:
    """Open the backend with this name; `keys` are the variables of `KEYS` that are set."""
    head, _, argument = name.partition(":")
    match head:
        case "searxng" if argument:
            return EngineBackend(make_searxng_engine(argument))
        case "local" if argument:
            return read_corpus(Path(argument))
        case "replay" if argument:
            return ReplayBackend(Path(argument))
        case "ddgs" if not argument:
            return DdgsBackend()
        case _ if head in ENGINES and not argument:
            engine = ENGINES[head]
            key = keys.get(engine.key or "", "").strip()
            if not key or not key.isascii() or not key.isprintable():
                raise UserError(
                    f"The search backend {head} needs an API key.", f"Set {engine.key} for the harness."
                )
            return EngineBackend(engine, key)
    raise UserError(f"There is no search backend {name!r}.", KNOWN)
