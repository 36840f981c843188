"""What of this machine a run gets: GPUs by lock file, so that no two campaigns share one, and cores.

A lease is the lock on the GPU's file. The run's own process holds it too, so that it ends when nothing uses
the GPU any more and not before, however the run ends. Runs that were started by hand take no lease.
"""

import fcntl
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from agent2rl.campaign.campaign_file import RunResources
from agent2rl.core.errors import MachineError
from agent2rl.runner import machine

FOLDER = Path("/tmp/agent2rl-gpus")
"""The same for all, whatever TMPDIR they have."""


def count_parallel_runs(resources: RunResources, gpus: Sequence[str]) -> int:
    """How many runs fit on this machine at once."""
    cores, memory = len(os.sched_getaffinity(0)), machine.read_memory_bytes()
    wanted = resources.memory_bytes
    fits = [1 if resources.cpus is None and not resources.gpus else cores]
    for what, have, each in (
        ("cores", cores, resources.cpus),
        ("GPUs", len(gpus), resources.gpus),
        ("bytes of memory", memory, wanted),
    ):
        if each and have < each:
            raise MachineError(
                f"A run of this campaign needs {each:,} {what}, and this machine has {have:,}.",
                "Ask for less under [resources], or run it elsewhere: --executor ray or slurm.",
            )
        if each:
            fits.append(have // each)
    return min(fits)


class CoreLeases:
    """Disjoint sets of cores, as far as they reach; further runs have no cores of their own."""

    def __init__(self, each: int | None, slots: int) -> None:
        every = sorted(os.sched_getaffinity(0))
        fits = each is not None and each * slots <= len(every)
        self._free = (
            [tuple(every[slot * each : (slot + 1) * each]) for slot in range(slots)] if fits and each else []
        )

    @contextmanager
    def lease_cores(self) -> Iterator[tuple[int, ...] | None]:
        mine = self._free.pop() if self._free else None
        try:
            yield mine
        finally:
            if mine:
                self._free.append(mine)


class GpuLeases:
    def __init__(self, names: Sequence[str], folder: Path = FOLDER, known: Sequence[str] = ()) -> None:
        """`known` are the driver's names for GPUs, in its order: one that is named otherwise is the same."""
        self._names, self._folder, self._known = names, folder, known

    @contextmanager
    def lease_gpus(self, count: int, wait: Callable[[], bool]) -> Iterator[dict[str, int] | None]:
        """So many GPUs, each with its lock. Where not enough are free, `wait` is asked whether to go on."""
        leased = self._try_lease(count)
        while leased is None and wait():
            leased = self._try_lease(count)
        try:
            yield leased
        finally:
            for file in (leased or {}).values():
                os.close(file)

    def _try_lease(self, count: int) -> dict[str, int] | None:
        """All of them or none, so that two that wait for several do not wait for each other."""
        leased: dict[str, int] = {}
        for name in self._names:
            if len(leased) < count and (file := self._try_lock(name)) is not None:
                leased[name] = file
        if len(leased) == count:
            return leased
        for file in leased.values():
            os.close(file)
        return None

    def _try_lock(self, name: str) -> int | None:
        file = _open_lock_file(self._folder, f"{_resolve_gpu_name(name, self._known).replace('/', '-')}.lock")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            return None
        return file


def _resolve_gpu_name(name: str, known: Sequence[str]) -> str:
    """The driver's name of a GPU that is called by its number, or by the beginning of that name."""
    if name.isdecimal():
        return known[int(name)] if int(name) < len(known) else name
    return next((each for each in known if each.startswith(name)), name)


def _open_lock_file(folder: Path, name: str) -> int:
    """Whoever came first made it; a lock needs no right to write."""
    try:
        if not folder.is_dir():
            folder.mkdir(exist_ok=True)
            folder.chmod(0o1777)  # every user of the machine leases here
        try:
            return os.open(folder / name, os.O_RDONLY | os.O_NOFOLLOW)
        except FileNotFoundError:
            return os.open(folder / name, os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW, 0o644)
    except OSError as error:
        raise MachineError(
            f"No GPU can be leased at {folder}: {error.strerror}.",
            "Every user must be able to write there (mode 1777): ask its owner to remove or to open it.",
        ) from error
