"""Mirrors a run while it goes, in a process of its own: a tracker's threads and waits are none of the run's.

    follow.py RUN TRACKER [GROUP]

Standard input is open as long as whoever started this has more to come; what happens is said on standard
output, a line each. A tracker that fails is tried again, ever more seldom, and once more at the end.
"""

import os
import select
import signal
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TextIO

from agent2rl.core.tracker import Mirror
from agent2rl.store.paths import RunPaths
from agent2rl.store.reader import read_run
from agent2rl.tracking import mirror
from agent2rl.tracking.naming import reason
from agent2rl.tracking.rows import verdicts
from agent2rl.tracking.told import tracked

LOOK_SECONDS = 1.0
RETRY_SECONDS, LONGEST_RETRY_SECONDS = 15.0, 600.0
LAST_SECONDS = 60.0
"""For what there is to say at the end."""
NICE = 15
"""The cores are the run's."""


class Following:
    def __init__(self, paths: RunPaths, name: str, group: str | None, out: TextIO) -> None:
        self._paths, self._tracker, self._group, self._out = paths, mirror.require(name), group, out
        self.rest = f"`agent2rl track {paths.run_id} --to {name}` sends the rest"
        self._opened = ExitStack()
        self._mirror: Mirror | None = None
        self._ledger = self._verdicts = -1
        self._retry_at, self._wait, self._failed = 0.0, RETRY_SECONDS, False

    def look(self) -> None:
        """Tell what is new, if anything is and the tracker is not to be left alone for a while."""
        size = self._paths.ledger.stat().st_size if self._paths.ledger.exists() else 0
        if size == self._ledger or time.monotonic() < self._retry_at:
            return
        try:
            self._ledger = size
            view = read_run(self._paths)
            now = verdicts(view.submissions) + (view.baseline is not None)
            if self._mirror is None or now != self._verdicts:
                mirror.tell(self._paths, self._open())
                self._verdicts = now
        except Exception as error:
            self._fail(error)

    def end(self) -> None:
        """Tell all, and close: a mirror has everything when it is closed."""
        try:
            opened = self._open()
            mirror.tell(self._paths, opened)
            where = opened.where
            self._opened.close()
            self.say(where)
        except Exception as error:
            self._fail(error)
            self.say(f"not all was sent; {self.rest}")

    def _open(self) -> Mirror:
        if self._mirror is None:
            run = tracked(read_run(self._paths), self._group)
            self._mirror = self._opened.enter_context(self._tracker.open(run))
        return self._mirror

    def _fail(self, error: Exception) -> None:
        """Told once. What was opened is of no use any more."""
        if not self._failed:
            self.say(f"the run goes on, but not here: {reason(error)}")
        self._failed, self._mirror, self._ledger = True, None, -1
        self._retry_at, self._wait = time.monotonic() + self._wait, min(2 * self._wait, LONGEST_RETRY_SECONDS)
        try:
            self._opened.close()
        except Exception:
            self._opened = ExitStack()

    def say(self, line: str) -> None:
        print(line, file=self._out, flush=True)


def main(run: str, name: str, group: str | None = None) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # those mean the run, whose end is seen here too
    os.nice(NICE)
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):  # whatever a tracker prints, nobody asked for
        os.dup2(nowhere, descriptor)
    following = Following(RunPaths(Path(run)), name, group, out)
    while not select.select([0], [], [], LOOK_SECONDS)[0]:
        following.look()
    late = threading.Timer(LAST_SECONDS, _give_up, [following])
    late.daemon = True
    late.start()
    following.end()
    os._exit(0)  # a tracker's threads may have no end


def _give_up(following: Following) -> None:
    following.say(f"no answer in {LAST_SECONDS:.0f} s; {following.rest}")
    os._exit(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
