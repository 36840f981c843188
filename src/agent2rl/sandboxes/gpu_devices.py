"""The device files of a sandbox's GPUs: which ones it shows, and how they are numbered inside.

    /dev/nvidiactl /dev/nvidia-uvm /dev/nvidia-uvm-tools    shared by all GPUs; CUDA needs them
    /dev/nvidia-caps-imex-channels                          memory shared between nodes, where there is such
    /dev/nvidiaN                                            one GPU; N is its minor number
    /dev/nvidia-caps/nvidia-capK                            one instance of a partitioned GPU (MIG)

CUDA and NVML skip a GPU whose device file cannot be opened, and number the others from 0. So a command that
sees the device file of GPU 3 alone must use CUDA_VISIBLE_DEVICES=0. UUIDs stay valid.

The driver describes its GPUs in /proc/driver/nvidia. Containers may lack parts of it; then GPUs are numbered
by their minor numbers.
"""

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pynvml

from agent2rl.core.errors import MachineError
from agent2rl.core.sandbox import Command, Mount

VISIBLE = "CUDA_VISIBLE_DEVICES"
CONTROL_FILES = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-caps-imex-channels")
OLD_MIG_NAME = re.compile(r"MIG-(GPU-[0-9a-fA-F-]+)/(\d+)/(\d+)")


@dataclass(frozen=True)
class MigInstance:
    """An instance of a partitioned GPU: the GPU's UUID, and the numbers of its GPU and compute instance."""

    gpu: str
    gpu_instance: int
    compute_instance: int


def find_mig_instance(name: str) -> MigInstance | None:
    """Return the MIG instance of this name; None if the driver does not know it."""
    if match := OLD_MIG_NAME.fullmatch(name):
        return MigInstance(match[1], int(match[2]), int(match[3]))
    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByUUID(name)
        return MigInstance(
            str(pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle))),
            int(pynvml.nvmlDeviceGetGpuInstanceId(handle)),
            int(pynvml.nvmlDeviceGetComputeInstanceId(handle)),
        )
    except pynvml.NVMLError:
        return None


@dataclass(frozen=True)
class DriverGpu:
    """A GPU as the driver describes it."""

    minor: int
    bus: str = ""
    uuid: str = ""


def query_gpus() -> list[DriverGpu]:
    """Ask the driver's library for the GPUs; empty if it does not answer."""
    try:
        pynvml.nvmlInit()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        return [
            DriverGpu(
                int(pynvml.nvmlDeviceGetMinorNumber(handle)),
                str(pynvml.nvmlDeviceGetPciInfo(handle).busId),
                str(pynvml.nvmlDeviceGetUUID(handle)),
            )
            for handle in handles
        ]
    except pynvml.NVMLError:
        return []


@dataclass(frozen=True)
class DriverFiles:
    """Where the driver's files are on this machine, and how its library is asked."""

    devices: Path = Path("/dev")
    driver: Path = Path("/proc/driver/nvidia")
    find_mig: Callable[[str], MigInstance | None] = find_mig_instance
    query_gpus: Callable[[], list[DriverGpu]] = query_gpus


def list_device_mounts(gpus: Sequence[str] | None, files: DriverFiles | None = None) -> tuple[Mount, ...]:
    """Return mounts of the device files of these GPUs, which are named as in CUDA_VISIBLE_DEVICES.

    None: all GPUs. No GPU, or a machine without a driver: no mounts.
    """
    files = files or DriverFiles()
    if not (files.devices / "nvidiactl").exists() or (gpus is not None and not gpus):
        return ()
    if gpus is None:
        shown = sorted(files.devices.glob("nvidia*"))
    else:
        shown = [path for name in CONTROL_FILES if (path := files.devices / name).exists()]
        for name in gpus:
            shown += (_list_mig_files if name.startswith("MIG-") else _list_gpu_files)(name, files)
    return tuple(Mount(path, f"/dev/{path.relative_to(files.devices)}") for path in dict.fromkeys(shown))


def renumber_visible_gpus(
    command: Command, gpus: Sequence[str] | None, files: DriverFiles | None = None
) -> Command:
    """Return the command with the numbers that its GPUs have inside, if it sets CUDA_VISIBLE_DEVICES.

    They are numbers, because some programs do not read UUIDs. MIG instances have none and keep their names.
    """
    files = files or DriverFiles()
    is_restricted = gpus is not None and (files.devices / "nvidiactl").exists()
    if not gpus or not is_restricted or VISIBLE not in command.environment:
        return command
    has_instances = any(name.startswith("MIG-") for name in gpus)
    names = gpus if has_instances else [str(number) for number in range(len(gpus))]
    return replace(command, environment={**command.environment, VISIBLE: ",".join(names)})


def _list_gpu_files(name: str, files: DriverFiles) -> list[Path]:
    """Return the file of a GPU, and those that give access to all its instances if it is partitioned."""
    gpu = _find_gpu_file(name, files)
    instances = _mig_folder(gpu, files)
    accesses = sorted((*instances.glob("gi*/access"), *instances.glob("gi*/ci*/access")))
    capabilities = (_read_capability_file(access, files) for access in accesses)
    return [gpu, *(path for path in capabilities if path.exists())]


def _find_gpu_file(name: str, files: DriverFiles) -> Path:
    """Return the device file of a GPU that is given by its number or by the start of its UUID."""
    gpus = _list_gpus(files)
    if name.isdecimal():
        matching = [gpus[int(name)]] if int(name) < len(gpus) else []
    else:
        matching = [gpu for gpu in gpus if gpu.uuid.startswith(name)] if name else []
    if len(matching) != 1:
        raise MachineError(
            f"This machine has no GPU {name!r}.",
            "`nvidia-smi -L` lists the GPUs. CUDA_VISIBLE_DEVICES selects those of a run.",
        )
    return files.devices / f"nvidia{matching[0].minor}"


def _list_gpus(files: DriverFiles) -> list[DriverGpu]:
    """Return the GPUs with a device file, in bus order."""
    names = (path.name for path in files.devices.iterdir())
    minors = {int(match[1]) for name in names if (match := re.fullmatch(r"nvidia(\d+)", name))}
    described = [gpu for path in files.driver.glob("gpus/*/information") if (gpu := _read_gpu(path))]
    for gpus in (described, files.query_gpus() if {gpu.minor for gpu in described} < minors else []):
        known = [gpu for gpu in gpus if gpu.minor in minors]
        if {gpu.minor for gpu in known} == minors:
            return sorted(known, key=lambda gpu: gpu.bus)
    return [DriverGpu(minor) for minor in sorted(minors)]


def _read_gpu(path: Path) -> DriverGpu | None:
    fields = {}
    with suppress(OSError):
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            fields[name.strip()] = value.strip()
    minor = fields.get("Device Minor", "")
    return DriverGpu(int(minor), path.parent.name, fields.get("GPU UUID", "")) if minor.isdecimal() else None


def _list_mig_files(name: str, files: DriverFiles) -> list[Path]:
    """Return the file of the partitioned GPU, and those that give access to the instance."""
    instance = files.find_mig(name)
    if instance is None:
        raise MachineError(f"This machine has no MIG instance {name!r}.", "`nvidia-smi -L` lists them.")
    gpu = _find_gpu_file(instance.gpu, files)
    inside = _mig_folder(gpu, files) / f"gi{instance.gpu_instance}"
    accesses = (inside / "access", inside / f"ci{instance.compute_instance}" / "access")
    return [gpu, *(_read_capability_file(access, files) for access in accesses)]


def _mig_folder(gpu: Path, files: DriverFiles) -> Path:
    return files.driver / "capabilities" / f"gpu{gpu.name.removeprefix('nvidia')}" / "mig"


def _read_capability_file(access: Path, files: DriverFiles) -> Path:
    text = access.read_text(encoding="utf-8") if access.exists() else ""
    match = re.search(r"DeviceFileMinor:\s*(\d+)", text)
    if match is None:
        raise MachineError(f"The driver does not describe the MIG instance in {access}.")
    return files.devices / "nvidia-caps" / f"nvidia-cap{match[1]}"
