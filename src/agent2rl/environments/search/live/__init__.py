"""Search engines of the world outside: ddgs, Tavily, Brave, SerpAPI, SearXNG, and the pages that they find.

`engines` asks them, each at its own pace and with patience; `ddgs` is a package that asks without a key;
`pages` reads what was found. A key is sent to its engine and is in no message of ours.
"""

from agent2rl.environments.search.live.ddgs import Ddgs
from agent2rl.environments.search.live.engines import ENGINES, Live, searxng

__all__ = ["ENGINES", "Ddgs", "Live", "searxng"]
