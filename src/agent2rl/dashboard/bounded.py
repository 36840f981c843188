"""Work for the pages, in a process of its own that no run can keep for ever, or fill the memory through."""

import os
import resource
import signal
from collections.abc import Callable
from contextlib import suppress

MOST_SECONDS = 900
LEAST_MEMORY = 8 << 30


def confine() -> None:
    """At most half of the machine's memory, which a pathological run could ask for all of."""
    half = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    with suppress(OSError, ValueError):  # less is allowed already
        resource.setrlimit(resource.RLIMIT_DATA, (max(half, LEAST_MEMORY),) * 2)


def run(most_seconds: int, work: Callable[..., str], *given: str) -> str:
    """Within so many seconds; a TimeoutError after that."""
    signal.signal(signal.SIGALRM, _late)
    signal.alarm(most_seconds)
    try:
        return work(*given)
    finally:
        signal.alarm(0)


def _late(*_: object) -> None:
    raise TimeoutError("it takes too long")
