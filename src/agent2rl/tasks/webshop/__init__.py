"""WebShop: find and buy what an instruction asks for, in text. Here is what its tasks share.

Not here yet: the task on the official catalogue. Its products are too many to travel with every example.
"""

from agent2rl.core.engine import Sampling
from agent2rl.environments.webshop.nouns import by
from agent2rl.environments.webshop.store import Store
from agent2rl.evaluators.episodes import Episodes
from agent2rl.evaluators.telling import Telling

RULE = f"webshop-1-nouns-by-{by()}"
"""Changes whenever the same actions could score otherwise."""

EVALUATOR = Episodes(
    rule=RULE, world=Store, telling=Telling(chat=""), group="category", sampling=Sampling(max_tokens=64)
)
