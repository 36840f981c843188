"""Runs jobs on this machine: as many at once as fit, each with its share of it."""

import queue
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from agent2rl.campaign.executor import Ended
from agent2rl.campaign.leases import Cores, Gpus
from agent2rl.campaign.record import Resources
from agent2rl.campaign.sessions import asked
from agent2rl.campaign.work import Job, Outcome, Share, Work
from agent2rl.runner.gpus import uuids
from agent2rl.store.paths import SessionPaths

WAIT_SECONDS = 1.0


class Local:
    """A thread waits for each run; the runs are processes."""

    def __init__(self, resources: Resources, slots: int, gpus: Sequence[str], by_bus: bool) -> None:
        self._wanted, self._by_bus = resources, by_bus
        known = uuids() if resources.gpus else ()
        self._cores, self._gpus = Cores(resources.cpus, slots), Gpus(gpus, known=known)
        self._pool = ThreadPoolExecutor(slots, "campaign")
        self._futures: dict[Future[Outcome], Job] = {}
        self._ended: queue.Queue[Ended] = queue.Queue()
        self._over = threading.Event()

    def submit(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            future = self._pool.submit(self._do, job)
            self._futures[future] = job
            future.add_done_callback(partial(self._keep, job))

    def ended(self, seconds: float) -> list[Ended]:
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

    def _keep(self, job: Job, future: "Future[Outcome]") -> None:
        if future.cancelled():
            outcome = Outcome(kind="stopped")
        elif error := future.exception():
            outcome = Outcome(kind="broken", message=f"{type(error).__name__}: {error}")
        else:
            outcome = future.result()
        del self._futures[future]
        self._ended.put(Ended(job, outcome))

    def _do(self, job: Job) -> Outcome:
        def wait() -> bool:
            return not self._over.wait(WAIT_SECONDS) and not asked(SessionPaths(Path(job.session)))

        with self._cores.some() as cores, self._gpus.some(self._wanted.gpus, wait) as leased:
            if leased is None:
                return Outcome(kind="stopped")
            share = Share(cores, tuple(leased), tuple(leased.values()), self._by_bus)
            return Work(job, share).run()


@contextmanager
def opened(resources: Resources, slots: int, gpus: Sequence[str], by_bus: bool) -> Iterator[Local]:
    """`by_bus`: the GPUs are named by us, by their place on the bus, and not by the user."""
    executor = Local(resources, slots, gpus, by_bus)
    try:
        yield executor
    finally:
        executor.stop()
        executor.close()
