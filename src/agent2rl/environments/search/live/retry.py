"""Asks somebody else's server: not faster than it likes, and again where a failure may pass by itself."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from agent2rl.core.errors import WorldError
from agent2rl.core.transient_errors import TransientError

T = TypeVar("T")


@dataclass
class RateLimitedRetry:
    per_second: float = 1.0
    """Requests, all threads together."""
    attempts: int = 4
    first_seconds: float = 1.0
    """The first pause; each further one is twice as long."""
    longest_seconds: float = 30.0
    answer_seconds: float = 20.0
    """The time of one request."""
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _next: float = 0.0

    def call_with_retries(self, who: str, request: Callable[[], T]) -> T:
        """What a request gives in the end; it raises `TransientError` for what may be tried again."""
        for attempt in range(self.attempts):
            self._wait_for_turn()
            try:
                return request()
            except TransientError as failure:
                last = failure
            if attempt + 1 < self.attempts:
                pause = max(self.first_seconds * 2.0**attempt, last.seconds)
                time.sleep(min(pause, self.longest_seconds))
        raise WorldError(f"{who} was asked {self.attempts} times without success: {last}")

    def _wait_for_turn(self) -> None:
        """Wait for the next place in the line."""
        with self._lock:
            now = time.monotonic()
            mine = max(now, self._next)
            self._next = mine + 1 / self.per_second
        time.sleep(mine - now)
