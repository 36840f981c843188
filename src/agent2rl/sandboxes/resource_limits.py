"""Measures a sandbox's processes, memory and disk from outside, and reports when it exceeds its limits.

It needs no cgroup, no privilege and no cooperation of the sandbox. It is polled a few times a second and
spends at most a twentieth of the time on processes and a fifth on the disk, which it walks in slices. Usage
can exceed a limit between two checks, but not for longer. Many small files make the disk walk slow, so their
number is limited too. Mounts are not counted, not even writable ones. Not seen: memory that is resident in no
process (/dev/shm, memfd, System V segments, pipe buffers; for these the kernel's OOM killer prefers the
sandbox), and deleted files that are still open (for these there is a minimum of free disk space).
"""

import os
import stat
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from agent2rl.core.errors import MachineError
from agent2rl.core.sandbox import Enclosure, Process

# Measuring processes, memory and disk

PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 0
TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 0
BOOTED = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else 0.0
STAT_BYTES = 4096
"""Longer than any line of `/proc/PID/stat`."""
DEEPEST = 256
"""One descriptor is held for each level while a tree is measured."""


def read_process(pid: int) -> Process | None:
    """Return a live process; None if it is gone or a zombie."""
    # Every process of the machine is read a few times a second, so this is plain: Path.read_text takes
    # three times as long.
    try:
        file = os.open(f"/proc/{pid}/stat", os.O_RDONLY)
        try:
            text = os.read(file, STAT_BYTES)
        finally:
            os.close(file)
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    # The name may hold spaces and brackets, so only the last bracket ends it.
    head, _, tail = text.rpartition(b")")
    fields = tail.split()
    if fields[0] in b"ZX":
        return None
    own, system, of_children, system_of_children = (int(field) / TICKS for field in fields[11:15])
    return Process(
        pid=pid,
        parent=int(fields[1]),
        name=head.partition(b"(")[2].decode(errors="replace"),
        resident_bytes=int(fields[21]) * PAGE,
        began=BOOTED + int(fields[19]) / TICKS,
        cpu_seconds=own + system,
        waited_seconds=of_children + system_of_children,
    )


def list_processes() -> dict[int, Process]:
    """Return all live processes of this machine by pid."""
    pids = (int(entry) for entry in os.listdir("/proc") if entry.isdigit())  # noqa: PTH208 (names only)
    return {pid: process for pid in pids if (process := read_process(pid)) is not None}


def find_descendants(roots: set[int], everyone: dict[int, Process]) -> list[Process]:
    """Return all descendants of `roots`. In a pid namespace this is complete, because its first process
    adopts orphans."""
    children: dict[int, list[Process]] = {}
    for process in everyone.values():
        children.setdefault(process.parent, []).append(process)
    descendants, pending = [], list(roots)
    while pending:
        below = [process for process in children.get(pending.pop(), ()) if process.pid not in roots]
        descendants += below
        pending += [process.pid for process in below]
    return descendants


def read_proportional_bytes(member: Process) -> int:
    """Return its proportional set size (shared pages are divided among their users); if that cannot be read,
    its resident memory, which is none if it has ended since it was listed."""
    with suppress(OSError):
        for line in Path(f"/proc/{member.pid}/smaps_rollup").read_text(encoding="ascii").splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    now = read_process(member.pid)
    return now.resident_bytes if now and now.began == member.began else 0


class TreeTooDeep(Exception):
    """Directories are nested deeper than can be measured."""


def walk_allocated_bytes(roots: tuple[Path, ...]) -> Generator[int, None, None]:
    """Yield the allocated bytes of every file and directory below, so that the caller can pause.

    It follows no links, and counts a file with several hard links once.
    """
    linked: set[tuple[int, int]] = set()
    for root in roots:
        with _open_directory(str(root), None) as directory:
            yield from _walk_directory(directory, linked, 1)


def _walk_directory(
    directory: int | None, linked: set[tuple[int, int]], depth: int
) -> Generator[int, None, None]:
    if directory is None:
        return
    if depth > DEEPEST:
        raise TreeTooDeep
    folders = []
    with os.scandir(directory) as entries:
        for entry in entries:
            try:
                status = entry.stat(follow_symlinks=False)
            except (FileNotFoundError, PermissionError):  # gone, or closed again since it was opened
                continue
            if stat.S_ISDIR(status.st_mode):
                folders.append(entry.name)
            elif status.st_nlink > 1:
                if (status.st_dev, status.st_ino) in linked:
                    continue
                linked.add((status.st_dev, status.st_ino))
            yield status.st_blocks * 512
    # After the listing is closed, so that each level holds one descriptor and not two.
    for name in folders:
        with _open_directory(name, directory) as folder:
            yield from _walk_directory(folder, linked, depth + 1)


@contextmanager
def _open_directory(name: str, parent: int | None) -> Iterator[int | None]:
    """Open a directory; None if it is gone. It is made readable first, so that `chmod 0` hides nothing."""
    flags = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        # This opens a directory without any rights, too, so that they can be restored.
        handle = os.open(name, flags | os.O_PATH, dir_fd=parent)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        yield None
        return
    try:
        directory = _open_readable(handle)
    finally:
        os.close(handle)
    try:
        yield directory
    finally:
        if directory is not None:
            os.close(directory)


def _open_readable(handle: int) -> int | None:
    """Open the directory behind a handle; None if its owner revokes access as fast as we restore it."""
    itself = f"/proc/self/fd/{handle}"
    for _ in range(3):
        if os.fstat(handle).st_mode & 0o500 != 0o500:
            # By the descriptor: at the name there may be a link by now.
            Path(itself).chmod(0o700)
        with suppress(PermissionError):
            return os.open(itself, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    return None


# Enforcing limits on processes, memory and disk

SHORTEST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.2, 2.0
SHARE, DISK_SHARE = 20, 5
MOST_FILES = 2_000_000
FREE_FILES = 10_000
DISK_PAUSE_SECONDS = 2.0
FREE_BYTES = 256 << 20


@dataclass(frozen=True)
class LimitBreach:
    reason: Literal["memory", "processes", "disk"]
    detail: str


class LimitGuard:
    """Checks one sandbox against its limits."""

    def __init__(self, enclosure: Enclosure, own_processes: int) -> None:
        self.pause = SHORTEST_PAUSE_SECONDS
        """How long to wait before the next check."""
        self.peak_memory_bytes = 0
        """Peak memory so far, counted as for the limit."""
        self._own_processes = own_processes
        self._limits = enclosure.limits
        self._process_observer = enclosure.process_observer
        self._disk = _DiskMeter(enclosure)

    def check_limits(self, members: Callable[[], list[Process]]) -> LimitBreach | None:
        began = time.monotonic()
        alive = members()
        breach = self._check_processes(alive)
        self._report_processes(alive)
        cost = time.monotonic() - began
        self.pause = min(max(SHORTEST_PAUSE_SECONDS, SHARE * cost), LONGEST_PAUSE_SECONDS)
        return breach or self._disk.check_disk(self.pause / DISK_SHARE)

    def _report_processes(self, alive: list[Process]) -> None:
        """Report the command's processes; the sandbox's own are the oldest ones."""
        if self._process_observer:
            by_age = sorted(alive, key=lambda process: (process.began, process.pid))
            self._process_observer(by_age[self._own_processes :], self._disk.bytes)

    def _check_processes(self, members: list[Process]) -> LimitBreach | None:
        if (count := len(members) - self._own_processes) > self._limits.processes:
            detail = f"{count} processes were alive at once; the limit is {self._limits.processes}."
            return LimitBreach("processes", detail)
        limit = self._limits.memory_bytes
        # The resident size is in a file that is read anyway. Proportional sizes are slow to
        # compute.
        used = sum(member.resident_bytes for member in members)
        # A shared page is resident in each process that shares it; before killing anything, count it once.
        used = used if used <= limit else sum(map(read_proportional_bytes, members))
        self.peak_memory_bytes = max(self.peak_memory_bytes, used)
        if used <= limit:
            return None
        return LimitBreach(
            "memory", f"Its processes held {_format_gib(used)} of memory; the limit is {_format_gib(limit)}."
        )


class _DiskMeter:
    """Sums up the disk usage of the sandbox's directories, a slice at a time.

    A file that is moved during the walk can be counted twice, so two sums in a row must be over the limit.
    """

    def __init__(self, enclosure: Enclosure) -> None:
        self._roots = (enclosure.workspace, enclosure.scratch)
        self._limit = enclosure.limits.disk_bytes
        self._walk: Generator[int, None, None] | None = None
        self._sum = self._files = 0
        self.bytes: int | None = None
        """The last complete sum; None until there is one."""
        self._over = False
        self._next = 0.0
        if (free := self._count_free_bytes()) < FREE_BYTES:
            raise MachineError(
                f"Only {_format_gib(free)} of disk space are free at {enclosure.workspace}.",
                f"Free some: a sandbox is killed when less than {_format_gib(FREE_BYTES)} are free.",
            )

    def check_disk(self, seconds: float) -> LimitBreach | None:
        if self._count_free_bytes() < FREE_BYTES or self._count_free_files() < FREE_FILES:
            return LimitBreach(
                "disk",
                f"Less than {_format_gib(FREE_BYTES)} of disk space, or too few inodes, were left free.",
            )
        try:
            if not self._continue_sum(seconds):
                return None
        except TreeTooDeep:
            return LimitBreach("disk", f"Its directories are nested deeper than {DEEPEST} levels.")
        if self._files > MOST_FILES:
            return LimitBreach("disk", f"It made more than {MOST_FILES:,} files.")
        self.bytes = self._sum
        over = self._sum > self._limit
        if over and self._over:
            return LimitBreach("disk", f"Its files took more than the limit of {_format_gib(self._limit)}.")
        self._over = over
        # Two sums decide, so the second one does not wait.
        self._next = time.monotonic() + (0 if over else DISK_PAUSE_SECONDS)
        return None

    def _continue_sum(self, seconds: float) -> bool:
        """Continue the walk for some time; return True once the sum is complete or over the limit."""
        until = time.monotonic() + seconds
        if self._walk is None:
            if time.monotonic() < self._next:
                return False
            self._walk, self._sum, self._files = walk_allocated_bytes(self._roots), 0, 0
        for size in self._walk:
            self._sum += size
            self._files += 1
            if self._sum > self._limit or self._files > MOST_FILES:
                break
            if time.monotonic() > until:
                return False
        self._walk.close()
        self._walk = None
        return True

    def _count_free_files(self) -> int:
        """Return the number of free inodes. Some file systems do not count them and report 0 of 0."""
        systems = [os.statvfs(root) for root in self._roots]
        return min(system.f_favail if system.f_files else FREE_FILES for system in systems)

    def _count_free_bytes(self) -> int:
        systems = [os.statvfs(root) for root in self._roots]
        return min(system.f_bavail * system.f_frsize for system in systems)


def _format_gib(size: int) -> str:
    return f"{size / (1 << 30):.2f} GiB"
