"""Mirrors a run while it goes, in a process of its own: a tracker's threads and waits are none of the run's.

    follow.py RUN TRACKER [GROUP]

Standard input is open as long as whoever started this has more to come; what happens is said on standard
output, a line each. A tracker that fails is tried again, ever more seldom, and once more at the end.
"""

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

LOOK_SECONDS = 1.0
RETRY_SECONDS, LONGEST_RETRY_SECONDS = 15.0, 600.0
LAST_SECONDS = 60.0
"""For what there is to say at the end."""
NICE = 15
"""The cores are the run's."""


class RunFollower:
    def __init__(self, paths: RunPaths, name: str, group: str | None, out: TextIO) -> None:
        self._paths, self._tracker, self._group, self._out = paths, mirror.require_tracker(name), group, out
        self.rest = f"`agent2rl track {paths.run_id} --to {name}` sends the rest"
        self._opened = ExitStack()
        self._mirror: RunMirror | None = None
        self._ledger = self._verdicts = -1
        self._retry_at, self._wait, self._failed = 0.0, RETRY_SECONDS, False

    def send_updates(self) -> None:
        """Tell what is new, if anything is and the tracker is not to be left alone for a while."""
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
        """Tell all, and close: a mirror has everything when it is closed."""
        try:
            opened = self._open_mirror()
            mirror.send_run_state(self._paths, opened)
            where = opened.where
            self._opened.close()
            self.print_line(where)
        except Exception as error:
            self._handle_failure(error)
            self.print_line(f"not all was sent; {self.rest}")

    def _open_mirror(self) -> RunMirror:
        if self._mirror is None:
            run = describe_run(read_run(self._paths), self._group)
            self._mirror = self._opened.enter_context(self._tracker.open(run))
        return self._mirror

    def _handle_failure(self, error: Exception) -> None:
        """Told once. What was opened is of no use any more."""
        if not self._failed:
            self.print_line(f"the run goes on, but not here: {describe_failure(error)}")
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
        signal.signal(number, signal.SIG_IGN)  # those mean the run, whose end is seen here too
    os.nice(NICE)
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):  # whatever a tracker prints, nobody asked for
        os.dup2(nowhere, descriptor)
    following = RunFollower(RunPaths(Path(run)), name, group, out)
    while not select.select([0], [], [], LOOK_SECONDS)[0]:
        following.send_updates()
    late = threading.Timer(LAST_SECONDS, _exit_on_timeout, [following])
    late.daemon = True
    late.start()
    following.send_rest_and_close()
    os._exit(0)  # a tracker's threads may have no end


def _exit_on_timeout(following: RunFollower) -> None:
    following.print_line(f"no answer in {LAST_SECONDS:.0f} s; {following.rest}")
    os._exit(1)


# The processes that mirror a run while it goes: begun with it, waited for at its end, never in its way.

GRACE_SECONDS = 10.0

PrintLine = Callable[[str], None]


class TrackerProcesses:
    """One for each tracker, so that one that hangs holds up no other."""

    def __init__(self, trackers: Sequence[str], group: str | None, tell: PrintLine) -> None:
        self._trackers, self._group, self._tell = trackers, group, tell
        self._started: list[tuple[subprocess.Popen[str], threading.Thread]] = []

    def start(self, paths: RunPaths) -> None:
        for name in self._trackers:
            try:
                self._start_tracker(name, paths)
            except OSError as error:
                self._tell(f"{name}: no process can be started: {error.strerror}")

    def _start_tracker(self, name: str, paths: RunPaths) -> None:
        process = subprocess.Popen(
            [sys.executable, "-m", "agent2rl.trackers.follow", str(paths.root), name]
            + ([self._group] if self._group else []),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
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
        """They end by themselves when nothing more comes; a run that is abandoned does not wait for it."""
        for process, _ in self._started:
            assert process.stdin
            with suppress(OSError):
                process.stdin.close()
        for process, listener in self._started if error is None or isinstance(error, SystemExit) else ():
            with suppress(subprocess.TimeoutExpired):
                process.wait(LAST_SECONDS + GRACE_SECONDS)
            if process.poll() is None:
                process.kill()
                process.wait()
            listener.join(GRACE_SECONDS)


def get_started_run_id(event: TimelineEvent) -> str | None:
    """The id of a run that begins, or goes on, with this event."""
    return str(event.data["run_id"]) if event.kind in ("opened", "resumed") else None


if __name__ == "__main__":
    main(*sys.argv[1:])
