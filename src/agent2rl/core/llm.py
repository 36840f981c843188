"""Records of the LLM that drives an agent: wire formats, token counts, exchanges and cost.

Token counts are the provider's own in a common form: `input` includes tokens read from a cache, `output`
includes hidden reasoning.
"""

from typing import Literal, Self

from agent2rl.core.base_record import Record

Wire = Literal["openai-chat", "openai-responses", "anthropic", "gemini"]
"""A wire format: Chat Completions, Responses, Messages, generateContent."""

Outcome = Literal["answered", "provider-error", "stalled", "unreachable", "cut", "abandoned", "refused"]
"""How a request ended: the provider's answer or error; a stall timeout; no connection; a stream that broke
off; a client that disconnected; a refusal by the gateway."""


class TokenCounts(Record):
    input: int = 0
    cached: int = 0
    """Part of the input: read from the provider's cache."""
    written: int = 0
    """Part of the input: written to the provider's cache, if that is billed separately."""
    written_hour: int = 0
    """Part of `written`: cached for an hour instead of minutes, which costs more."""
    output: int = 0
    reasoning: int = 0
    """Part of the output: hidden reasoning."""

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
    """None if the request is not a generation, or is unknown."""
    model: str
    """As requested."""
    path: str
    stream: bool
    status: int
    """HTTP status that the agent received."""
    outcome: Outcome
    seconds: float
    """From the request to the last byte of the answer."""
    first_seconds: float | None = None
    """From the request to the first byte of the answer's body."""
    stalled_seconds: float = 0.0
    """Lost time: all of a failed request, and the agent's wait before it retried."""
    retries: int = 0
    """How many earlier attempts of the same request failed."""
    tokens: TokenCounts | None = None
    """None if the provider reported none."""
    guessed: TokenCounts | None = None
    """Estimate by length of further tokens, for answers that the provider did not count to their end. It
    counts towards the caps."""
    usd: float | None = None
    """Cost of the reported tokens. None: the model has no known price, or no tokens were reported."""
    replayed: bool = False
    """Answered from a tape, at no cost."""
    message: str = ""
    """What went wrong, for people."""


class LlmUsage(Record):
    """All of a run's exchanges together."""

    requests: int = 0
    """All requests, of any kind."""
    answered: int = 0
    """Generations that the provider answered."""
    failed: int = 0
    """Requests that failed at the provider or on the way to it, not at the gateway or the agent."""
    abandoned: int = 0
    """Requests that the agent dropped before their end."""
    refused: int = 0
    """Requests that the gateway refused."""
    retries: int = 0
    """Requests that repeat a failed one."""
    replayed: int = 0
    """Requests answered from a tape."""
    uncounted: int = 0
    """Answered requests for which the provider reported no tokens."""
    tokens: TokenCounts = TokenCounts()
    guessed: TokenCounts = TokenCounts()
    """Estimated further tokens: see `LlmExchange.guessed`."""
    usd: float | None = None
    """None if part of it has no known price."""
    seconds: float = 0.0
    """Wall time with at least one request in flight."""
    stalled_seconds: float = 0.0
    """Wall time in which a request was failing or waiting to be retried."""
