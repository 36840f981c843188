"""Prepares what every container needs: mounts, the plan of `inside.py`, and word from it when it is ready."""

import csv
import io
import os
import re
import select
import socket
import struct
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from agent2rl.core.errors import MachineError
from agent2rl.core.sandbox import Command, Enclosure, Mount, Process
from agent2rl.sandboxes import resource_limits, sandbox_user, seccomp, supervise, view
from agent2rl.sandboxes.gpu_devices import list_device_mounts, renumber_visible_gpus
from agent2rl.sandboxes.sandbox_user import SandboxUser

# What a command sees in a container, as mounts of the host's files.
#
# A container engine mounts them parents first, and creates missing mount points in the image. Where a mount
# point lies in something of the host's, it is created here, without following links. Covers and small files
# lie in a directory of their own, which no mount shows.


CLOSED = (PurePosixPath("/root"),)
MOUNT_TABLE = Path("/proc/self/mountinfo")


@dataclass(frozen=True)
class ContainerBind:
    source: Path
    writable: bool


class ContainerView(view.FileSystemView):
    """Collects mounts by their target. `directory` receives small files."""

    def __init__(self, hidden: Iterable[Path], directory: Path) -> None:
        super().__init__(hidden)
        self.binds: dict[PurePosixPath, ContainerBind] = {}
        self.devices: tuple[Mount, ...] = ()
        self.shared_memory_bytes = 0
        self._directory = directory
        self._covers: set[PurePosixPath] = set()
        self._mount_points = read_mount_points()

    def add_bind(self, source: Path, target: PurePosixPath, writable: bool) -> None:
        self._place(target, ContainerBind(view.real_path(source), writable))
        if writable:
            return
        # Some engines leave what is mounted below a read-only mount writable.
        shown = view.real_path(source)
        for point in self._mount_points:
            if shown in point.parents and not any(point.is_relative_to(path) for path in self.hidden):
                self.binds[target / point.relative_to(shown)] = ContainerBind(point, False)

    def add_cover(self, target: PurePosixPath, is_directory: bool) -> None:
        empty = self._make_directory() if is_directory else self._write_file("")
        self._place(target, ContainerBind(empty, False))
        self._covers.add(target)

    def add_link(self, target: PurePosixPath, leads_to: Path) -> None:
        """Nothing is to be done: the image has these links."""

    def add_text_file(self, target: PurePosixPath, content: str) -> None:
        self._place(target, ContainerBind(self._write_file(content), False))

    def add_kernel_files(self, enclosure: Enclosure) -> None:
        """Add the device files. The engine adds /proc, /dev and a read-only /sys."""
        self.shared_memory_bytes = view.limit_shared_memory(enclosure.limits.memory_bytes)
        if enclosure.role != "program":
            self.devices = list_device_mounts(enclosure.gpus)

    def cover_image(self, volumes: Iterable[PurePosixPath]) -> None:
        """Show empty directories in place of an image's volumes, and of its /root if something lies in it.

        A volume would be writable, and an image gives /root to root alone. Call this after all else is added.
        """
        closed = [path for path in CLOSED if any(path in target.parents for target in self.binds)]
        for target in (*volumes, *closed):
            if target not in self.binds:
                self.binds[target] = ContainerBind(self._make_directory(), False)
                self._covers.add(target)

    def make_mount_points(self, root: Path | None = None) -> None:
        """Create the mount points that lie in covers and in writable directories. Call this last.

        `root` is the directory that becomes the container's root, if that is one of the host's.
        """
        for target, bind in sorted(self.binds.items()):
            parent = next((path for path in target.parents if path in self.binds), None)
            if parent is None and root:
                supervise.make_mountpoint(root, target.relative_to("/"), bind.source)
            elif parent and (parent in self._covers or self.binds[parent].writable):
                supervise.make_mountpoint(self.binds[parent].source, target.relative_to(parent), bind.source)

    def make_mount_options(self) -> list[str]:
        """Return the mounts as options of an engine's command line, parents first."""
        binds = sorted(self.binds.items(), key=lambda item: (len(item[0].parts), item[0]))
        return [_format_mount(bind, target) for target, bind in binds]

    def _place(self, target: PurePosixPath, bind: ContainerBind) -> None:
        """Mount something in place of all that was mounted there or below."""
        self.binds = {path: other for path, other in self.binds.items() if not path.is_relative_to(target)}
        self._covers = {path for path in self._covers if not path.is_relative_to(target)}
        self.binds[target] = bind

    def _make_directory(self) -> Path:
        place = Path(tempfile.mkdtemp(dir=self._directory))
        place.chmod(0o755)
        return place

    def _write_file(self, content: str) -> Path:
        descriptor, name = tempfile.mkstemp(dir=self._directory)
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(content)
        Path(name).chmod(0o444)
        return Path(name)


def _format_mount(bind: ContainerBind, target: PurePosixPath) -> str:
    """Return a mount option, which is a line of CSV: a path may contain commas."""
    line = io.StringIO()
    fields = ["type=bind", f"source={bind.source}", f"destination={target}"]
    csv.writer(line, lineterminator="").writerow([*fields, *([] if bind.writable else ["ro"])])
    return f"--mount={line.getvalue()}"


def read_mount_points() -> list[Path]:
    """Return the mount points of this process, parents first."""
    points = []
    with suppress(FileNotFoundError):
        for line in MOUNT_TABLE.read_text(encoding="utf-8", errors="surrogateescape").splitlines():
            # The kernel writes spaces and the like as octal numbers.
            name = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), line.split()[4])
            points.append(Path(name))
    return sorted(set(points))


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
                # The kernel says the pid as it is in this namespace. Inside it is 1.
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
        # Another process may have got the pid since.
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
    sandbox_user.prepare_mounts(enclosure, mounts, user)
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
            "sockets": supervise.plan_sockets(enclosure.sockets, sockets),
            "limits": _make_rlimits(enclosure.limits.processes, user),
            "filter": seccomp.build_filter().hex(),
            "ready": str(READY),
        }
        yield StagedContainer(enclosure, seen, ready, plan, folder)


def _make_rlimits(processes: int, user: SandboxUser) -> dict[str, int]:
    """Return the rlimits. That of processes would count the user's others too, if it is not of its own."""
    limits = sandbox_user.make_rlimits(processes)
    if not user.dropped:
        del limits["RLIMIT_NPROC"]
    return limits
