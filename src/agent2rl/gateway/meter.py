"""Sums up a run's LLM usage, enforces its caps, and tracks streaks of failed requests.

The answer that reaches a cap is still delivered; every later request is refused. Parallel requests could
overshoot a cap by much, so each reserves the most it may cost (a token for every four bytes of input, and the
longest output that it allows). If the reservations would exceed the cap, it waits until it is alone. A cap is
therefore overshot by at most one answer, plus parallel ones if their reservations were too small.

Tokens that the provider did not count (`LlmExchange.guessed`) count towards the caps. Otherwise disconnecting
before the end of an answer would make it free.
"""

import asyncio
import logging
import math
import threading
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from agent2rl.core.errors import UserError
from agent2rl.core.llm import LlmExchange, LlmUsage, TokenCounts
from agent2rl.gateway.errors import RequestRefused
from agent2rl.gateway.prices import Prices

logger = logging.getLogger(__name__)

IN_FLIGHT = 32
"""Maximum parallel requests to the provider; further ones wait."""
LINES = 10_000
"""Maximum refusals that are recorded individually, so that an agent cannot fill the disk with them."""
BYTES_PER_TOKEN = 4
FAILED_OUTCOMES = ("provider-error", "stalled", "unreachable", "cut")
MAX_LOGIN_FAILURES = 3
"""After this many rejections in a row, the key counts as invalid and the run stops."""
LOGIN_STATUSES, RATE_LIMIT_STATUSES = (401, 402, 403), (429, 529)


@dataclass(frozen=True)
class UsageCaps:
    tokens: int | None = None
    """Input and output together, including cached input."""
    usd: float | None = None


@dataclass(frozen=True)
class FailureStreak:
    """Failed requests in a row, with no answered one since."""

    kind: Literal["login", "rate-limit", "failure", "rejected"]
    """`login`: the key is rejected (401, 402, 403). `rate-limit`: 429, 529. `failure`: the provider is
    broken, stalled or unreachable. `rejected`: it does not accept these requests (other 4xx)."""
    requests: int
    seconds: float
    """From the start of the first to the end of the last."""
    message: str
    """Error message of the last one."""


class AdmissionTicket(Protocol):
    """A request that waits for admission."""

    model: str
    most: TokenCounts
    """Maximum tokens that it may use."""

    @property
    def reported_tokens(self) -> TokenCounts | None:
        """Tokens reported so far."""
        ...


MOST_APART = 4096
"""Maximum intervals that a union keeps."""


class IntervalUnion:
    """The total length of the union of intervals.

    It keeps only the last ones that do not touch each other. Of an interval that is added later, what lies
    before them does not count.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._apart: list[tuple[float, float]] = []
        self._forgotten = -math.inf
        """The end of the last interval that is no longer kept."""

    def add_interval(self, begin: float, end: float) -> None:
        begin = max(begin, self._forgotten)
        if end <= begin:
            return
        first = bisect_left(self._apart, (begin, end))
        if first and self._apart[first - 1][1] >= begin:
            first -= 1
        last = first
        while last < len(self._apart) and self._apart[last][0] <= end:
            begin, end = min(begin, self._apart[last][0]), max(end, self._apart[last][1])
            self.seconds -= self._apart[last][1] - self._apart[last][0]
            last += 1
        self._apart[first:last] = [(begin, end)]
        self.seconds += end - begin
        # Without this, a gateway that answered millions of requests would remember the time of each.
        if len(self._apart) > MOST_APART:
            self._forgotten = self._apart.pop(0)[1]


class UsageMeter:
    """Usage, caps and failures of a run. Written by the server's thread, read by any."""

    def __init__(
        self,
        caps: UsageCaps,
        prices: Prices,
        models: tuple[str, ...],
        on_exchange: Callable[[LlmExchange], None],
    ) -> None:
        unpriced = [name for name in models if prices.find_price(name) is None]
        if caps.usd is not None and unpriced:
            raise UserError(
                f"A cap in dollars cannot be enforced: {unpriced[0]!r} has no known price.",
                "Set its price in a file (AGENT2RL_PRICES), or cap tokens with --max-tokens.",
            )
        self.exhausted, self.over = threading.Event(), threading.Event()
        self.usage = LlmUsage(usd=None if unpriced else 0.0)
        self.trouble: FailureStreak | None = None
        self._caps, self._prices, self._on_exchange = caps, prices, on_exchange
        self._admitted: list[AdmissionTicket] = []
        self._changed = asyncio.Event()
        self._busy, self._stalled = IntervalUnion(), IntervalUnion()
        self._failing_since = 0.0
        self._guessed_usd = 0.0

    def restore_exchanges(self, exchanges: Sequence[LlmExchange]) -> None:
        """Count the exchanges of an earlier gateway. They count towards the caps."""
        busy, stalled = IntervalUnion(), IntervalUnion()
        for old in exchanges:
            end = old.at + old.seconds
            if old.outcome != "refused":
                busy.add_interval(old.at, end)
            if old.stalled_seconds:
                stall_end = old.at if old.outcome == "answered" else end
                stalled.add_interval(stall_end - old.stalled_seconds, stall_end)
            if old.guessed:
                self._guessed_usd += self._price_tokens(old.model, old.guessed)
            # These are times of day. Intervals of this process's monotonic clock cannot be joined
            # to them.
            self._busy.seconds, self._stalled.seconds = busy.seconds, stalled.seconds
            self._add_usage(old)
        if self._reaches_cap():
            self.exhausted.set()

    # Before a request

    async def wait_for_admission(self, ticket: AdmissionTicket) -> None:
        """Wait until the request may start; it counts as running until `settle_exchange`."""
        while True:
            if self._reaches_cap():
                self.over.set()
                raise RequestRefused(
                    403, f"The run's budget is used up: {self.describe_caps()}.", "Stop here."
                )
            if not self._admitted or (len(self._admitted) < IN_FLIGHT and self._fits_within_caps(ticket)):
                break
            await self._changed.wait()
        self._admitted.append(ticket)

    def _fits_within_caps(self, new: AdmissionTicket) -> bool:
        """Check whether all running requests could use their maximum without reaching a cap."""
        reserved = [
            (ticket.model, _subtract_tokens(ticket.most, ticket.reported_tokens))
            for ticket in (*self._admitted, new)
        ]
        return not self._reaches_cap(
            sum(tokens.total for _, tokens in reserved),
            sum(self._price_tokens(model, tokens) for model, tokens in reserved),
        )

    def _price_tokens(self, model: str, tokens: TokenCounts) -> float:
        return self._prices.usd(model, tokens) or 0.0

    def _reaches_cap(self, tokens: int = 0, usd: float = 0.0) -> bool:
        """Check whether a cap is reached with this additional usage."""
        used_tokens, used_usd = self._sum_used()
        caps = self._caps
        return (caps.tokens is not None and used_tokens + tokens >= caps.tokens) or (
            caps.usd is not None and used_usd + usd >= caps.usd
        )

    def _sum_used(self) -> tuple[int, float]:
        """Return used tokens and dollars, including what running requests have reported so far."""
        running = [
            (ticket.model, ticket.reported_tokens) for ticket in self._admitted if ticket.reported_tokens
        ]
        tokens = self.usage.tokens.total + self.usage.guessed.total + sum(new.total for _, new in running)
        usd = (self.usage.usd or 0.0) + self._guessed_usd + sum(self._price_tokens(*new) for new in running)
        return tokens, usd

    def describe_caps(self) -> str:
        tokens, usd = self._sum_used()
        parts = [f"{tokens:,} of {self._caps.tokens:,} tokens"] if self._caps.tokens is not None else []
        parts += [f"${usd:.2f} of ${self._caps.usd:.2f}"] if self._caps.usd is not None else []
        return " and ".join(parts)

    # After a request

    def settle_exchange(
        self,
        ticket: AdmissionTicket,
        exchange: LlmExchange,
        began: float,
        stalled: tuple[float, float] | None,
    ) -> None:
        """Record an exchange. Times are of the monotonic clock; `stalled` is the interval of lost time."""
        if ticket in self._admitted:
            self._admitted.remove(ticket)
        ended = began + exchange.seconds
        if exchange.outcome != "refused":
            self._busy.add_interval(began, ended)
        if stalled is not None:
            self._stalled.add_interval(*stalled)
        self._add_usage(exchange)
        if exchange.guessed:
            self._guessed_usd += self._price_tokens(exchange.model, exchange.guessed)
        self._update_failure_streak(exchange, began, ended)
        logger.debug(
            "Request for %.100r: %s after %.1f s, %s tokens",
            exchange.model,
            exchange.outcome,
            exchange.seconds,
            exchange.tokens.total if exchange.tokens else "uncounted",
        )
        if self._reaches_cap():
            logger.info("The driver's budget is used up: %s", self.describe_caps())
            self.exhausted.set()
        # This wakes everybody who waits now. Later ones wait for the next change.
        self._changed.set()
        self._changed = asyncio.Event()
        if exchange.outcome != "refused" or self.usage.refused <= LINES:
            self._on_exchange(exchange)

    def _add_usage(self, new: LlmExchange) -> None:
        old = self.usage
        answered = new.outcome == "answered" and new.wire is not None
        self.usage = LlmUsage(
            requests=old.requests + 1,
            answered=old.answered + answered,
            failed=old.failed + (new.outcome in FAILED_OUTCOMES),
            abandoned=old.abandoned + (new.outcome == "abandoned"),
            refused=old.refused + (new.outcome == "refused"),
            retries=old.retries + bool(new.retries),
            replayed=old.replayed + new.replayed,
            uncounted=old.uncounted + (answered and new.tokens is None),
            tokens=old.tokens + new.tokens if new.tokens else old.tokens,
            guessed=old.guessed + new.guessed if new.guessed else old.guessed,
            usd=None if old.usd is None else old.usd + (new.usd or 0.0),
            seconds=self._busy.seconds,
            stalled_seconds=self._stalled.seconds,
        )

    def _update_failure_streak(self, exchange: LlmExchange, began: float, ended: float) -> None:
        if exchange.wire is None:
            return
        if exchange.outcome == "answered":
            self.trouble = None
        elif exchange.outcome in FAILED_OUTCOMES:
            if self.trouble is None:
                self._failing_since = began
            earlier = self.trouble.requests if self.trouble else 0
            self.trouble = FailureStreak(
                _classify_failure(exchange), earlier + 1, ended - self._failing_since, exchange.message
            )
            if self.trouble.kind == "login" and self.trouble.requests >= MAX_LOGIN_FAILURES:
                self.over.set()


def _subtract_tokens(most: TokenCounts, used: TokenCounts | None) -> TokenCounts:
    if used is None:
        return most
    return TokenCounts(input=max(0, most.input - used.input), output=max(0, most.output - used.output))


def _classify_failure(exchange: LlmExchange) -> Literal["login", "rate-limit", "failure", "rejected"]:
    if exchange.outcome != "provider-error":
        return "failure"
    if exchange.status in LOGIN_STATUSES:
        return "login"
    if exchange.status in RATE_LIMIT_STATUSES:
        return "rate-limit"
    return "rejected" if 400 <= exchange.status < 500 else "failure"
