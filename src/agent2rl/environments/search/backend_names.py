"""Backends by name, for the harness: it has the network, and the keys that some of them want.

ddgs                 public search pages, by the package of that name; no key
tavily               TAVILY_API_KEY
brave                BRAVE_API_KEY
serpapi              SERPAPI_API_KEY
searxng:URL          an instance of SearXNG
local:FOLDER         documents.jsonl, or .txt and .md files
replay:FILE          what --record-searches kept, and nothing else
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
"""The environment variables that may hold one."""
NAMES = ("ddgs", *ENGINES, "searxng:URL", "local:FOLDER", "replay:FILE")
KNOWN = f"Backends: {', '.join(NAMES)}."


def resolve_name(name: str) -> str:
    """The name that means the same from anywhere: with a whole path."""
    head, _, argument = name.partition(":")
    return f"{head}:{Path(argument).resolve()}" if head in ("local", "replay") and argument else name


def is_live(name: str) -> bool:
    """Whether it may answer otherwise tomorrow."""
    return name.partition(":")[0] not in ("local", "replay")


def open_backend(name: str, keys: Mapping[str, str]) -> Backend:
    """The backend of this name, ready to be asked; `keys` are the variables of `KEYS` that are set."""
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
                    f"The search backend {head} wants a key.", f"Set {engine.key} for the harness."
                )
            return EngineBackend(engine, key)
    raise UserError(f"There is no search backend {name!r}.", KNOWN)
