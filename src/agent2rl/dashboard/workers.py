"""Background processes for slow work: limits, progress, a page cache, analyses on request, missing digests.

Whoever asks gets the newest outcome that there is, and how far a newer one is that is on its way.

The newest come first. What cannot be analysed is not tried again before it changes.
"""

import ctypes
import hashlib
import multiprocessing
import os
import resource
import signal
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

# Work for the pages, in a process of its own that no run can keep for ever, or fill the memory through.

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


# How far a process is that works for the pages: it writes its step on a line that the server reads.

LONGEST_STEP = 200
ProgressLine: TypeAlias = ctypes.Array[ctypes.c_char]


@dataclass(frozen=True)
class WorkProgress:
    ahead: int
    """Others that are done before it is begun."""
    seconds: float
    """Since it was asked for."""
    number: int = 0
    of: int = 1
    step: str = ""


def create_progress_line() -> ProgressLine:
    """Without a lock, which would stay closed if a process died with it; what is torn is passed over."""
    return multiprocessing.get_context("spawn").RawArray(ctypes.c_char, LONGEST_STEP)


def listen_in_worker(told: ProgressLine) -> None:
    """In the process that works, at its start: from here on `report_step` writes to it."""
    prepare_worker()
    global _TOLD
    _TOLD = told


def report_step(number: int, of: int, step: str) -> None:
    if _TOLD is not None:
        _TOLD.value = f"{number} {of} {step}".encode()[: LONGEST_STEP - 1]


def clear_progress(told: ProgressLine) -> None:
    told.value = b""


def read_progress(told: ProgressLine, seconds: float) -> WorkProgress:
    number, of, step = 0, 1, ""
    with suppress(ValueError):  # nothing has been told yet
        first, second, step = told.value.decode(errors="replace").split(" ", 2)
        number, of = int(first), int(second)
    return WorkProgress(0, seconds, number, of, step)


_TOLD: ProgressLine | None = None


# Texts that took long to make, in a folder of the cache. What was not looked at for longest goes first.

MOST_CACHE_BYTES = 256 << 20


class PageCache:
    def __init__(self, folder: Path, most_bytes: int = MOST_CACHE_BYTES) -> None:
        self._folder, self._most = folder, most_bytes
        folder.mkdir(parents=True, exist_ok=True)

    def get(self, name: str) -> str | None:
        path = self._build_path(name)
        try:
            text = path.read_text(encoding="utf-8")
            os.utime(path)  # it was looked at now
        except (OSError, ValueError):
            return None
        return text

    def put(self, name: str, text: str) -> None:
        with suppress(OSError):  # a full disk: it is made again the next time
            write_atomically(self._build_path(name), text)
            self._evict_oldest()

    def _build_path(self, name: str) -> Path:
        return self._folder / f"{hashlib.sha256(name.encode()).hexdigest()[:32]}.html"

    def _evict_oldest(self) -> None:
        """Other servers clear the same folder, so that any of it may be gone."""
        found = []
        for path in self._folder.iterdir():
            with suppress(OSError):
                known = path.stat()
                found.append((known.st_mtime, known.st_size, path))
        room = self._most
        for _, size, path in sorted(found, reverse=True):
            room -= size
            if room < 0:
                path.unlink(missing_ok=True)


# What takes seconds is done in a process of its own, once for all who ask, and its outcome is kept.

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
    def __init__(self, folder: Path, most_seconds: int = MOST_SECONDS) -> None:
        """Outcomes of what does not change any more are kept in `folder`, too."""
        self._most_seconds = most_seconds
        self._kept = PageCache(folder)
        self._entries: dict[str, _AnalysisEntry] = {}
        self._lock = threading.RLock()  # what is done at once calls back while it is asked for
        self._pool: ProcessPoolExecutor | None = None
        self._told = create_progress_line()
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
                entry.doing = self._ensure_pool().submit(run_with_timeout, self._most_seconds, work, *given)
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
        return read_progress(self._told, seconds) if not before else WorkProgress(len(before), seconds)

    def _ensure_pool(self) -> ProcessPoolExecutor:
        if self._pool is None:
            context = multiprocessing.get_context("spawn")  # threads are about, so nothing may be forked
            self._pool = ProcessPoolExecutor(1, context, listen_in_worker, (self._told,))
        return self._pool

    def _finish_work(self, entry: _AnalysisEntry, done: "Future[str]", key: str) -> None:
        if done.cancelled():
            return
        with self._lock:
            entry.ended = time.monotonic()
            entry.took = entry.ended - entry.began
            entry.doing, entry.stamp = None, entry.doing_stamp
            clear_progress(self._told)
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


# Makes the digests that runs lack, one after another, in a process of its own: an analysis takes seconds.

LOOK_SECONDS = 0.5


def made(root: str) -> str:
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
        while not self._end.wait(LOOK_SECONDS):
            while (lacking := self._next_lacking_run()) and not self._end.is_set():
                context = multiprocessing.get_context("spawn")
                pool = pool or ProcessPoolExecutor(1, context, prepare_worker)
                name, stamp = lacking
                try:
                    text = pool.submit(
                        run_with_timeout,
                        MOST_SECONDS,
                        made,
                        str(self._index.runs / name),
                    ).result()
                except Exception as error:  # of the analysis, or its process died
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
        with suppress(sqlite3.Error):  # the index is made anew just now
            return next(
                (each for each in self._index.list_lacking_digests() if each not in self._refused), None
            )
        return None
