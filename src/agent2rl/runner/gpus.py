"""What the NVIDIA driver says of this machine's GPUs. Where there is no driver, there are none."""

from collections.abc import Sequence
from typing import Any

import pynvml

from agent2rl.core.events import Gpu


def uuids() -> tuple[str, ...]:
    """The driver's names for the GPUs, in the order of the bus."""
    try:
        pynvml.nvmlInit()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        return tuple(str(pynvml.nvmlDeviceGetUUID(handle)) for handle in handles)
    except pynvml.NVMLError:
        return ()


class Gpus:
    """Opened once: the driver takes its time, up to seconds, to begin with."""

    def __init__(self) -> None:
        self._handles: tuple[Any, ...] = ()
        self._read: list[tuple[Gpu, ...]] = []
        try:
            pynvml.nvmlInit()
            count = pynvml.nvmlDeviceGetCount()
            self._handles = tuple(pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(count))
        except pynvml.NVMLError:
            return

    def look(self) -> None:
        """Read them once more."""
        if self._handles:
            found = (_gpu(index, handle) for index, handle in enumerate(self._handles))
            self._read.append(tuple(gpu for gpu in found if gpu))

    def take(self) -> tuple[Gpu, ...]:
        """All readings since the last taking, as one."""
        read, self._read = self._read, []
        by_index: dict[int, list[Gpu]] = {}
        for gpu in (gpu for reading in read for gpu in reading):
            by_index.setdefault(gpu.index, []).append(gpu)
        return tuple(_one(readings) for readings in by_index.values())


def _gpu(index: int, handle: Any) -> Gpu | None:
    """None where it does not answer; it may have fallen off the bus."""
    try:
        used = pynvml.nvmlDeviceGetMemoryInfo(handle).used
    except pynvml.NVMLError:
        return None
    try:
        busy = pynvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
    except pynvml.NVMLError:  # a GPU in parts does not tell
        busy = None
    return Gpu(index=index, busy=busy, memory_bytes=used)


def _one(readings: Sequence[Gpu]) -> Gpu:
    busy = [gpu.busy for gpu in readings if gpu.busy is not None]
    return Gpu(
        index=readings[0].index,
        busy=sum(busy) / len(busy) if busy else None,
        memory_bytes=max(gpu.memory_bytes for gpu in readings),
    )
