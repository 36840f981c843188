"""Mirrors a run in progress from a separate process, so that a tracker's threads and waits do not affect it.

    follow.py RUN TRACKER [GROUP]

The parent closes standard input when the run is over. Messages go to standard output, one per line. If a
tracker fails, it is retried with growing pauses, and once more at the end.
"""

import logging
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Self, TextIO

from agent2rl.core.events import TimelineEvent
from agent2rl.core.tracker import RunMirror
from agent2rl.record.paths import RunPaths
from agent2rl.record.reader import read_run
from agent2rl.trackers import mirror
from agent2rl.trackers.mirror import count_verdicts, describe_failure, describe_run

logger = logging.getLogger(__name__)

POLL_SECONDS = 1.0
RETRY_SECONDS, LONGEST_RETRY_SECONDS = 15.0, 600.0
LAST_SECONDS = 60.0
"""Time limit for the final update."""
NICE = 15
"""Low priority: the cores belong to the run."""


class RunFollower:
    def __init__(self, paths: RunPaths, name: str, group: str | None, out: TextIO) -> None:
        self._paths, self._tracker, self._group, self._out = paths, mirror.require_tracker(name), group, out
        self.rest = f"send the rest with `agent2rl track {paths.run_id} --to {name}`"
        self._opened = ExitStack()
        self._mirror: RunMirror | None = None
        self._ledger = self._verdicts = -1
        self._retry_at, self._wait, self._failed = 0.0, RETRY_SECONDS, False

    def send_updates(self) -> None:
        """Send new data, unless there is none or the tracker failed recently."""
        size = self._paths.ledger.stat().st_size if self._paths.ledger.exists() else 0
        if size == self._ledger or time.monotonic() < self._retry_at:
            return
        try:
            self._ledger = size
            view = read_run(self._paths)
            now = count_verdicts(view.submissions) + (view.baseline is not None)
            if self._mirror is None or now != self._verdicts:
                mirror.send_run_state(self._paths, self._open_mirror())
                self._verdicts = now
        except Exception as error:
            self._handle_failure(error)

    def send_rest_and_close(self) -> None:
        """Send everything and close the mirror, which makes sure that the tracker has it."""
        try:
            opened = self._open_mirror()
            mirror.send_run_state(self._paths, opened)
            where = opened.where
            self._opened.close()
            self.print_line(where)
        except Exception as error:
            self._handle_failure(error)
            self.print_line(f"not everything was sent; {self.rest}")

    def _open_mirror(self) -> RunMirror:
        if self._mirror is None:
            run = describe_run(read_run(self._paths), self._group)
            self._mirror = self._opened.enter_context(self._tracker.open(run))
        return self._mirror

    def _handle_failure(self, error: Exception) -> None:
        """Report the first failure, drop the connection and schedule a retry."""
        if not self._failed:
            self.print_line(f"tracking failed, the run continues: {describe_failure(error)}")
        self._failed, self._mirror, self._ledger = True, None, -1
        self._retry_at, self._wait = time.monotonic() + self._wait, min(2 * self._wait, LONGEST_RETRY_SECONDS)
        try:
            self._opened.close()
        except Exception:
            self._opened = ExitStack()

    def print_line(self, line: str) -> None:
        print(line, file=self._out, flush=True)


def main(run: str, name: str, group: str | None = None) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # they are meant for the run; this process ends after it
    os.nice(NICE)
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    null = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):  # discard what trackers print
        os.dup2(null, descriptor)
    following = RunFollower(RunPaths(Path(run)), name, group, out)
    while not select.select([0], [], [], POLL_SECONDS)[0]:
        following.send_updates()
    late = threading.Timer(LAST_SECONDS, _exit_on_timeout, [following])
    late.daemon = True
    late.start()
    following.send_rest_and_close()
    os._exit(0)  # a tracker's threads may never end


def _exit_on_timeout(following: RunFollower) -> None:
    following.print_line(f"no answer in {LAST_SECONDS:.0f} s; {following.rest}")
    os._exit(1)


# The tracker processes of a run: started with it and awaited at its end.

GRACE_SECONDS = 10.0

PrintLine = Callable[[str], None]


class TrackerProcesses:
    """One process per tracker, so that one that hangs does not delay the others."""

    def __init__(self, trackers: Sequence[str], group: str | None, tell: PrintLine) -> None:
        self._trackers, self._group, self._tell = trackers, group, tell
        self._started: list[tuple[subprocess.Popen[str], threading.Thread]] = []

    def start(self, paths: RunPaths) -> None:
        for name in self._trackers:
            try:
                self._start_tracker(name, paths)
            except OSError as error:
                self._tell(f"{name}: cannot start the tracker process: {error.strerror}")

    def _start_tracker(self, name: str, paths: RunPaths) -> None:
        process = subprocess.Popen(
            [sys.executable, "-m", "agent2rl.trackers.follow", str(paths.root), name]
            + ([self._group] if self._group else []),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        logger.debug("started tracker %s: pid %d", name, process.pid)
        listener = threading.Thread(target=self._forward_output, args=(name, process), daemon=True)
        listener.start()
        self._started.append((process, listener))

    def _forward_output(self, name: str, process: "subprocess.Popen[str]") -> None:
        assert process.stdout
        for line in process.stdout:
            self._tell(f"{name}: {line.rstrip()}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let the processes finish. Wait for them, except if the run was abandoned."""
        for process, _ in self._started:
            assert process.stdin
            with suppress(OSError):
                process.stdin.close()
        for process, listener in self._started if error is None or isinstance(error, SystemExit) else ():
            with suppress(subprocess.TimeoutExpired):
                process.wait(LAST_SECONDS + GRACE_SECONDS)
            if process.poll() is None:
                logger.warning("tracker process %d does not exit: killing it", process.pid)
                process.kill()
                process.wait()
            logger.debug("tracker process %d exited with %s", process.pid, process.returncode)
            listener.join(GRACE_SECONDS)


def get_started_run_id(event: TimelineEvent) -> str | None:
    """Return the id of the run that this event starts or resumes."""
    return str(event.data["run_id"]) if event.kind in ("opened", "resumed") else None


if __name__ == "__main__":
    main(*sys.argv[1:])
