"""What takes seconds is done in a process of its own, once for all who ask, and its outcome is kept.

Whoever asks gets the newest outcome that there is, and whether a newer one is on its way.
"""

import hashlib
import multiprocessing
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from agent2rl.store.files import write_atomically

PATIENCE = 3.0
"""A thing that keeps changing is made again after so many times the time that it took."""
LEAST_SECONDS = 3.0
MOST_KEPT = 64


@dataclass
class _Entry:
    stamp: str = ""
    """Of what the outcome was made."""
    text: str | None = None
    fault: str = ""
    doing: Future[str] | None = None
    doing_stamp: str = ""
    began: float = 0.0
    took: float = 0.0
    ended: float = 0.0


@dataclass(frozen=True)
class Outcome:
    text: str | None
    """None where there is none yet."""
    fresh: bool
    """Whether it is of what there is now."""
    fault: str = ""


class Workshop:
    def __init__(self, folder: Path) -> None:
        """Outcomes of what does not change any more are kept in `folder`, too."""
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._entries: dict[str, _Entry] = {}
        self._lock = threading.Lock()
        self._pool: ProcessPoolExecutor | None = None
        self.version = 0
        """Grows whenever something is done."""

    def ask(self, name: str, stamp: str, lasting: bool, work: Callable[..., str], *given: str) -> Outcome:
        """`work` must be a function of a module. `lasting`: the thing will not change any more."""
        file = self._folder / f"{hashlib.sha256(f'{name} {stamp}'.encode()).hexdigest()[:32]}.html"
        with self._lock:
            entry = self._entries.pop(name, None) or _Entry()
            self._entries[name] = entry  # at the end: it was asked for last
            if entry.text is None and not entry.doing and file.is_file():
                entry.text, entry.stamp = file.read_text(encoding="utf-8"), stamp
            if entry.stamp != stamp and not entry.doing and self._due(entry):
                entry.doing_stamp, entry.began = stamp, time.monotonic()
                entry.doing = self._started().submit(work, *given)
                entry.doing.add_done_callback(lambda done: self._done(entry, done, file if lasting else None))
            while len(self._entries) > MOST_KEPT:
                self._entries.pop(next(iter(self._entries)))
            return Outcome(entry.text, entry.stamp == stamp, entry.fault)

    def close(self) -> None:
        if self._pool:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def _due(self, entry: _Entry) -> bool:
        pause = max(LEAST_SECONDS, PATIENCE * entry.took)
        return entry.ended == 0.0 or time.monotonic() - entry.ended >= pause

    def _started(self) -> ProcessPoolExecutor:
        if self._pool is None:
            context = multiprocessing.get_context("spawn")  # threads are about, so nothing may be forked
            self._pool = ProcessPoolExecutor(1, mp_context=context)
        return self._pool

    def _done(self, entry: _Entry, done: "Future[str]", file: Path | None) -> None:
        if done.cancelled():
            return
        with self._lock:
            entry.ended = time.monotonic()
            entry.took = entry.ended - entry.began
            entry.doing, entry.stamp = None, entry.doing_stamp
            fault = done.exception()
            entry.fault = f"{type(fault).__name__}: {fault}" if fault else ""
            if fault:
                if not isinstance(fault, Exception) or "process" in type(fault).__name__.lower():
                    self._pool = None  # its process died: the next one gets a new one
            else:
                entry.text = done.result()
                if file:
                    with suppress(OSError):  # a full disk: it is made again the next time
                        write_atomically(file, entry.text)
            self.version += 1
