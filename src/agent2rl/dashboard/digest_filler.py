"""Makes the digests that runs lack, one after another, in a process of its own: an analysis takes seconds.

The newest come first. What cannot be analysed is not tried again before it changes.
"""

import multiprocessing
import sqlite3
import threading
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from pathlib import Path

from agent2rl.dashboard import bounded_worker
from agent2rl.dashboard.run_index import RunIndex
from agent2rl.report import digests
from agent2rl.store.paths import RunPaths

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
                pool = pool or ProcessPoolExecutor(1, context, bounded_worker.prepare_worker)
                name, stamp = lacking
                try:
                    text = pool.submit(
                        bounded_worker.run_with_timeout,
                        bounded_worker.MOST_SECONDS,
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
