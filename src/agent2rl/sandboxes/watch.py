"""Measures what a sandbox uses, from outside: its processes, their memory, its disk.

It needs no cgroup, no privilege and no help from the measured, and works on processes that cannot be
traced. Not seen: memory that is resident in no process (files in /dev/shm, memfd, System V segments, pipe
buffers; the kernel's out-of-memory killer is pointed at the sandbox for that) and blocks of files that are
deleted but open (the floor under the file system's free space is for that).
"""

import os
import stat
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from agent2rl.core.sandbox import Process

PAGE = os.sysconf("SC_PAGE_SIZE")
TICKS = os.sysconf("SC_CLK_TCK")
BOOTED = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
DEEPEST = 256
"""One descriptor is held for each level while a tree is measured."""


def read_process(pid: int) -> Process | None:
    """A process that is alive; None for one that is gone or a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    # The name may hold spaces and brackets, so only the last bracket ends it.
    head, _, tail = text.rpartition(")")
    fields = tail.split()
    if fields[0] in "ZX":
        return None
    own, system, of_children, system_of_children = (int(field) / TICKS for field in fields[11:15])
    return Process(
        pid=pid,
        parent=int(fields[1]),
        name=head.partition("(")[2],
        resident_bytes=int(fields[21]) * PAGE,
        began=BOOTED + int(fields[19]) / TICKS,
        cpu_seconds=own + system,
        waited_seconds=of_children + system_of_children,
    )


def list_processes() -> dict[int, Process]:
    """All that are alive on this machine."""
    found = (read_process(int(entry)) for entry in os.listdir("/proc") if entry.isdigit())  # noqa: PTH208 (names only)
    return {each.pid: each for each in found if each is not None}


def find_descendants(roots: set[int], everyone: dict[int, Process]) -> list[Process]:
    """All below `roots`. In a pid namespace this is complete: orphans are given to its first process."""
    children: dict[int, list[Process]] = {}
    for each in everyone.values():
        children.setdefault(each.parent, []).append(each)
    found, waiting = [], list(roots)
    while waiting:
        below = [each for each in children.get(waiting.pop(), ()) if each.pid not in roots]
        found += below
        waiting += [each.pid for each in below]
    return found


def read_proportional_bytes(member: Process) -> int:
    """Its memory, shared pages divided among their users; where that cannot be read, its resident memory."""
    with suppress(OSError):
        for line in Path(f"/proc/{member.pid}/smaps_rollup").read_text(encoding="ascii").splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return member.resident_bytes


class TreeTooDeep(Exception):
    """Directories are nested deeper than can be measured."""


def walk_allocated_bytes(roots: tuple[Path, ...]) -> Generator[int, None, None]:
    """The allocated bytes of every file and directory below, one by one, so that the caller can pause.

    No link is followed, and a file with several names counts once.
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
    for name in folders:
        with _open_directory(name, directory) as folder:
            yield from _walk_directory(folder, linked, depth + 1)


@contextmanager
def _open_directory(name: str, parent: int | None) -> Iterator[int | None]:
    """A directory, or None if it is gone. Made readable if its owner may not: nothing hides by `chmod 0`."""
    flags = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
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
    """The directory behind a handle, opened; None where its owner closes it again as fast as we open it."""
    itself = f"/proc/self/fd/{handle}"
    for _ in range(3):
        if os.fstat(handle).st_mode & 0o500 != 0o500:
            Path(itself).chmod(0o700)
        with suppress(PermissionError):
            return os.open(itself, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    return None
