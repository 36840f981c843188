"""Runs jobs on a Slurm cluster through submitit, in job arrays. Slurm decides where and when.

A job that is preempted is queued again, and takes its run up where it was or begins it anew. Which jobs are
left is asked of `squeue` alone, since not every cluster keeps accounts for `sacct`.
"""

import importlib
import math
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any

from agent2rl.campaign.campaign_file import RunResources
from agent2rl.campaign.claims_and_sessions import LEASE_SECONDS
from agent2rl.campaign.jobs import CampaignJob, EndedJob, JobOutcome, JobWorker, MachineShare
from agent2rl.core.errors import MachineError, WorldError

ASK_SECONDS = 10.0
"""Between two questions to the controller."""
GONE_SECONDS = 30.0
"""That a job may be neither in the queue nor have an answer: shared storage can be slow to show one."""
TICK_SECONDS = 0.5
BUSY_SECONDS = 5.0
END_SECONDS = 300.0
"""Within which a job ends that was told so."""


class SlurmJob:
    """What a Slurm job does. submitit keeps it, and asks it for a successor when the job is preempted.

    Slurm tells a job of its end by SIGTERM to all its processes, the run's among them. The run is not to
    close its record then, as if somebody had stopped it: it is left as by a crash, to be taken up.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._work: JobWorker | None = None
        self._ending = False

    def __call__(self) -> str:
        """A job that was queued again can come before its predecessor's claim has run out."""
        signal.signal(signal.SIGTERM, self._handle_sigterm)
        job = CampaignJob.model_validate_json(self._text)
        until = time.monotonic() + LEASE_SECONDS + 2 * BUSY_SECONDS
        while True:
            self._work = JobWorker(job, MachineShare(gpus=None if job.resources.gpus else ()))
            outcome = self._work.run()
            if self._ending and outcome.kind in ("stopped", "broken"):
                time.sleep(END_SECONDS)  # Slurm ends it, and knows whether to queue it again
            if outcome.kind != "busy" or time.monotonic() > until:
                return outcome.model_dump_json()
            time.sleep(BUSY_SECONDS)

    def checkpoint(self) -> Any:
        if self._work:
            self._work.abandon_run()
        return importlib.import_module("submitit").helpers.DelayedSubmission(SlurmJob(self._text))

    def _handle_sigterm(self, _: int, __: object) -> None:
        self._ending = True
        if self._work:
            self._work.abandon_run()


class SlurmExecutor:
    def __init__(self, submitit: Any, folder: Path, parameters: Mapping[str, Any]) -> None:
        self._submitit, self._folder, self._parameters = submitit, folder, parameters
        self._under_way: dict[str, tuple[CampaignJob, Any]] = {}
        self._dropped: list[EndedJob] = []
        self._asked, self._queued = -ASK_SECONDS, set[str]()
        self._missing: dict[str, float] = {}
        self.make_submitit_executor(1)  # so that what cannot be is said before anything is submitted

    def submit(self, jobs: Sequence[CampaignJob]) -> None:
        """Equal time limits are one array."""
        ordered = sorted(jobs, key=_round_up_minutes)
        for minutes, group in groupby(ordered, key=_round_up_minutes):
            members = list(group)
            executor = self.make_submitit_executor(minutes)
            try:
                with executor.batch():
                    sent = [executor.submit(SlurmJob(job.model_dump_json())) for job in members]
            except (subprocess.CalledProcessError, self._submitit.core.utils.FailedJobError) as error:
                raise WorldError(f"sbatch refuses the jobs: {_first_line(error)}", "See --slurm.") from error
            self._under_way |= {one.job_id: (job, one) for job, one in zip(members, sent, strict=True)}
        self._queued |= set(self._under_way)

    def ended(self, seconds: float) -> list[EndedJob]:
        until = time.monotonic() + seconds
        while not (found := self._collect_ended()) and time.monotonic() < until:
            time.sleep(TICK_SECONDS)
        return found

    def stop(self) -> None:
        """Those that wait in the queue are taken out of it. One that was queued again has begun before."""
        pending = _list_queued_jobs("--states=PENDING") or set()
        waiting = [name for name, (_, sent) in self._under_way.items() if not sent.paths.stdout.exists()]
        for name in pending & set(waiting):
            subprocess.run(["scancel", name], check=False)
            self._dropped.append(EndedJob(self._under_way.pop(name)[0], JobOutcome(kind="stopped")))

    def make_submitit_executor(self, minutes: int) -> Any:
        executor = self._submitit.AutoExecutor(folder=self._folder, cluster="slurm")
        executor.update_parameters(timeout_min=minutes, **self._parameters)
        return executor

    def _collect_ended(self) -> list[EndedJob]:
        found, self._dropped = self._dropped, []
        if time.monotonic() - self._asked >= ASK_SECONDS:
            self._asked = time.monotonic()
            if (queued := _list_queued_jobs()) is None:
                self._queued = set(self._under_way)  # for a while the controller may be away
            else:
                self._queued = queued
        for name, (job, sent) in list(self._under_way.items()):
            if sent.paths.result_pickle.exists():
                found.append(EndedJob(job, self._read_outcome(sent)))
                del self._under_way[name]
            elif name in self._queued:
                self._missing.pop(name, None)
            elif time.monotonic() - self._missing.setdefault(name, time.monotonic()) > GONE_SECONDS:
                message = f"Slurm's job {name} ended without an answer; see {sent.paths.stderr}."
                found.append(EndedJob(job, JobOutcome(kind="broken", message=message)))
                del self._under_way[name]
        return found

    def _read_outcome(self, sent: Any) -> JobOutcome:
        if (error := sent.exception()) is not None:
            return JobOutcome(kind="broken", message=_first_line(error))
        return JobOutcome.model_validate_json(sent.result())


def _round_up_minutes(job: CampaignJob) -> int:
    return math.ceil(job.wall_seconds / 60)


def _list_queued_jobs(*only: str) -> set[str] | None:
    """The jobs of this user that are not over; None where the controller does not answer."""
    asked = ["squeue", "--me", "--noheader", "--array", "--format=%i", *only]
    try:
        done = subprocess.run(asked, check=True, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return None
    return set(done.stdout.split())


def make_job_parameters(
    resources: RunResources, parallel: int | None, extra: Mapping[str, str]
) -> dict[str, Any]:
    """What submitit is told of every job."""
    wanted = {
        "name": "agent2rl",
        "cpus_per_task": resources.cpus,
        "mem_gb": resources.memory_bytes / (1 << 30) if resources.memory_bytes else None,
        "gpus_per_node": resources.gpus or None,
        "slurm_array_parallelism": parallel,
        "slurm_additional_parameters": {"requeue": True, **extra},
    }
    return {name: value for name, value in wanted.items() if value is not None}


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip(" -")]
    return lines[-1][:300] if lines else type(error).__name__


@contextmanager
def open_slurm_executor(
    resources: RunResources, parallel: int | None, folder: Path, extra: Mapping[str, str]
) -> Iterator[SlurmExecutor]:
    try:
        submitit = importlib.import_module("submitit")
    except ImportError as error:
        raise MachineError(
            "submitit is not installed.", "Install it: pip install 'agent2rl[slurm]'."
        ) from error
    try:
        cluster = SlurmExecutor(submitit, folder, make_job_parameters(resources, parallel, extra))
    except RuntimeError as error:
        raise MachineError(f"{error}", "Call it where `srun` and `sbatch` are.") from error
    yield cluster
