"""Run jobs on a Slurm cluster through submitit, in job arrays. Slurm decides where and when.

A preempted job is queued again and resumes its run or starts it anew. Only `squeue` is used to find out which
jobs are left, because not every cluster keeps the accounting records for `sacct`.
"""

import importlib
import logging
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
from agent2rl.core.errors import ExternalServiceError, MachineError

logger = logging.getLogger(__name__)

ASK_SECONDS = 10.0
"""Time between two queries to the controller."""
GONE_SECONDS = 30.0
"""How long a job may have left the queue without a result: shared storage can be slow to show one."""
TICK_SECONDS = 0.5
BUSY_SECONDS = 5.0
END_SECONDS = 300.0
"""Time for Slurm to end a job after SIGTERM."""


class SlurmJob:
    """The function of a Slurm job. submitit pickles it, and calls `checkpoint` when the job is preempted.

    Slurm announces the end of a job by SIGTERM to all its processes, including the run. The run must not
    close its record then, as if a user had stopped it. It is killed as in a crash, so that it can be resumed.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._work: JobWorker | None = None
        self._ending = False

    def __call__(self) -> str:
        """Run the job. Retries while busy: a requeued job can start before the old claim expires."""
        signal.signal(signal.SIGTERM, self._handle_sigterm)
        job = CampaignJob.model_validate_json(self._text)
        deadline = time.monotonic() + LEASE_SECONDS + 2 * BUSY_SECONDS
        while True:
            self._work = JobWorker(job, MachineShare(gpus=None if job.resources.gpus else ()))
            outcome = self._work.run()
            if self._ending and outcome.kind in ("stopped", "broken"):
                time.sleep(END_SECONDS)  # Slurm kills the job and decides whether to requeue it
            if outcome.kind != "busy" or time.monotonic() > deadline:
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
        self.make_submitit_executor(1)  # so that invalid parameters fail before anything is submitted

    def submit(self, jobs: Sequence[CampaignJob]) -> None:
        """Submit jobs, with one array per time limit."""
        ordered = sorted(jobs, key=_round_up_minutes)
        for minutes, group in groupby(ordered, key=_round_up_minutes):
            members = list(group)
            executor = self.make_submitit_executor(minutes)
            try:
                with executor.batch():
                    sent = [executor.submit(SlurmJob(job.model_dump_json())) for job in members]
            except (subprocess.CalledProcessError, self._submitit.core.utils.FailedJobError) as error:
                raise ExternalServiceError(
                    f"sbatch rejected the jobs: {_first_line(error)}",
                    "Check --slurm, and [resources] in the campaign's file: a node must have that much.",
                ) from error
            logger.debug("Submitted %d jobs with a limit of %d minutes", len(members), minutes)
            self._under_way |= {
                slurm_job.job_id: (job, slurm_job) for job, slurm_job in zip(members, sent, strict=True)
            }
        # The last answer of squeue is older than these jobs, which must not count as missing.
        self._queued |= set(self._under_way)

    def ended(self, seconds: float) -> list[EndedJob]:
        deadline = time.monotonic() + seconds
        while not (ended := self._collect_ended()) and time.monotonic() < deadline:
            time.sleep(TICK_SECONDS)
        return ended

    def stop(self) -> None:
        """Cancel jobs that are still in the queue, except requeued ones: those have started before."""
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
        ended, self._dropped = self._dropped, []
        if time.monotonic() - self._asked >= ASK_SECONDS:
            self._asked = time.monotonic()
            if (queued := _list_queued_jobs()) is None:
                self._queued = set(self._under_way)  # the controller may be unavailable for a while
            else:
                self._queued = queued
        for name, (job, sent) in list(self._under_way.items()):
            if sent.paths.result_pickle.exists():
                ended.append(EndedJob(job, self._read_outcome(sent)))
                del self._under_way[name]
            elif name in self._queued:
                self._missing.pop(name, None)
            elif time.monotonic() - self._missing.setdefault(name, time.monotonic()) > GONE_SECONDS:
                message = f"Slurm job {name} ended without a result; see {sent.paths.stderr}."
                ended.append(EndedJob(job, JobOutcome(kind="broken", message=message)))
                del self._under_way[name]
        return ended

    def _read_outcome(self, sent: Any) -> JobOutcome:
        if (error := sent.exception()) is not None:
            return JobOutcome(kind="broken", message=_first_line(error))
        return JobOutcome.model_validate_json(sent.result())


def _round_up_minutes(job: CampaignJob) -> int:
    return math.ceil(job.wall_seconds / 60)


def _list_queued_jobs(*only: str) -> set[str] | None:
    """Return the unfinished jobs of this user, or None if the controller does not answer."""
    command = ["squeue", "--me", "--noheader", "--array", "--format=%i", *only]
    try:
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return None
    return set(done.stdout.split())


def make_job_parameters(
    resources: RunResources, parallel: int | None, extra: Mapping[str, str]
) -> dict[str, Any]:
    """Return the submitit parameters of every job."""
    parameters = {
        "name": "agent2rl",
        "cpus_per_task": resources.cpus,
        "mem_gb": resources.memory_bytes / (1 << 30) if resources.memory_bytes else None,
        "gpus_per_node": resources.gpus or None,
        "slurm_array_parallelism": parallel,
        "slurm_additional_parameters": {"requeue": True, **extra},
    }
    return {name: value for name, value in parameters.items() if value is not None}


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
        raise MachineError(f"{error}", "Run this command on a machine with `srun` and `sbatch`.") from error
    yield cluster
