"""Limits of a process that analyses runs: none can keep it busy for ever, or fill the memory."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress

from agent2rl.system.unix import resource

MOST_SECONDS = 900
LEAST_MEMORY = 8 << 30


def prepare_worker() -> None:
    """Set up a worker process; called when it starts."""
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    limit_memory()


def limit_memory() -> None:
    """Limit the process to half of the machine's memory: a pathological run could need all of it."""
    if not hasattr(os, "sysconf"):  # Windows has neither this nor such a limit
        return
    half = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    with suppress(OSError, ValueError):  # the limit is lower already
        resource.setrlimit(resource.RLIMIT_DATA, (max(half, LEAST_MEMORY),) * 2)


def run_with_timeout(most_seconds: int, work: Callable[..., str], *arguments: str) -> str:
    """Call `work` with these arguments; raise TimeoutError after `most_seconds`, where the system can."""
    if not hasattr(signal, "SIGALRM"):
        return work(*arguments)
    signal.signal(signal.SIGALRM, _raise_timeout)
    signal.alarm(most_seconds)
    try:
        return work(*arguments)
    finally:
        signal.alarm(0)


def _exit_with_parent() -> None:
    """Exit when the parent dies, even if it was killed.

    PR_SET_PDEATHSIG does not work here: it watches the thread that started the process, and the server's
    threads come and go.
    """
    parent = multiprocessing.parent_process()
    if parent:
        parent.join()
        os._exit(1)


def _raise_timeout(*_: object) -> None:
    raise TimeoutError("the analysis takes too long")
