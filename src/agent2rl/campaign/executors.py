"""Opens executors by name. The local one is here, with its leases of GPUs and cores; Ray and Slurm have
modules of their own.

A lease is the lock on the GPU's file. The run's own process holds it too, so that it ends when nothing uses
the GPU any more and not before, however the run ends. Runs that were started by hand take no lease.
"""

import fcntl
import os
import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

from agent2rl.campaign import ray_executor, slurm_executor
from agent2rl.campaign.campaign_file import RunResources
from agent2rl.campaign.claims_and_sessions import CampaignSession, read_stop_request
from agent2rl.campaign.jobs import CampaignJob, EndedJob, JobExecutor, JobOutcome, JobWorker, MachineShare
from agent2rl.core.errors import MachineError, UserError
from agent2rl.record.paths import SessionPaths
from agent2rl.run import machine
from agent2rl.run.machine import read_gpu_uuids

# What of this machine a run gets: GPUs by lock file, so that no two campaigns share one, and cores.

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


# Runs jobs on this machine: as many at once as fit, each with its share of it.

WAIT_SECONDS = 1.0


class LocalExecutor:
    """A thread waits for each run; the runs are processes."""

    def __init__(self, resources: RunResources, slots: int, gpus: Sequence[str], by_bus: bool) -> None:
        self._wanted, self._by_bus = resources, by_bus
        known = read_gpu_uuids() if resources.gpus else ()
        self._cores, self._gpus = CoreLeases(resources.cpus, slots), GpuLeases(gpus, known=known)
        self._pool = ThreadPoolExecutor(slots, "campaign")
        self._futures: dict[Future[JobOutcome], CampaignJob] = {}
        self._ended: queue.Queue[EndedJob] = queue.Queue()
        self._over = threading.Event()

    def submit(self, jobs: Sequence[CampaignJob]) -> None:
        for job in jobs:
            future = self._pool.submit(self._run_job, job)
            self._futures[future] = job
            future.add_done_callback(partial(self._store_outcome, job))

    def ended(self, seconds: float) -> list[EndedJob]:
        try:
            found = [self._ended.get(timeout=seconds)]
        except queue.Empty:
            return []
        while not self._ended.empty():
            found.append(self._ended.get())
        return found

    def stop(self) -> None:
        self._over.set()
        for future in list(self._futures):
            future.cancel()

    def close(self) -> None:
        self._pool.shutdown()

    def _store_outcome(self, job: CampaignJob, future: "Future[JobOutcome]") -> None:
        if future.cancelled():
            outcome = JobOutcome(kind="stopped")
        elif error := future.exception():
            outcome = JobOutcome(kind="broken", message=f"{type(error).__name__}: {error}")
        else:
            outcome = future.result()
        del self._futures[future]
        self._ended.put(EndedJob(job, outcome))

    def _run_job(self, job: CampaignJob) -> JobOutcome:
        def wait() -> bool:
            return not self._over.wait(WAIT_SECONDS) and not read_stop_request(
                SessionPaths(Path(job.session))
            )

        with self._cores.lease_cores() as cores, self._gpus.lease_gpus(self._wanted.gpus, wait) as leased:
            if leased is None:
                return JobOutcome(kind="stopped")
            share = MachineShare(cores, tuple(leased), tuple(leased.values()), self._by_bus)
            return JobWorker(job, share).run()


@contextmanager
def open_local_executor(
    resources: RunResources, slots: int, gpus: Sequence[str], by_bus: bool
) -> Iterator[LocalExecutor]:
    """`by_bus`: the GPUs are named by us, by their place on the bus, and not by the user."""
    executor = LocalExecutor(resources, slots, gpus, by_bus)
    try:
        yield executor
    finally:
        executor.stop()
        executor.close()


# The executors by name. Ray and submitit are loaded where they are asked for.

Name = Literal["local", "ray", "slurm"]


@dataclass(frozen=True)
class ExecutorOptions:
    """Where a campaign is to be run."""

    executor: Name = "local"
    parallel: int | None = None
    """Runs at once. None: as many as fit on this machine, or as the cluster lets."""
    address: str | None = None
    """Of a Ray cluster; None: what Ray finds, else one on this machine."""
    fetch: bool = False
    """Whether Ray's workers have no part in the runs directory."""
    slurm: Mapping[str, str] = field(default_factory=dict)
    """Further parameters of sbatch."""

    def __post_init__(self) -> None:
        given = (
            ("address", self.address, "ray"),
            ("fetch", self.fetch, "ray"),
            ("slurm", self.slurm, "slurm"),
        )
        for name, value, owner in given:
            if value and self.executor != owner:
                raise UserError(
                    f"--{name} means nothing to --executor {self.executor}.", f"It is for {owner}."
                )

    def count_slots(self, resources: RunResources, gpus: Sequence[str]) -> int | None:
        """Runs at once; None where only the cluster knows."""
        if self.executor != "local":
            return self.parallel
        fits = count_parallel_runs(resources, gpus)
        return self.parallel or fits


def open_executor(
    wanted: ExecutorOptions,
    resources: RunResources,
    gpus: Sequence[str],
    by_bus: bool,
    session: CampaignSession,
) -> AbstractContextManager[JobExecutor]:
    if wanted.executor == "ray":
        return ray_executor.open_ray_executor(resources, wanted.parallel, wanted.address, wanted.fetch)
    if wanted.executor == "slurm":
        return slurm_executor.open_slurm_executor(
            resources, wanted.parallel, session.paths.jobs, wanted.slurm
        )
    return open_local_executor(resources, wanted.count_slots(resources, gpus) or 1, gpus, by_bus)
