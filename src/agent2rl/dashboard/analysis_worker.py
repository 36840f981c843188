"""What takes seconds is done in a process of its own, once for all who ask, and its outcome is kept.

Whoever asks gets the newest outcome that there is, and how far a newer one is that is on its way.
"""

import multiprocessing
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from agent2rl.dashboard import bounded_worker, work_progress
from agent2rl.dashboard.page_cache import PageCache
from agent2rl.dashboard.work_progress import WorkProgress

RETRY_FACTOR = 3.0
"""A thing that keeps changing is made again after so many times the time that it took."""
LEAST_SECONDS = 3.0
MOST_KEPT = 64


@dataclass
class _AnalysisEntry:
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
class AnalysisOutcome:
    text: str | None
    """None where there is none yet."""
    fresh: bool
    """Whether it is of what there is now."""
    fault: str = ""
    progress: WorkProgress | None = None
    """Of what is being done for it."""


class AnalysisWorker:
    def __init__(self, folder: Path, most_seconds: int = bounded_worker.MOST_SECONDS) -> None:
        """Outcomes of what does not change any more are kept in `folder`, too."""
        self._most_seconds = most_seconds
        self._kept = PageCache(folder)
        self._entries: dict[str, _AnalysisEntry] = {}
        self._lock = threading.RLock()  # what is done at once calls back while it is asked for
        self._pool: ProcessPoolExecutor | None = None
        self._told = work_progress.create_progress_line()
        self.version = 0
        """Grows whenever something is done."""

    def get_or_start(
        self, name: str, stamp: str, lasting: bool, work: Callable[..., str], *given: str
    ) -> AnalysisOutcome:
        """`work` is a module's function, run in another process. `lasting`: the result will never change."""
        key = f"{name} {stamp}"
        with self._lock:
            entry = self._entries.pop(name, None) or _AnalysisEntry()
            self._entries[name] = entry  # at the end: it was asked for last
            if entry.text is None and not entry.doing and (kept := self._kept.get(key)) is not None:
                entry.text, entry.stamp = kept, stamp
            if entry.stamp != stamp and not entry.doing and self._is_due(entry):
                entry.doing_stamp, entry.began = stamp, time.monotonic()
                entry.doing = self._ensure_pool().submit(
                    bounded_worker.run_with_timeout, self._most_seconds, work, *given
                )
                entry.doing.add_done_callback(
                    lambda done: self._finish_work(entry, done, key if lasting else "")
                )
            while len(self._entries) > MOST_KEPT:
                self._entries.pop(next(iter(self._entries)))
            return AnalysisOutcome(entry.text, entry.stamp == stamp, entry.fault, self._read_progress(entry))

    def close(self) -> None:
        if self._pool:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def _is_due(self, entry: _AnalysisEntry) -> bool:
        pause = max(LEAST_SECONDS, RETRY_FACTOR * entry.took)
        return entry.ended == 0.0 or time.monotonic() - entry.ended >= pause

    def _read_progress(self, entry: _AnalysisEntry) -> WorkProgress | None:
        if not entry.doing:
            return None
        before = [each for each in self._entries.values() if each.doing and each.began < entry.began]
        seconds = time.monotonic() - entry.began
        return (
            work_progress.read_progress(self._told, seconds)
            if not before
            else WorkProgress(len(before), seconds)
        )

    def _ensure_pool(self) -> ProcessPoolExecutor:
        if self._pool is None:
            context = multiprocessing.get_context("spawn")  # threads are about, so nothing may be forked
            self._pool = ProcessPoolExecutor(1, context, work_progress.listen_in_worker, (self._told,))
        return self._pool

    def _finish_work(self, entry: _AnalysisEntry, done: "Future[str]", key: str) -> None:
        if done.cancelled():
            return
        with self._lock:
            entry.ended = time.monotonic()
            entry.took = entry.ended - entry.began
            entry.doing, entry.stamp = None, entry.doing_stamp
            work_progress.clear_progress(self._told)
            fault = done.exception()
            entry.fault = f"{type(fault).__name__}: {fault}" if fault else ""
            if fault:
                if not isinstance(fault, Exception) or "process" in type(fault).__name__.lower():
                    self._pool = None  # its process died: the next one gets a new one
            else:
                entry.text = done.result()
                if key:
                    self._kept.put(key, entry.text)
            self.version += 1
