"""Work for the pages, in a process of its own that no run can keep for ever, or fill the memory through."""

import multiprocessing
import os
import resource
import signal
import threading
from collections.abc import Callable
from contextlib import suppress

MOST_SECONDS = 900
LEAST_MEMORY = 8 << 30


def prepare_worker() -> None:
    """In a process that works for the pages, at its start."""
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    limit_memory()


def limit_memory() -> None:
    """At most half of the machine's memory, which a pathological run could ask for all of."""
    half = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    with suppress(OSError, ValueError):  # less is allowed already
        resource.setrlimit(resource.RLIMIT_DATA, (max(half, LEAST_MEMORY),) * 2)


def run_with_timeout(most_seconds: int, work: Callable[..., str], *arguments: str) -> str:
    """Call `work` with these arguments; raise a TimeoutError after that many seconds."""
    signal.signal(signal.SIGALRM, _raise_timeout)
    signal.alarm(most_seconds)
    try:
        return work(*arguments)
    finally:
        signal.alarm(0)


def _exit_with_parent() -> None:
    """A parent that was killed tells nobody to end. PR_SET_PDEATHSIG would not do: it is about the thread
    that started the process, and those of the server come and go."""
    parent = multiprocessing.parent_process()
    if parent:
        parent.join()
        os._exit(1)


def _raise_timeout(*_: object) -> None:
    raise TimeoutError("it takes too long")
