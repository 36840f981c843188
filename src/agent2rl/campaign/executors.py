"""Open executors by name, and the local executor with its leases of GPUs and cores.

A GPU lease is a lock on the GPU's lock file. The run's own process inherits the lock, so that the lease ends
exactly when nothing uses the GPU any more, however the run ends. Runs started by hand take no lease.
"""

import logging
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
from agent2rl.core.units import BYTES
from agent2rl.record.paths import SessionPaths
from agent2rl.run import machine
from agent2rl.run.machine import read_gpu_uuids
from agent2rl.system.unix import fcntl

logger = logging.getLogger(__name__)

# Leases of this machine's cores and GPUs. GPUs have lock files, so that no two campaigns share one.

FOLDER = Path("/tmp/agent2rl-gpus")
"""The same for all users, whatever their TMPDIR."""


def count_parallel_runs(resources: RunResources, gpus: Sequence[str]) -> int:
    """Return how many runs fit on this machine at the same time."""
    if shortages := list_shortages(resources, gpus):
        raise MachineError(
            shortages[0],
            "Reduce [resources] in the campaign file, or run it elsewhere: --executor ray or slurm.",
        )
    fits = [1 if resources.cpus is None and not resources.gpus else len(os.sched_getaffinity(0))]
    fits += [available // needed for _, available, needed in _list_needs(resources, gpus) if needed]
    return min(fits)


def list_shortages(resources: RunResources, gpus: Sequence[str]) -> list[str]:
    """Return a sentence for each resource of which this machine has too little for one run."""
    return [
        f"A run of this campaign needs {_describe_amount(resource, needed)}, but this machine has "
        f"{_describe_amount(resource, available)}."
        for resource, available, needed in _list_needs(resources, gpus)
        if needed and available < needed
    ]


def _describe_amount(resource: str, count: int) -> str:
    """Describe an amount as a campaign file writes it: memory in G."""
    if resource == "memory":
        return f"{count / BYTES['G']:,.1f}G of memory"
    return f"{count:,} {resource}{'' if count == 1 else 's'}"


def _list_needs(resources: RunResources, gpus: Sequence[str]) -> list[tuple[str, int, int | None]]:
    return [
        ("core", len(os.sched_getaffinity(0)), resources.cpus),
        ("GPU", len(gpus), resources.gpus),
        ("memory", machine.read_memory_bytes(), resources.memory_bytes),
    ]


class CoreLeases:
    """Disjoint sets of cores for parallel runs. If there are too few cores, runs share all of them."""

    def __init__(self, per_run: int | None, slots: int) -> None:
        cores = sorted(os.sched_getaffinity(0))
        fits = per_run is not None and per_run * slots <= len(cores)
        self._free = (
            [tuple(cores[slot * per_run : (slot + 1) * per_run]) for slot in range(slots)]
            if fits and per_run
            else []
        )

    @contextmanager
    def lease_cores(self) -> Iterator[tuple[int, ...] | None]:
        cores = self._free.pop() if self._free else None
        try:
            yield cores
        finally:
            if cores:
                self._free.append(cores)


class GpuLeases:
    def __init__(self, names: Sequence[str], folder: Path = FOLDER, known: Sequence[str] = ()) -> None:
        """`known` are the UUIDs of the GPUs in the driver's order: they identify a GPU given by number."""
        self._names, self._folder, self._known = names, folder, known

    @contextmanager
    def lease_gpus(self, count: int, wait: Callable[[], bool]) -> Iterator[dict[str, int] | None]:
        """Lease `count` GPUs, each with its lock. While too few are free, `wait` decides whether to go on."""
        leased = self._try_lease(count)
        while leased is None and wait():
            leased = self._try_lease(count)
        try:
            yield leased
        finally:
            for file in (leased or {}).values():
                os.close(file)

    def _try_lease(self, count: int) -> dict[str, int] | None:
        """Lease all of them or none, so that two processes that need several cannot deadlock."""
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
    """Return the UUID of a GPU that is given by its number or by the start of its UUID."""
    if name.isdecimal():
        return known[int(name)] if int(name) < len(known) else name
    return next((uuid for uuid in known if uuid.startswith(name)), name)


def _open_lock_file(folder: Path, name: str) -> int:
    """Open a lock file read-only: its creator may be another user, and a lock needs no write access."""
    try:
        if not folder.is_dir():
            folder.mkdir(exist_ok=True)
            folder.chmod(0o1777)  # shared by all users of the machine
        try:
            # With O_CREAT, Linux refuses a file of another user in a folder such as this
            # (fs.protected_regular).
            return os.open(folder / name, os.O_RDONLY | os.O_NOFOLLOW)
        except FileNotFoundError:
            return os.open(folder / name, os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW, 0o644)
    except OSError as error:
        raise MachineError(
            f"Cannot lease a GPU in {folder}: {error.strerror}.",
            "Every user needs write access (mode 1777). Ask the owner of the folder to remove it or open it.",
        ) from error


# The local executor: as many runs in parallel as fit on this machine

WAIT_SECONDS = 1.0


class LocalExecutor:
    """Runs jobs as processes of this machine, with one waiting thread per process."""

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
            ended = [self._ended.get(timeout=seconds)]
        except queue.Empty:
            return []
        while not self._ended.empty():
            ended.append(self._ended.get())
        return ended

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
            logger.debug("The worker of %s failed", job.label, exc_info=error)
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
    """Open a local executor. `by_bus`: GPU numbers follow the PCI bus order and are not the user's own."""
    executor = LocalExecutor(resources, slots, gpus, by_bus)
    try:
        yield executor
    finally:
        executor.stop()
        executor.close()


# Executors by name. Ray and submitit are imported only when they are used.

Name = Literal["local", "ray", "slurm"]


@dataclass(frozen=True)
class ExecutorOptions:
    """Where and how to run a campaign."""

    executor: Name = "local"
    parallel: int | None = None
    """Parallel runs. None: as many as fit on this machine, or as the cluster allows."""
    address: str | None = None
    """Address of a Ray cluster. None: what Ray finds, else a new one on this machine."""
    fetch: bool = False
    """Whether Ray's workers do not share the runs directory, so that runs must be copied back."""
    slurm: Mapping[str, str] = field(default_factory=dict)
    """Additional parameters of sbatch."""

    def __post_init__(self) -> None:
        executor_options = (
            ("address", self.address, "ray"),
            ("fetch", self.fetch, "ray"),
            ("slurm", self.slurm, "slurm"),
        )
        for name, value, owner in executor_options:
            if value and self.executor != owner:
                raise UserError(
                    f"--{name} has no effect with --executor {self.executor}.",
                    f"Use it with --executor {owner}, or remove it.",
                )

    def count_slots(self, resources: RunResources, gpus: Sequence[str]) -> int | None:
        """Return the number of parallel runs, or None if only the cluster knows it."""
        if self.executor != "local":
            return self.parallel
        fits = count_parallel_runs(resources, gpus)
        return self.parallel or fits


def open_executor(
    options: ExecutorOptions,
    resources: RunResources,
    gpus: Sequence[str],
    by_bus: bool,
    session: CampaignSession,
) -> AbstractContextManager[JobExecutor]:
    if options.executor == "ray":
        return ray_executor.open_ray_executor(resources, options.parallel, options.address, options.fetch)
    if options.executor == "slurm":
        return slurm_executor.open_slurm_executor(
            resources, options.parallel, session.paths.jobs, options.slurm
        )
    return open_local_executor(resources, options.count_slots(resources, gpus) or 1, gpus, by_bus)
