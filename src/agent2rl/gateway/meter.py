"""Adds up what a run has asked, keeps its caps, and says how it stands with the provider.

A cap is crossed by the answer that reaches it: that one is delivered, and nothing is asked afterwards.
Requests that are under way together could cross it by much. So each reserves what it may cost at most (a
token for every four bytes of input, and the longest output that it allows), and where the reservations would
reach beyond the cap, it waits until it is alone. What is used beyond a cap is therefore one answer, and as
far as reservations were too small, those that were under way with it.

What the provider did not count (`LlmExchange.guessed`) counts towards the caps, or hanging up before an
answer's last words would make it free.
"""

import asyncio
import threading
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from agent2rl.core.errors import UserError
from agent2rl.core.llm import LlmExchange, LlmUsage, TokenCounts
from agent2rl.gateway.errors import RequestRefused
from agent2rl.gateway.prices import Prices

IN_FLIGHT = 32
"""Requests to the provider at once; more of them wait."""
LINES = 10_000
"""Refusals that are written down one by one: an agent must not fill the disk with them."""
BYTES_PER_TOKEN = 4
FAILED_OUTCOMES = ("provider-error", "stalled", "unreachable", "cut")
MAX_LOGIN_FAILURES = 3
"""A key that was refused so often in a row will not be let in, however long an agent tries."""
LOGIN_STATUSES, RATE_LIMIT_STATUSES = (401, 402, 403), (429, 529)


@dataclass(frozen=True)
class UsageCaps:
    tokens: int | None = None
    """Input and output together, cached input included."""
    usd: float | None = None


@dataclass(frozen=True)
class FailureStreak:
    """The last requests failed, and none has been answered since."""

    kind: Literal["login", "rate-limit", "failure", "rejected"]
    """It does not let us in (401, 402, 403); it is too busy for us (429, 529); it is broken, silent or out of
    reach; or it does not take these requests (other 4xx)."""
    requests: int
    seconds: float
    """From the first of them to the end of the last."""
    message: str
    """What the last one was told."""


class AdmissionTicket(Protocol):
    """A request that wants a place."""

    model: str
    most: TokenCounts
    """What it may cost."""

    @property
    def told(self) -> TokenCounts | None:
        """What it is known to cost so far."""
        ...


class IntervalUnion:
    """The length of time that intervals cover together."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._apart: list[tuple[float, float]] = []

    def add_interval(self, begin: float, end: float) -> None:
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


class UsageMeter:
    """Written by the server's thread, read by any."""

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
                f"A cap in dollars cannot be kept: {unpriced[0]!r} has no known price.",
                "Give its price in a file (AGENT2RL_PRICES), or cap tokens with --max-tokens.",
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
        """What was asked before the gateway was there, by another one. It counts towards the caps."""
        busy, stalled = IntervalUnion(), IntervalUnion()
        for old in exchanges:
            end = old.at + old.seconds
            if old.outcome != "refused":
                busy.add_interval(old.at, end)
            if old.stalled_seconds:
                lost = old.at if old.outcome == "answered" else end
                stalled.add_interval(lost - old.stalled_seconds, lost)
            if old.guessed:
                self._guessed_usd += self._price_tokens(old.model, old.guessed)
            self._busy.seconds, self._stalled.seconds = busy.seconds, stalled.seconds
            self._add_usage(old)
        if self._reaches_cap():
            self.exhausted.set()

    # Before

    async def wait_for_admission(self, ticket: AdmissionTicket) -> None:
        """Wait for a place, and have it until `settle`."""
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
        """Whether all that is under way could be used up without reaching a cap."""
        left = [(one.model, _subtract_tokens(one.most, one.told)) for one in (*self._admitted, new)]
        return not self._reaches_cap(
            sum(tokens.total for _, tokens in left),
            sum(self._price_tokens(model, tokens) for model, tokens in left),
        )

    def _price_tokens(self, model: str, tokens: TokenCounts) -> float:
        return self._prices.usd(model, tokens) or 0.0

    def _reaches_cap(self, tokens: int = 0, usd: float = 0.0) -> bool:
        """Whether a cap is reached, with so much more."""
        used_tokens, used_usd = self._sum_used()
        caps = self._caps
        return (caps.tokens is not None and used_tokens + tokens >= caps.tokens) or (
            caps.usd is not None and used_usd + usd >= caps.usd
        )

    def _sum_used(self) -> tuple[int, float]:
        """With what is known already of answers that are not over."""
        told = [(one.model, one.told) for one in self._admitted if one.told]
        tokens = self.usage.tokens.total + self.usage.guessed.total + sum(new.total for _, new in told)
        usd = (self.usage.usd or 0.0) + self._guessed_usd + sum(self._price_tokens(*new) for new in told)
        return tokens, usd

    def describe_caps(self) -> str:
        tokens, usd = self._sum_used()
        said = [f"{tokens:,} of {self._caps.tokens:,} tokens"] if self._caps.tokens is not None else []
        said += [f"${usd:.2f} of ${self._caps.usd:.2f}"] if self._caps.usd is not None else []
        return " and ".join(said)

    # After

    def settle_exchange(
        self,
        ticket: AdmissionTicket,
        exchange: LlmExchange,
        began: float,
        stalled: tuple[float, float] | None,
    ) -> None:
        """Write an exchange down. Times are of the monotonic clock; `stalled` is what it lost."""
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
        if self._reaches_cap():
            self.exhausted.set()
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
            before = self.trouble.requests if self.trouble else 0
            self.trouble = FailureStreak(
                _classify_failure(exchange), before + 1, ended - self._failing_since, exchange.message
            )
            if self.trouble.kind == "login" and self.trouble.requests >= MAX_LOGIN_FAILURES:
                self.over.set()


def _subtract_tokens(most: TokenCounts, told: TokenCounts | None) -> TokenCounts:
    if told is None:
        return most
    return TokenCounts(input=max(0, most.input - told.input), output=max(0, most.output - told.output))


def _classify_failure(exchange: LlmExchange) -> Literal["login", "rate-limit", "failure", "rejected"]:
    if exchange.outcome != "provider-error":
        return "failure"
    if exchange.status in LOGIN_STATUSES:
        return "login"
    if exchange.status in RATE_LIMIT_STATUSES:
        return "rate-limit"
    return "rejected" if 400 <= exchange.status < 500 else "failure"
