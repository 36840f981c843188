"""Search engines of the world outside: ddgs, Tavily, Brave, SerpAPI, SearXNG, and the pages that they find.

`engines` asks them, each at its own pace and with patience; `ddgs` is a package that asks without a key;
`page_reader` reads what was found. A key is sent to its engine and is in no message of ours.
"""

from agent2rl.environments.search.live.ddgs import DdgsBackend
from agent2rl.environments.search.live.engines import ENGINES, EngineBackend, make_searxng_engine

__all__ = ["ENGINES", "DdgsBackend", "EngineBackend", "make_searxng_engine"]
