"""Read this machine's resources (memory, disk, NVIDIA GPUs) and compute a sandbox's default limits."""

import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

import pynvml

from agent2rl.core.errors import UserError
from agent2rl.core.events import GpuSample
from agent2rl.core.records import Limits, RequestedLimits

GIB = 1 << 30


def read_memory_bytes() -> int:
    """Return the physical memory, or the container's limit if that is smaller."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = [Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes")]
    limit_bytes = [
        int(text) for path in limits if path.exists() and (text := path.read_text().strip()).isdigit()
    ]
    return min([physical, *limit_bytes])


def read_free_disk_bytes(path: Path) -> int:
    """Return the free space of the file system that a path is or will be on."""
    while not os.path.exists(path):  # noqa: PTH110 (a path without permission counts as missing)
        path = path.parent
    return shutil.disk_usage(path).free


def list_visible_gpus(visible: str | None) -> tuple[str, ...]:
    """Return the GPUs to grade on, as CUDA_VISIBLE_DEVICES names them: those in `visible`, else all.

    As in CUDA, entries from a -1 on do not count.
    """
    if visible is not None:
        names = (name.strip() for name in visible.split(","))
        visible_names = takewhile(lambda name: name != "-1", names)
        return tuple(dict.fromkeys(name for name in visible_names if name))
    return tuple(str(index) for index, _ in enumerate(Path("/dev").glob("nvidia[0-9]*")))


@dataclass(frozen=True)
class GpuAssignment:
    """The GPUs of the agent and those of grading. They are the same unless some are kept for grading."""

    agent: tuple[str, ...]
    grading: tuple[str, ...]


LAST = "last:"


def assign_gpus(visible: Sequence[str], kept: str | None) -> GpuAssignment:
    """Divide a run's GPUs. `kept` names those for grading alone ("6,7"), or the last ones ("last:2").

    None: the agent and grading share all of them.
    """
    gpus = tuple(visible)
    if kept is None:
        return GpuAssignment(gpus, gpus)
    if kept.startswith(LAST) and kept.removeprefix(LAST).isdecimal():
        count = int(kept.removeprefix(LAST))
        grading = gpus[max(0, len(gpus) - count) :]
        is_known = 0 < count <= len(gpus)
    else:
        grading = tuple(dict.fromkeys(name.strip() for name in kept.split(",")))
        is_known = set(grading) <= set(gpus)
    available = ", ".join(gpus) or "none"
    if not is_known:
        raise UserError(
            f"This run does not have the GPUs {kept!r} to keep for grading (it has: {available}).",
            "Name some of its GPUs as CUDA_VISIBLE_DEVICES does, or write last:1.",
        )
    agent = tuple(name for name in gpus if name not in grading)
    if not agent:
        raise UserError(
            f"With {kept!r} kept for grading, no GPU is left for the agent (the run has: {available}).",
            "Leave out --grading-gpus, or give the run more GPUs.",
        )
    return GpuAssignment(agent, grading)


def resolve_limits(runs: Path, requested: RequestedLimits | None = None) -> Limits:
    """Return the requested limits. Defaults: most of the memory, most of the free disk, and more processes
    than an honest agent needs."""
    requested = requested or RequestedLimits()
    return Limits(
        memory_bytes=requested.memory_bytes or max(read_memory_bytes() * 3 // 4, GIB),
        disk_bytes=requested.disk_bytes or max(read_free_disk_bytes(runs) * 3 // 4, GIB),
        processes=requested.processes or max(400, 16 * (os.cpu_count() or 1)),
    )


# NVIDIA GPUs. Without a driver there are none.


def read_gpu_uuids() -> tuple[str, ...]:
    """Return the driver's UUIDs of the GPUs, in bus order."""
    try:
        pynvml.nvmlInit()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        return tuple(str(pynvml.nvmlDeviceGetUUID(handle)) for handle in handles)
    except pynvml.NVMLError:
        return ()


class GpuMemory(NamedTuple):
    """Bytes of one GPU's memory."""

    free: int
    total: int


def read_gpu_memory(names: Sequence[str]) -> dict[str, GpuMemory]:
    """Return the memory of each named GPU (an index or a UUID) that the driver knows."""
    memory = {}
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return {}
    for name in names:
        with suppress(pynvml.NVMLError):
            find = pynvml.nvmlDeviceGetHandleByIndex if name.isdigit() else pynvml.nvmlDeviceGetHandleByUUID
            info = pynvml.nvmlDeviceGetMemoryInfo(find(int(name) if name.isdigit() else name))
            memory[name] = GpuMemory(int(info.free), int(info.total))
    return memory


class GpuSampler:
    """Reads GPU utilization. Opened once, because the driver may take seconds to initialize."""

    def __init__(self) -> None:
        self._handles: tuple[Any, ...] = ()
        self._read: list[tuple[GpuSample, ...]] = []
        try:
            pynvml.nvmlInit()
            count = pynvml.nvmlDeviceGetCount()
            self._handles = tuple(pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(count))
        except pynvml.NVMLError:
            return

    def read_gpus(self) -> None:
        """Add one reading of each GPU."""
        if self._handles:
            readings = (_read_gpu(index, handle) for index, handle in enumerate(self._handles))
            self._read.append(tuple(gpu for gpu in readings if gpu))

    def take_averages(self) -> tuple[GpuSample, ...]:
        """Return the averages of all readings since the last call."""
        read, self._read = self._read, []
        by_index: dict[int, list[GpuSample]] = {}
        for gpu in (gpu for reading in read for gpu in reading):
            by_index.setdefault(gpu.index, []).append(gpu)
        return tuple(_merge_readings(readings) for readings in by_index.values())


def _read_gpu(index: int, handle: Any) -> GpuSample | None:
    """Return None if the GPU does not answer; it may have fallen off the bus."""
    try:
        used = pynvml.nvmlDeviceGetMemoryInfo(handle).used
    except pynvml.NVMLError:
        return None
    try:
        busy = pynvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
    except pynvml.NVMLError:  # a partitioned GPU (MIG) does not report it
        busy = None
    return GpuSample(index=index, busy=busy, memory_bytes=used)


def _merge_readings(readings: Sequence[GpuSample]) -> GpuSample:
    busy = [gpu.busy for gpu in readings if gpu.busy is not None]
    return GpuSample(
        index=readings[0].index,
        busy=sum(busy) / len(busy) if busy else None,
        memory_bytes=max(gpu.memory_bytes for gpu in readings),
    )
