"""Gradings one after the other, on a thread of their own."""

import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress


class GradingQueue:
    """One thread that takes numbers in order: gradings on one device never overlap."""

    def __init__(self, work: Callable[[int, float], None]) -> None:
        self._queue: queue.SimpleQueue[tuple[int, float] | None] = queue.SimpleQueue()
        self._work = work
        self._thread = threading.Thread(target=self._run_gradings, name="grading-lane", daemon=True)
        self._thread.start()

    def put(self, number: int) -> None:
        self._queue.put((number, time.monotonic()))

    def close(self) -> None:
        """Finish what is queued, then end."""
        self._queue.put(None)
        self._thread.join()

    def _run_gradings(self) -> None:
        while (turn := self._queue.get()) is not None:
            number, since = turn
            with suppress(Exception):  # the record could not be written; the next one may
                self._work(number, time.monotonic() - since)
