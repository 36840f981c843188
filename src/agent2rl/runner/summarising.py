"""A language model that sums a run up: named as judges are, and asked through a gateway that meters it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from agent2rl.core.engine import Engine, Message, Sampling
from agent2rl.core.llm import Usage
from agent2rl.runner import judges
from agent2rl.runner.settings import Settings

MAX_TOKENS = 2000


@dataclass(frozen=True)
class Summariser:
    engine: Engine
    usage: Callable[[], Usage] | None
    """What was asked of it so far, where that is metered."""

    def __call__(self, question: str) -> str:
        chat = (Message("user", question),)
        return self.engine.generate([chat], Sampling(max_tokens=MAX_TOKENS))[0].text


@contextmanager
def summariser(name: str, settings: Settings) -> Iterator[Summariser]:
    """The model that a name means, while the context lasts."""
    judges.require(name)
    with judges.judge(name, settings) as judge:
        yield Summariser(judge.engine, judge.usage)
