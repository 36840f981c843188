"""What the NVIDIA driver says of this machine's GPUs. Where there is no driver, there are none."""

from collections.abc import Sequence
from typing import Any

import pynvml

from agent2rl.core.events import GpuSample


def read_gpu_uuids() -> tuple[str, ...]:
    """The driver's names for the GPUs, in the order of the bus."""
    try:
        pynvml.nvmlInit()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        return tuple(str(pynvml.nvmlDeviceGetUUID(handle)) for handle in handles)
    except pynvml.NVMLError:
        return ()


class GpuSampler:
    """Opened once: the driver takes its time, up to seconds, to begin with."""

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
        """Read them once more."""
        if self._handles:
            found = (_read_gpu(index, handle) for index, handle in enumerate(self._handles))
            self._read.append(tuple(gpu for gpu in found if gpu))

    def take_averages(self) -> tuple[GpuSample, ...]:
        """All readings since the last taking, as one."""
        read, self._read = self._read, []
        by_index: dict[int, list[GpuSample]] = {}
        for gpu in (gpu for reading in read for gpu in reading):
            by_index.setdefault(gpu.index, []).append(gpu)
        return tuple(_merge_readings(readings) for readings in by_index.values())


def _read_gpu(index: int, handle: Any) -> GpuSample | None:
    """None where it does not answer; it may have fallen off the bus."""
    try:
        used = pynvml.nvmlDeviceGetMemoryInfo(handle).used
    except pynvml.NVMLError:
        return None
    try:
        busy = pynvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
    except pynvml.NVMLError:  # a GPU in parts does not tell
        busy = None
    return GpuSample(index=index, busy=busy, memory_bytes=used)


def _merge_readings(readings: Sequence[GpuSample]) -> GpuSample:
    busy = [gpu.busy for gpu in readings if gpu.busy is not None]
    return GpuSample(
        index=readings[0].index,
        busy=sum(busy) / len(busy) if busy else None,
        memory_bytes=max(gpu.memory_bytes for gpu in readings),
    )
