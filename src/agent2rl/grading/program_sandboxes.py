"""Keeps sandboxes alive in which programs of a submitted model run, while a grading child judges them.

They are the child's siblings, because a sandbox cannot be made from inside another. Each has a directory with
a socket in it, which the child sees too, and which is all that they share. One that ends is started again.
"""

import os
import sysconfig
import threading
import time
from pathlib import Path
from typing import Self

from agent2rl.core.errors import Agent2RLError, MachineError
from agent2rl.core.records import Limits
from agent2rl.core.sandbox import Command, Enclosure, Mount, Sandbox
from agent2rl.core.task import ProgramEvaluator, Task
from agent2rl.evaluators.code_tests.pool import SOCKET, build_server_command, list_server_files

PROGRAMS_MOUNT = "programs"
"""Where the child sees the directories, in its workspace."""
LONGEST_SECONDS = 30 * 86400.0
START_SECONDS = 30.0
PAUSE_SECONDS = 0.02
MEMORY_BYTES, DISK_BYTES, PROCESSES = 2 << 30, 64 << 20, 16


def count_program_sandboxes(task: Task) -> int:
    """How many a grading of this task gets: as many as it wants and there are cores."""
    wanted = task.evaluator.program_workers if isinstance(task.evaluator, ProgramEvaluator) else 0
    return min(wanted, len(os.sched_getaffinity(0)))


class ProgramSandboxes:
    """So many sandboxes, alive inside its context."""

    def __init__(
        self, sandbox: Sandbox, count: int, home: Path, limits: Limits, stop: threading.Event | None = None
    ) -> None:
        """`stop` ends the wait for their start."""
        self._sandbox = sandbox
        self._homes = [home / str(number) for number in range(count)]
        self._limits = Limits(
            memory_bytes=min(MEMORY_BYTES, limits.memory_bytes), disk_bytes=DISK_BYTES, processes=PROCESSES
        )
        self._stop = threading.Event()
        self._stopped = stop or threading.Event()
        self._fault: Agent2RLError | None = None
        self._threads = [
            threading.Thread(target=self._keep_running, args=(home,), daemon=True) for home in self._homes
        ]

    @property
    def sockets(self) -> list[Path]:
        return [home / "work" / SOCKET for home in self._homes]

    @property
    def mounts(self) -> tuple[Mount, ...]:
        return tuple(Mount(home / "work", f"{PROGRAMS_MOUNT}/{home.name}") for home in self._homes)

    def _keep_running(self, home: Path) -> None:
        """Run one sandbox, again and again until the end."""
        enclosure = Enclosure(
            role="program",
            workspace=home / "work",
            scratch=home / "scratch",
            log=home / "log",
            wall_seconds=LONGEST_SECONDS,
            limits=self._limits,
            hidden=PACKAGES,
            grace_seconds=0,
        )
        command = Command(
            build_server_command(SOCKET), mounts=tuple(Mount(path, str(path)) for path in list_server_files())
        )
        while not self._stop.is_set():
            try:
                self._sandbox.run(command, enclosure, self._stop)
            except Agent2RLError as error:
                self._fault = error
            except Exception as error:  # one that is out of descriptors, say, may be better off later
                self._fault = MachineError(f"A sandbox for programs failed: {type(error).__name__}: {error}")
            self._stop.wait(PAUSE_SECONDS)

    def __enter__(self) -> Self:
        for home in self._homes:
            (home / "work").mkdir(parents=True)
            (home / "scratch").mkdir()
        try:
            for thread in self._threads:
                thread.start()
            self._wait_until_ready()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _wait_until_ready(self) -> None:
        """Until all are there: a machine that cannot make them must not look like a model that fails."""
        late = time.monotonic() + START_SECONDS
        while not self._stopped.is_set() and not all(socket.exists() for socket in self.sockets):
            if self._fault is not None:
                raise self._fault
            if time.monotonic() > late:
                said = self._homes[0].joinpath("log").read_text(errors="replace")[-500:]
                raise MachineError(f"A sandbox for programs does not start: {said or 'it said nothing.'}")
            time.sleep(PAUSE_SECONDS)

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join()


_BASE = {
    "base": sysconfig.get_config_var("installed_base"),
    "platbase": sysconfig.get_config_var("installed_platbase"),
}
"""The interpreter's own directories, where this runs in a virtual environment."""
PACKAGES = (
    *(Path(sysconfig.get_path(name, vars=_BASE)) for name in ("purelib", "platlib")),
    Path("/usr/lib/python3/dist-packages"),
)
"""What is no part of the interpreter, and is hidden."""
