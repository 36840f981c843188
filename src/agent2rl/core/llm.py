"""The LLM that drives an agent: how it is named and spoken to, and what was said to it cost.

Token counts are the provider's own, brought to one form: `input` holds what was read from a cache, `output`
holds what was thought and not shown.
"""

from typing import Literal, Self

from agent2rl.core.record import Record

Wire = Literal["openai-chat", "openai-responses", "anthropic", "gemini"]
"""A wire format: Chat Completions, Responses, Messages, generateContent."""

Outcome = Literal["answered", "provider-error", "stalled", "unreachable", "cut", "abandoned", "refused"]
"""How a request ended: the provider's answer or error; silence for too long; no connection; a stream that
broke off; a client that went away; the gateway's own refusal."""


class Tokens(Record):
    input: int = 0
    cached: int = 0
    """Of the input, read from the provider's cache."""
    written: int = 0
    """Of the input, written to the provider's cache, where that is billed apart."""
    output: int = 0
    reasoning: int = 0
    """Of the output, thought and not shown."""

    @property
    def total(self) -> int:
        return self.input + self.output

    def __add__(self, other: Self) -> Self:
        mine, theirs = self.model_dump(), other.model_dump()
        return type(self)(**{name: mine[name] + theirs[name] for name in mine})


class Exchange(Record):
    """One request to the gateway: a line of usage.jsonl."""

    at: float
    wire: Wire | None
    """None: it asked for something that is no generation, or that nobody knows."""
    model: str
    path: str
    stream: bool
    status: int
    """What the agent was answered."""
    outcome: Outcome
    seconds: float
    """From the request to the last byte of the answer, waits before retries included."""
    first_seconds: float | None = None
    """To the first byte of the answer's body."""
    stalled_seconds: float = 0.0
    """Of `seconds`, spent on attempts that failed and on waits before the next one."""
    retries: int = 0
    tokens: Tokens | None = None
    """None: the provider told none."""
    usd: float | None = None
    """None: the model has no known price, or no tokens were told."""
    message: str = ""
    """What went wrong, for people."""


class Usage(Record):
    """All of a run's exchanges together."""

    requests: int = 0
    answered: int = 0
    failed: int = 0
    """Ended by the provider or the way to it, not by the gateway or the agent."""
    refused: int = 0
    uncounted: int = 0
    """Answered, and the provider told no tokens."""
    tokens: Tokens = Tokens()
    usd: float | None = None
    """None: some of it has no known price."""
    seconds: float = 0.0
    stalled_seconds: float = 0.0
