"""Says when a sandbox uses more than its limits: processes, memory, disk.

Asked a few times a second, and spends at most a twentieth of the time on processes, which slows its own pace
(`pause`), and a fifth on the disk, which it looks at in slices. What grows between two looks can overshoot;
it cannot stay. Many small files make a look at the disk slow, so their number is limited too. Mounts are
not counted, not even writable ones.
"""

import os
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Literal

from agent2rl.core.errors import MachineError
from agent2rl.core.sandbox import Enclosure, Process
from agent2rl.sandboxes import watch

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
    """Holds one sandbox to its limits."""

    def __init__(self, enclosure: Enclosure, own_processes: int) -> None:
        self.pause = SHORTEST_PAUSE_SECONDS
        """How long to wait before the next look."""
        self.peak_memory_bytes = 0
        """The most seen so far, as it was held against the limit."""
        self._own_processes = own_processes
        self._limits = enclosure.limits
        self._seen = enclosure.seen
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
        """The sandbox's own processes are older than all of the command's."""
        if self._seen:
            by_age = sorted(alive, key=lambda each: (each.began, each.pid))
            self._seen(by_age[self._own_processes :], self._disk.bytes)

    def _check_processes(self, members: list[Process]) -> LimitBreach | None:
        if (count := len(members) - self._own_processes) > self._limits.processes:
            detail = f"{count} processes were alive at once; the limit is {self._limits.processes}."
            return LimitBreach("processes", detail)
        limit = self._limits.memory_bytes
        used = sum(member.resident_bytes for member in members)
        # A shared page is resident in each process that shares it; before anything is ended, count it once.
        used = used if used <= limit else sum(map(watch.read_proportional_bytes, members))
        self.peak_memory_bytes = max(self.peak_memory_bytes, used)
        if used <= limit:
            return None
        return LimitBreach(
            "memory", f"Its processes held {_format_gib(used)} of memory; the limit is {_format_gib(limit)}."
        )


class _DiskMeter:
    """Adds up what the sandbox's directories hold, a slice at a time.

    A file that is moved while the sum is made can be counted twice, so two sums in a row must be over the
    limit.
    """

    def __init__(self, enclosure: Enclosure) -> None:
        self._roots = (enclosure.workspace, enclosure.scratch)
        self._limit = enclosure.limits.disk_bytes
        self._walk: Generator[int, None, None] | None = None
        self._sum = self._files = 0
        self.bytes: int | None = None
        """The last whole sum; None until there is one."""
        self._over = False
        self._next = 0.0
        if (free := self._count_free_bytes()) < FREE_BYTES:
            raise MachineError(
                f"Only {_format_gib(free)} of disk are free where {enclosure.workspace} lies.",
                f"Free some: a sandbox is ended when less than {_format_gib(FREE_BYTES)} are left.",
            )

    def check_disk(self, seconds: float) -> LimitBreach | None:
        if self._count_free_bytes() < FREE_BYTES or self._count_free_files() < FREE_FILES:
            return LimitBreach(
                "disk", f"It left less than {_format_gib(FREE_BYTES)} or too few files of the disk free."
            )
        try:
            if not self._continue_sum(seconds):
                return None
        except watch.TreeTooDeep:
            return LimitBreach("disk", f"Its directories are nested deeper than {watch.DEEPEST} levels.")
        if self._files > MOST_FILES:
            return LimitBreach("disk", f"It made more than {MOST_FILES:,} files.")
        self.bytes = self._sum
        over = self._sum > self._limit
        if over and self._over:
            return LimitBreach("disk", f"Its files took more than the limit of {_format_gib(self._limit)}.")
        self._over = over
        self._next = time.monotonic() + (0 if over else DISK_PAUSE_SECONDS)
        return None

    def _continue_sum(self, seconds: float) -> bool:
        """Go on adding for a while; True once the sum is complete, or over the limit."""
        until = time.monotonic() + seconds
        if self._walk is None:
            if time.monotonic() < self._next:
                return False
            self._walk, self._sum, self._files = watch.walk_allocated_bytes(self._roots), 0, 0
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
        """Some file systems do not count them, and say 0 of 0."""
        systems = [os.statvfs(root) for root in self._roots]
        return min(system.f_favail if system.f_files else FREE_FILES for system in systems)

    def _count_free_bytes(self) -> int:
        systems = [os.statvfs(root) for root in self._roots]
        return min(system.f_bavail * system.f_frsize for system in systems)


def _format_gib(size: int) -> str:
    return f"{size / (1 << 30):.2f} GiB"
