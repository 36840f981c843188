"""Background processes for slow work: limits, progress, a page cache, analyses on request, missing digests.

A request returns the newest available result at once, with the progress of a newer one that is being made.
Missing digests are computed for the newest runs first. A run that cannot be analysed is not retried until it
changes.
"""

import ctypes
import hashlib
import logging
import multiprocessing
import os
import sqlite3
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from agent2rl.dashboard.run_index import RunIndex
from agent2rl.record.files import write_atomically
from agent2rl.record.paths import RunPaths
from agent2rl.report import digests
from agent2rl.report.worker_limits import MOST_SECONDS, prepare_worker, run_with_timeout

logger = logging.getLogger(__name__)

# Progress: a worker writes its current step to shared memory that the server reads.

LONGEST_STEP = 200
ProgressLine: TypeAlias = ctypes.Array[ctypes.c_char]


@dataclass(frozen=True)
class WorkProgress:
    ahead: int
    """Analyses that run before this one starts."""
    seconds: float
    """Time since the request."""
    number: int = 0
    of: int = 1
    step: str = ""


def create_progress_line() -> ProgressLine:
    """Create the shared memory without a lock, which a dying process could keep; torn reads are ignored."""
    return multiprocessing.get_context("spawn").RawArray(ctypes.c_char, LONGEST_STEP)


def listen_in_worker(line: ProgressLine) -> None:
    """Set up a worker process whose `report_step` writes to `line`."""
    prepare_worker()
    global _PROGRESS
    _PROGRESS = line


def report_step(number: int, of: int, step: str) -> None:
    if _PROGRESS is not None:
        _PROGRESS.value = f"{number} {of} {step}".encode()[: LONGEST_STEP - 1]


def clear_progress(line: ProgressLine) -> None:
    line.value = b""


def read_progress(line: ProgressLine, seconds: float) -> WorkProgress:
    number, of, step = 0, 1, ""
    with suppress(ValueError):  # no step has been reported yet
        first, second, step = line.value.decode(errors="replace").split(" ", 2)
        number, of = int(first), int(second)
    return WorkProgress(0, seconds, number, of, step)


_PROGRESS: ProgressLine | None = None


# A disk cache of rendered pages. The least recently used ones are evicted first.

MOST_CACHE_BYTES = 256 << 20


class PageCache:
    def __init__(self, folder: Path, most_bytes: int = MOST_CACHE_BYTES) -> None:
        self._folder, self._most = folder, most_bytes
        folder.mkdir(parents=True, exist_ok=True)

    def get(self, name: str) -> str | None:
        path = self._build_path(name)
        try:
            text = path.read_text(encoding="utf-8")
            os.utime(path)  # marks it as recently used
        except (OSError, ValueError):
            return None
        return text

    def put(self, name: str, text: str) -> None:
        with suppress(OSError):  # for example a full disk: it is rendered again the next time
            write_atomically(self._build_path(name), text)
            self._evict_oldest()

    def _build_path(self, name: str) -> Path:
        return self._folder / f"{hashlib.sha256(name.encode()).hexdigest()[:32]}.html"

    def _evict_oldest(self) -> None:
        """Delete the oldest files over the limit. Other servers clear the same folder: files may vanish."""
        entries = []
        for path in self._folder.iterdir():
            with suppress(OSError):
                info = path.stat()
                entries.append((info.st_mtime, info.st_size, path))
        room = self._most
        for _, size, path in sorted(entries, reverse=True):
            room -= size
            if room < 0:
                path.unlink(missing_ok=True)


# Analyses on request: each runs once in a worker process, and its result is kept for all readers.

RETRY_FACTOR = 3.0
"""A run that keeps changing is analysed again after this many times the duration of its last analysis."""
LEAST_SECONDS = 3.0
MOST_KEPT = 64


@dataclass
class _AnalysisEntry:
    stamp: str = ""
    """The state of the run that the result belongs to."""
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
    """None if there is no result yet."""
    fresh: bool
    """Whether the result belongs to the current state."""
    fault: str = ""
    progress: WorkProgress | None = None
    """Progress of a newer result; None if none is being made."""


class AnalysisWorker:
    def __init__(self, folder: Path, most_seconds: int = MOST_SECONDS) -> None:
        """Results that will not change any more are also kept in `folder`."""
        self._most_seconds = most_seconds
        self._cache = PageCache(folder)
        self._entries: dict[str, _AnalysisEntry] = {}
        self._lock = threading.RLock()  # a future that is already done calls back within the request
        self._pool: ProcessPoolExecutor | None = None
        self._progress = create_progress_line()
        self.version = 0
        """Grows whenever an analysis is done."""

    def get_or_start(
        self,
        name: str,
        stamp: str,
        lasting: bool,
        work: Callable[..., str],
        *arguments: str,
        find_ready: Callable[[], str | None] = lambda: None,
    ) -> AnalysisOutcome:
        """Return the newest result of `work`, and start it in a worker process if that is out of date.

        `work` is a function of a module. `lasting` means that the result will never change. `find_ready`
        returns a result that somebody else has made of the same state.
        """
        key = f"{name} {stamp}"
        with self._lock:
            entry = self._entries.pop(name, None) or _AnalysisEntry()
            self._entries[name] = entry  # at the end: most recently used
            if entry.text is None and not entry.doing:
                ready = self._cache.get(key) or find_ready()
                if ready is not None:
                    logger.debug("a result is there: %s", name)
                    entry.text, entry.stamp = ready, stamp
            if entry.stamp != stamp and not entry.doing and self._is_due(entry):
                logger.debug("analysis starts: %s", name)
                entry.doing_stamp, entry.began = stamp, time.monotonic()
                entry.doing = self._ensure_pool().submit(
                    run_with_timeout, self._most_seconds, work, *arguments
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
        return read_progress(self._progress, seconds) if not before else WorkProgress(len(before), seconds)

    def _ensure_pool(self) -> ProcessPoolExecutor:
        if self._pool is None:
            context = multiprocessing.get_context("spawn")  # forking is unsafe with threads
            self._pool = ProcessPoolExecutor(1, context, listen_in_worker, (self._progress,))
        return self._pool

    def _finish_work(self, entry: _AnalysisEntry, done: "Future[str]", key: str) -> None:
        if done.cancelled():
            return
        with self._lock:
            entry.ended = time.monotonic()
            entry.took = entry.ended - entry.began
            entry.doing, entry.stamp = None, entry.doing_stamp
            clear_progress(self._progress)
            fault = done.exception()
            entry.fault = f"{type(fault).__name__}: {fault}" if fault else ""
            logger.debug("analysis ended after %.1f s: %s", entry.took, entry.fault or "ok")
            if fault:
                if not isinstance(fault, Exception) or "process" in type(fault).__name__.lower():
                    self._pool = None  # the process died: the next analysis starts a new one
            else:
                entry.text = done.result()
                if key:
                    self._cache.put(key, entry.text)
            self.version += 1


# Missing digests: computed one after another in a worker process, because an analysis takes seconds.

POLL_SECONDS = 0.5


def compute_digest_json(root: str) -> str:
    return digests.compute_digest(RunPaths(Path(root))).model_dump_json()


class DigestFiller:
    def __init__(self, index: RunIndex) -> None:
        self._index, self._end = index, threading.Event()
        self._thread = threading.Thread(target=self._fill_digests, daemon=True)
        self._refused: set[tuple[str, str]] = set()

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._end.set()

    def _fill_digests(self) -> None:
        pool: ProcessPoolExecutor | None = None
        while not self._end.wait(POLL_SECONDS):
            while (lacking := self._next_lacking_run()) and not self._end.is_set():
                context = multiprocessing.get_context("spawn")
                pool = pool or ProcessPoolExecutor(1, context, prepare_worker)
                name, stamp = lacking
                try:
                    text = pool.submit(
                        run_with_timeout,
                        MOST_SECONDS,
                        compute_digest_json,
                        str(self._index.runs / name),
                    ).result()
                except Exception as error:  # the analysis failed, or its process died
                    logger.warning("cannot analyse run %s", name, exc_info=True)
                    self._refused.add(lacking)
                    self._index.unreadable[name] = f"cannot be analysed: {type(error).__name__}: {error}"
                    pool.shutdown(wait=False)
                    pool = None
                else:
                    with suppress(sqlite3.Error):
                        self._index.store_digest(name, stamp, text)
        if pool:
            pool.shutdown(wait=False, cancel_futures=True)

    def _next_lacking_run(self) -> tuple[str, str] | None:
        with suppress(sqlite3.Error):  # the index is being rebuilt
            return next((run for run in self._index.list_lacking_digests() if run not in self._refused), None)
        return None
