"""What this computer has, and the share of it that a sandbox gets where the user does not say."""

import os
import shutil
from pathlib import Path

from agent2rl.core.records import Limits

GIB = 1 << 30


def memory_bytes() -> int:
    """Physical memory, or the container's limit where that is smaller."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = [Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes")]
    found = [int(text) for path in limits if path.exists() and (text := path.read_text().strip()).isdigit()]
    return min([physical, *found])


def free_disk_bytes(path: Path) -> int:
    """Free space where a path lies or will lie."""
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free


def gpus() -> tuple[str, ...]:
    """Indices of the NVIDIA GPUs that this process can see."""
    found = sorted(path.name.removeprefix("nvidia") for path in Path("/dev").glob("nvidia[0-9]*"))
    return tuple(found)


def default_limits(runs: Path) -> Limits:
    """Most of the memory, most of the free disk, and more processes than an honest agent needs."""
    return Limits(
        memory_bytes=max(memory_bytes() * 3 // 4, GIB),
        disk_bytes=max(free_disk_bytes(runs) * 3 // 4, GIB),
        processes=max(400, 16 * (os.cpu_count() or 1)),
    )
