"""Prepares what every container needs: mounts, the plan of `inside.py`, and word from it when it is ready."""

import os
import select
import socket
import struct
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from agent2rl.core.errors import MachineError
from agent2rl.core.sandbox import Command, Enclosure, Process
from agent2rl.sandboxes import bubblewrap, resource_limits, seccomp, supervise, view
from agent2rl.sandboxes.bubblewrap import SandboxUser
from agent2rl.sandboxes.container_view import ContainerView
from agent2rl.sandboxes.gpu_devices import renumber_visible_gpus

READY = view.SOCKETS / "ready"


class ReadySocket:
    """A socket to which `inside.py` connects before it starts the command. So its pid is known too."""

    def __init__(self, path: Path, user: SandboxUser) -> None:
        self.path = path
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.setblocking(False)
        self._pid: int | None = None
        self._first: Process | None = None
        with _open_short(path.parent) as short:
            self._listener.bind(f"{short}/{path.name}")
        self._listener.listen(1)
        if user.dropped:
            os.chown(path, user.uid, user.uid)

    def has_arrived(self) -> bool:
        """Return whether `inside.py` was ready; raise MachineError if it has no pid here."""
        if self._pid is None and select.select([self._listener], [], [], 0)[0]:
            link, _ = self._listener.accept()
            with link:
                credentials = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
            self._pid = int(struct.unpack("3i", credentials)[0])
            self._first = resource_limits.read_process(self._pid)
        if self._pid == 0:  # it is in no pid namespace below this one
            raise MachineError(
                "The container's processes are not visible to the harness, so it cannot limit them.",
                "Start agent2rl on the machine of the container engine's daemon, not in another container.",
            )
        return self._pid is not None

    def find_first(self) -> Process | None:
        """Return the process of `inside.py`; None before it is ready and after its end."""
        if not self.has_arrived() or self._first is None:
            return None
        now = resource_limits.read_process(self._first.pid)
        return now if now and now.began == self._first.began else None

    def list_members(self) -> list[Process]:
        """Return the command's processes."""
        first = self.find_first()
        if first is None:
            return []
        return resource_limits.find_descendants({first.pid}, resource_limits.list_processes())

    def __enter__(self) -> "ReadySocket":
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()


@contextmanager
def _open_short(directory: Path) -> Iterator[str]:
    """Yield a short name of a directory: the kernel takes at most 107 characters for a socket's path."""
    descriptor = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


@dataclass(frozen=True)
class StagedContainer:
    """What is prepared for one container."""

    enclosure: Enclosure
    view: ContainerView
    ready: ReadySocket
    plan: Mapping[str, object]
    folder: Path
    """Empty, and deleted at the end."""


@contextmanager
def stage_container(
    command: Command, enclosure: Enclosure, user: SandboxUser, has_own_system: bool
) -> Iterator[StagedContainer]:
    """Prepare a container. `has_own_system`: its image has programs and settings of its own.

    The caller creates the view's mount points.
    """
    enclosure = supervise.resolve_enclosure(enclosure)
    mounts = supervise.collect_mounts(command, enclosure)
    command = renumber_visible_gpus(command, enclosure.gpus)
    bubblewrap.prepare_mounts(enclosure, mounts, user)
    with (
        tempfile.TemporaryDirectory(prefix="container-", dir=enclosure.scratch) as name,
        ReadySocket(Path(name, "ready"), user) as ready,
    ):
        files, folder = Path(name, "files"), Path(name, "folder")
        for directory in (files, folder):
            directory.mkdir()
        seen = ContainerView(enclosure.hidden, files)
        sockets = view.build_view(seen, enclosure, mounts, user.uid, has_own_system=has_own_system)
        seen.bind_path(ready.path, READY)
        home, temporary = str(view.HOME), str(view.TEMPORARY)
        plan = {
            **supervise.make_inside_plan(command, home, temporary, enclosure.python),
            "sockets": sockets,
            "limits": _make_rlimits(enclosure.limits.processes, user),
            "filter": seccomp.build_filter().hex(),
            "ready": str(READY),
        }
        yield StagedContainer(enclosure, seen, ready, plan, folder)


def _make_rlimits(processes: int, user: SandboxUser) -> dict[str, int]:
    """Return the rlimits. That of processes would count the user's others too, if it is not of its own."""
    limits = bubblewrap.make_rlimits(processes)
    if not user.dropped:
        del limits["RLIMIT_NPROC"]
    return limits
