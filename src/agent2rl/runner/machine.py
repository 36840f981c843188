"""What this computer has, and the share of it that a sandbox gets where the user does not say."""

import os
import shutil
from itertools import takewhile
from pathlib import Path

from agent2rl.core.records import Limits, RequestedLimits

GIB = 1 << 30


def read_memory_bytes() -> int:
    """Physical memory, or the container's limit where that is smaller."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = [Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes")]
    found = [int(text) for path in limits if path.exists() and (text := path.read_text().strip()).isdigit()]
    return min([physical, *found])


def read_free_disk_bytes(path: Path) -> int:
    """Free space where a path lies or will lie."""
    while not os.path.exists(path):  # noqa: PTH110 (where it may not be looked at, it is not there)
        path = path.parent
    return shutil.disk_usage(path).free


def list_visible_gpus(visible: str | None) -> tuple[str, ...]:
    """The GPUs to grade on, as CUDA_VISIBLE_DEVICES names them: `visible` itself, else all there are.

    As for CUDA, nothing counts from a -1 on.
    """
    if visible is not None:
        names = (name.strip() for name in visible.split(","))
        found = takewhile(lambda name: name != "-1", names)
        return tuple(dict.fromkeys(name for name in found if name))
    return tuple(str(index) for index, _ in enumerate(Path("/dev").glob("nvidia[0-9]*")))


def resolve_limits(runs: Path, asked: RequestedLimits | None = None) -> Limits:
    """What is asked for; else most of the memory, most of the free disk, and more processes than an honest
    agent needs."""
    asked = asked or RequestedLimits()
    return Limits(
        memory_bytes=asked.memory_bytes or max(read_memory_bytes() * 3 // 4, GIB),
        disk_bytes=asked.disk_bytes or max(read_free_disk_bytes(runs) * 3 // 4, GIB),
        processes=asked.processes or max(400, 16 * (os.cpu_count() or 1)),
    )
