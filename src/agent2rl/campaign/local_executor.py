"""Runs jobs on this machine: as many at once as fit, each with its share of it."""

import queue
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from agent2rl.campaign.campaign_file import RunResources
from agent2rl.campaign.campaign_sessions import read_stop_request
from agent2rl.campaign.executor import EndedJob
from agent2rl.campaign.job_worker import CampaignJob, JobOutcome, JobWorker, MachineShare
from agent2rl.campaign.resource_leases import CoreLeases, GpuLeases
from agent2rl.runner.nvidia_gpus import read_gpu_uuids
from agent2rl.store.paths import SessionPaths

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
