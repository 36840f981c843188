"""The processes that mirror a run while it goes: begun with it, waited for at its end, never in its way."""

import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self

from agent2rl.core.events import TimelineEvent
from agent2rl.store.paths import RunPaths
from agent2rl.tracking.follow import LAST_SECONDS

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
            [sys.executable, "-m", "agent2rl.tracking.follow", str(paths.root), name]
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
