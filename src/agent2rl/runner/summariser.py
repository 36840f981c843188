"""A language model that sums a run up: named as judges are, and asked through a gateway that meters it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from agent2rl.core.engine import ChatMessage, Engine, Sampling
from agent2rl.core.llm import LlmUsage
from agent2rl.runner import judges
from agent2rl.runner.settings import Settings

MAX_TOKENS = 2000


@dataclass(frozen=True)
class Summariser:
    engine: Engine
    usage: Callable[[], LlmUsage] | None
    """What was asked of it so far, where that is metered."""

    def __call__(self, question: str) -> str:
        chat = (ChatMessage("user", question),)
        return self.engine.generate([chat], Sampling(max_tokens=MAX_TOKENS))[0].text


@contextmanager
def open_summariser(name: str, settings: Settings) -> Iterator[Summariser]:
    """The model that a name means, while the context lasts."""
    judges.validate_judge_name(name)
    with judges.open_judge(name, settings) as judge:
        yield Summariser(judge.engine, judge.usage)
