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


class TokenCounts(Record):
    input: int = 0
    cached: int = 0
    """Of the input, read from the provider's cache."""
    written: int = 0
    """Of the input, written to the provider's cache, where that is billed apart."""
    written_hour: int = 0
    """Of those written, kept for an hour and not for minutes, which costs more."""
    output: int = 0
    reasoning: int = 0
    """Of the output, thought and not shown."""

    @property
    def total(self) -> int:
        return self.input + self.output

    def __add__(self, other: Self) -> Self:
        names = type(self).model_fields
        return type(self)(**{name: getattr(self, name) + getattr(other, name) for name in names})


class LlmExchange(Record):
    """One request to the gateway: a line of usage.jsonl."""

    at: float
    wire: Wire | None
    """None: it asked for something that is no generation, or that nobody knows."""
    model: str
    """As it was asked for."""
    path: str
    stream: bool
    status: int
    """What the agent was answered."""
    outcome: Outcome
    seconds: float
    """From the request to the last byte of the answer."""
    first_seconds: float | None = None
    """To the first byte of the answer's body."""
    stalled_seconds: float = 0.0
    """Lost: all of a request that failed, and the agent's wait before it asked the same again."""
    retries: int = 0
    """How often the same was asked before, and failed."""
    tokens: TokenCounts | None = None
    """None: the provider told none."""
    guessed: TokenCounts | None = None
    """What was sent and said beyond that, by its length: of answers that the provider did not count to their
    end. It counts towards the caps."""
    usd: float | None = None
    """Of the tokens that were told. None: the model has no known price, or none were told."""
    replayed: bool = False
    """Answered from a tape: nobody was asked, and nothing was paid."""
    message: str = ""
    """What went wrong, for people."""


class LlmUsage(Record):
    """All of a run's exchanges together."""

    requests: int = 0
    """All of them, whatever they asked for."""
    answered: int = 0
    """Generations that the provider answered."""
    failed: int = 0
    """Ended by the provider or the way to it, not by the gateway or the agent."""
    abandoned: int = 0
    """The agent went away before the end."""
    refused: int = 0
    """By the gateway."""
    retries: int = 0
    """Requests that repeat a failed one."""
    replayed: int = 0
    """Answered from a tape."""
    uncounted: int = 0
    """Answered, and the provider told no tokens."""
    tokens: TokenCounts = TokenCounts()
    guessed: TokenCounts = TokenCounts()
    """Beyond those: see `LlmExchange.guessed`."""
    usd: float | None = None
    """None: some of it has no known price."""
    seconds: float = 0.0
    """Wall time in which at least one request was under way."""
    stalled_seconds: float = 0.0
    """Wall time in which a request was failing, or waited for its next attempt."""
