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
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

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
        self.exhausted = threading.Event()
        self.usage = Usage(usd=None if unpriced else 0.0)
        self.trouble: Trouble | None = None
        self._caps, self._prices, self._on_exchange = caps, prices, on_exchange
        self._reserved: dict[object, Tokens] = {}
        self._models: dict[object, str] = {}
        self._changed = asyncio.Event()
        self._busy, self._stalled = Spans(), Spans()
        self._failing_since = 0.0
        self._guessed_usd = 0.0

    # Before

    async def admit(self, ticket: object, model: str, body_bytes: int, most_output: int) -> None:
        """Wait for a place, and take it until `settle`."""
        most = Tokens(input=body_bytes // BYTES_A_TOKEN, output=most_output)
        while True:
            if self._crossed():
                raise Refused(403, f"The run's budget is used up: {self._caps_said()}.", "Stop here.")
            if not self._reserved or (len(self._reserved) < IN_FLIGHT and self._fits(model, most)):
                break
            await self._changed.wait()
        self._reserved[ticket], self._models[ticket] = most, model

    def _fits(self, model: str, most: Tokens) -> bool:
        tokens = most.total + sum(one.total for one in self._reserved.values())
        usd = self._worth(model, most)
        usd += sum(self._worth(self._models[ticket], one) for ticket, one in self._reserved.items())
        return not self._crossed(tokens, usd)

    def _worth(self, model: str, tokens: Tokens) -> float:
        return self._prices.usd(model, tokens) or 0.0

    def _crossed(self, tokens: int = 0, usd: float = 0.0) -> bool:
        """Whether a cap is reached, with so much more."""
        caps, used = self._caps, self.usage
        tokens += used.tokens.total + used.guessed.total
        usd += (used.usd or 0.0) + self._guessed_usd
        return (caps.tokens is not None and tokens >= caps.tokens) or (
            caps.usd is not None and usd >= caps.usd
        )

    def _caps_said(self) -> str:
        used, said = self.usage, []
        if self._caps.tokens is not None:
            said.append(f"{used.tokens.total + used.guessed.total:,} of {self._caps.tokens:,} tokens")
        if self._caps.usd is not None:
            said.append(f"${(used.usd or 0.0) + self._guessed_usd:.2f} of ${self._caps.usd:.2f}")
        return " and ".join(said)

    # After

    def settle(
        self, ticket: object, exchange: Exchange, began: float, stalled: tuple[float, float] | None
    ) -> None:
        """Write an exchange down. Times are of the monotonic clock; `stalled` is what it lost."""
        self._reserved.pop(ticket, None)
        self._models.pop(ticket, None)
        ended = began + exchange.seconds
        if exchange.outcome != "refused":
            self._busy.add(began, ended)
        if stalled is not None:
            self._stalled.add(*stalled)
        self._add(exchange)
        if exchange.guessed:
            self._guessed_usd += self._worth(exchange.model, exchange.guessed)
        self._judge(exchange, began, ended)
        if exchange.outcome != "refused" or self.usage.refused <= LINES:
            self._on_exchange(exchange)
        if self._crossed():
            self.exhausted.set()
        self._changed.set()
        self._changed = asyncio.Event()

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


def _kind(exchange: Exchange) -> Literal["login", "rate-limit", "failure", "rejected"]:
    if exchange.outcome != "provider-error":
        return "failure"
    if exchange.status in LOGIN:
        return "login"
    if exchange.status in LIMITS:
        return "rate-limit"
    return "rejected" if 400 <= exchange.status < 500 else "failure"
