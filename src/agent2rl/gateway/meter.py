"""Adds up what a run has asked, keeps its caps, and says how it stands with the provider.

A cap is crossed by the answer that reaches it: that one is delivered, and nothing is asked afterwards.
Requests that are under way together could cross it by much. So each reserves what it may cost at most (a
token for every four bytes of input, and the longest output that it allows), and where the reservations would
reach beyond the cap, it waits until it is alone. What is used beyond a cap is therefore one answer, and as
far as reservations were too small, those that were under way with it.

What the provider did not count (`Exchange.guessed`) counts towards the caps, or hanging up before an answer's
last words would make it free.
"""

import asyncio
import threading
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from agent2rl.core.errors import UserError
from agent2rl.core.llm import Exchange, Tokens, Usage
from agent2rl.gateway.forms import Refused
from agent2rl.gateway.prices import Prices

IN_FLIGHT = 32
"""Requests to the provider at once; more of them wait."""
LINES = 10_000
"""Refusals that are written down one by one: an agent must not fill the disk with them."""
BYTES_A_TOKEN = 4
FAILED = ("provider-error", "stalled", "unreachable", "cut")
LOGINS = 3
"""A key that was refused so often in a row will not be let in, however long an agent tries."""
LOGIN, LIMITS = (401, 402, 403), (429, 529)


@dataclass(frozen=True)
class Caps:
    tokens: int | None = None
    """Input and output together, cached input included."""
    usd: float | None = None


@dataclass(frozen=True)
class Trouble:
    """The last requests failed, and none has been answered since."""

    kind: Literal["login", "rate-limit", "failure", "rejected"]
    """It does not let us in (401, 402, 403); it is too busy for us (429, 529); it is broken, silent or out of
    reach; or it does not take these requests (other 4xx)."""
    requests: int
    seconds: float
    """From the first of them to the end of the last."""
    message: str
    """What the last one was told."""


class Ticket(Protocol):
    """A request that wants a place."""

    model: str
    most: Tokens
    """What it may cost."""

    @property
    def told(self) -> Tokens | None:
        """What it is known to cost so far."""
        ...


class Spans:
    """The length of time that intervals cover together."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._apart: list[tuple[float, float]] = []

    def add(self, begin: float, end: float) -> None:
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


class Meter:
    """Written by the server's thread, read by any."""

    def __init__(
        self, caps: Caps, prices: Prices, models: tuple[str, ...], on_exchange: Callable[[Exchange], None]
    ) -> None:
        unpriced = [name for name in models if prices.price(name) is None]
        if caps.usd is not None and unpriced:
            raise UserError(
                f"A cap in dollars cannot be kept: {unpriced[0]!r} has no known price.",
                "Give its price in a file (AGENT2RL_PRICES), or cap tokens with --max-tokens.",
            )
        self.exhausted, self.over = threading.Event(), threading.Event()
        self.usage = Usage(usd=None if unpriced else 0.0)
        self.trouble: Trouble | None = None
        self._caps, self._prices, self._on_exchange = caps, prices, on_exchange
        self._admitted: list[Ticket] = []
        self._changed = asyncio.Event()
        self._busy, self._stalled = Spans(), Spans()
        self._failing_since = 0.0
        self._guessed_usd = 0.0

    def remember(self, exchanges: Sequence[Exchange]) -> None:
        """What was asked before the gateway was there, by another one. It counts towards the caps."""
        busy, stalled = Spans(), Spans()
        for old in exchanges:
            end = old.at + old.seconds
            if old.outcome != "refused":
                busy.add(old.at, end)
            if old.stalled_seconds:
                lost = old.at if old.outcome == "answered" else end
                stalled.add(lost - old.stalled_seconds, lost)
            if old.guessed:
                self._guessed_usd += self._worth(old.model, old.guessed)
            self._busy.seconds, self._stalled.seconds = busy.seconds, stalled.seconds
            self._add(old)
        if self._crossed():
            self.exhausted.set()

    # Before

    async def admit(self, ticket: Ticket) -> None:
        """Wait for a place, and have it until `settle`."""
        while True:
            if self._crossed():
                self.over.set()
                raise Refused(403, f"The run's budget is used up: {self.caps_said()}.", "Stop here.")
            if not self._admitted or (len(self._admitted) < IN_FLIGHT and self._fits(ticket)):
                break
            await self._changed.wait()
        self._admitted.append(ticket)

    def _fits(self, new: Ticket) -> bool:
        """Whether all that is under way could be used up without reaching a cap."""
        left = [(one.model, _less(one.most, one.told)) for one in (*self._admitted, new)]
        return not self._crossed(
            sum(tokens.total for _, tokens in left), sum(self._worth(model, tokens) for model, tokens in left)
        )

    def _worth(self, model: str, tokens: Tokens) -> float:
        return self._prices.usd(model, tokens) or 0.0

    def _crossed(self, tokens: int = 0, usd: float = 0.0) -> bool:
        """Whether a cap is reached, with so much more."""
        used_tokens, used_usd = self._used()
        caps = self._caps
        return (caps.tokens is not None and used_tokens + tokens >= caps.tokens) or (
            caps.usd is not None and used_usd + usd >= caps.usd
        )

    def _used(self) -> tuple[int, float]:
        """With what is known already of answers that are not over."""
        told = [(one.model, one.told) for one in self._admitted if one.told]
        tokens = self.usage.tokens.total + self.usage.guessed.total + sum(new.total for _, new in told)
        usd = (self.usage.usd or 0.0) + self._guessed_usd + sum(self._worth(*new) for new in told)
        return tokens, usd

    def caps_said(self) -> str:
        tokens, usd = self._used()
        said = [f"{tokens:,} of {self._caps.tokens:,} tokens"] if self._caps.tokens is not None else []
        said += [f"${usd:.2f} of ${self._caps.usd:.2f}"] if self._caps.usd is not None else []
        return " and ".join(said)

    # After

    def settle(
        self, ticket: Ticket, exchange: Exchange, began: float, stalled: tuple[float, float] | None
    ) -> None:
        """Write an exchange down. Times are of the monotonic clock; `stalled` is what it lost."""
        if ticket in self._admitted:
            self._admitted.remove(ticket)
        ended = began + exchange.seconds
        if exchange.outcome != "refused":
            self._busy.add(began, ended)
        if stalled is not None:
            self._stalled.add(*stalled)
        self._add(exchange)
        if exchange.guessed:
            self._guessed_usd += self._worth(exchange.model, exchange.guessed)
        self._judge(exchange, began, ended)
        if self._crossed():
            self.exhausted.set()
        self._changed.set()
        self._changed = asyncio.Event()
        if exchange.outcome != "refused" or self.usage.refused <= LINES:
            self._on_exchange(exchange)

    def _add(self, new: Exchange) -> None:
        old = self.usage
        answered = new.outcome == "answered" and new.wire is not None
        self.usage = Usage(
            requests=old.requests + 1,
            answered=old.answered + answered,
            failed=old.failed + (new.outcome in FAILED),
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

    def _judge(self, exchange: Exchange, began: float, ended: float) -> None:
        if exchange.wire is None:
            return
        if exchange.outcome == "answered":
            self.trouble = None
        elif exchange.outcome in FAILED:
            if self.trouble is None:
                self._failing_since = began
            before = self.trouble.requests if self.trouble else 0
            self.trouble = Trouble(_kind(exchange), before + 1, ended - self._failing_since, exchange.message)
            if self.trouble.kind == "login" and self.trouble.requests >= LOGINS:
                self.over.set()


def _less(most: Tokens, told: Tokens | None) -> Tokens:
    if told is None:
        return most
    return Tokens(input=max(0, most.input - told.input), output=max(0, most.output - told.output))


def _kind(exchange: Exchange) -> Literal["login", "rate-limit", "failure", "rejected"]:
    if exchange.outcome != "provider-error":
        return "failure"
    if exchange.status in LOGIN:
        return "login"
    if exchange.status in LIMITS:
        return "rate-limit"
    return "rejected" if 400 <= exchange.status < 500 else "failure"
