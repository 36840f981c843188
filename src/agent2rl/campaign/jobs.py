"""Campaign jobs: the worker that runs one claimed experiment, the executor protocol, and the job loop.

Each run is a separate process (`agent2rl run`) in its own session, so that signals of a terminal do not reach
it. It is killed together with the process that waits for it here: a dead claim holder leaves no run behind.
"""

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal, Protocol

from pydantic import ValidationError

from agent2rl.campaign.campaign_file import RunResources, compute_experiment_id, format_cell
from agent2rl.campaign.claims_and_sessions import (
    CampaignSession,
    ExperimentClaims,
    HeldClaim,
    read_stop_request,
)
from agent2rl.campaign.experiment_status import CampaignRunSummary, ExperimentStatus, RunHistory
from agent2rl.campaign.plan import CostEstimator
from agent2rl.core.base_record import Record
from agent2rl.core.records import Ending, RunResult
from agent2rl.record.paths import SessionPaths, claims_folder

logger = logging.getLogger(__name__)

# One job: claim an experiment, run it, release the claim. The same on every executor and machine.

LAUNCH = Path(__file__).with_name("launch.py")
TICK_SECONDS = 0.5
STOP_SECONDS = 60.0
"""Time for a run to stop cleanly before it is killed."""
WRONG_COMMAND = 2
RESUME_TAKES = ("--no-report", "--track=", "--track-group=")
MESSAGE_CHARACTERS = 300


class CampaignJob(Record):
    """An experiment to run. The same for every executor."""

    experiment: str
    label: str
    """Shown to people."""
    arguments: tuple[str, ...]
    """Of `agent2rl run`."""
    runs: str
    session: str
    """The directory of the campaign session that the job belongs to."""
    directory: str
    """The base of relative paths in the arguments, if it exists on the worker."""
    settled: int
    """Finished runs of the experiment when the job was made. More than that: another process was faster."""
    resume: bool
    """Whether a crashed run can be resumed."""
    resources: RunResources
    wall_seconds: float
    """Time limit, for schedulers that need one."""


class JobOutcome(Record):
    """How a job ended."""

    kind: Literal[
        "ran",  # there is a result
        "busy",  # another process is working on it
        "elsewhere",  # another process was faster
        "stopped",  # the session was asked to stop
        "broken",  # it ended without a result
    ]
    run_id: str | None = None
    ending: Ending | None = None
    message: str = ""


@dataclass(frozen=True)
class MachineShare:
    """The cores and GPUs of a machine that a job may use."""

    cores: tuple[int, ...] | None = None
    """None: all cores that this process may use."""
    gpus: tuple[str, ...] | None = None
    """As in CUDA_VISIBLE_DEVICES. None: all GPUs that this process sees."""
    leases: tuple[int, ...] = ()
    """Open lock files. The run inherits them, so that the locks are held as long as it lives."""
    by_bus: bool = False
    """Whether GPU numbers follow the PCI bus order. If not, they are the user's own."""


class JobWorker:
    """Runs one job: claims the experiment, runs or resumes it, and releases the claim."""

    def __init__(self, job: CampaignJob, share: MachineShare) -> None:
        self._job, self._share = job, share
        self._paths = SessionPaths(Path(job.session))
        self._held: HeldClaim | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def run(self) -> JobOutcome:
        job = self._job
        if read_stop_request(self._paths):
            return JobOutcome(kind="stopped")
        history = RunHistory(Path(job.runs))
        if _has_running(history.list_experiment_runs(job.experiment)):
            return JobOutcome(kind="busy")  # claim files are never removed, so do not create one in vain
        self._held = ExperimentClaims(claims_folder(Path(job.runs))).claim_experiment(
            job.experiment, self._paths.root.name
        )
        if self._held is None:
            return JobOutcome(kind="busy")
        try:
            # Looked up again: it may have been finished elsewhere between the plan and the claim.
            runs = history.list_experiment_runs(job.experiment)
            return find_other_outcome(job, runs) or self._resume_or_run(history, runs)
        finally:
            # In this order, so that nobody can take the experiment while its run is still alive.
            self._kill_and_wait()
            self._held.release()

    def abandon_run(self) -> None:
        """Kill the run as a crash would, so that it can be resumed elsewhere. Safe in a signal handler."""
        self._kill_process_group()
        if self._held:
            self._held.release()

    def _resume_or_run(self, history: RunHistory, runs: list[CampaignRunSummary]) -> JobOutcome:
        """Resume the last run if it crashed; if that is refused, start a new one."""
        if self._job.resume and runs and runs[-1].state == "crashed":
            run_id = runs[-1].paths.run_id
            options = [argument for argument in self._job.arguments if argument.startswith(RESUME_TAKES)]
            outcome, code = self._run_command("resume", run_id, *options, *self._make_group_option())
            if code != WRONG_COMMAND:
                return outcome
            if other := find_other_outcome(self._job, history.list_experiment_runs(self._job.experiment)):
                return other  # the user has just resumed it by hand
            logger.info("%s cannot be resumed (%s); starting a new run", run_id, outcome.message)
        return self._run_command(
            "run", *self._job.arguments, *self._make_memory_option(), *self._make_group_option()
        )[0]

    def _make_group_option(self) -> tuple[str, ...]:
        """Group tracked runs by campaign, unless the arguments name a group."""
        arguments = self._job.arguments
        has_group = any(argument.startswith("--track-group=") for argument in arguments)
        tracked = any(argument.startswith("--track=") for argument in arguments)
        return (f"--track-group={self._paths.root.parent.name}",) if tracked and not has_group else ()

    def _make_memory_option(self) -> tuple[str, ...]:
        memory = self._job.resources.memory
        has_limit = any(argument.startswith("--max-memory=") for argument in self._job.arguments)
        return (f"--max-memory={memory}",) if memory and not has_limit else ()

    def _run_command(self, *arguments: str) -> tuple[JobOutcome, int]:
        program = [
            sys.executable,
            "-m",
            "agent2rl.cli.main",
            *arguments,
            "--json",
            f"--runs-dir={self._job.runs}",
        ]
        output, log = (
            self._paths.output_file(self._job.experiment),
            self._paths.log_file(self._job.experiment),
        )
        output.parent.mkdir(parents=True, exist_ok=True)
        assert self._held is not None
        if not self._held.renew_claim():
            return JobOutcome(kind="stopped", message="the claim is no longer held"), 1
        began = time.monotonic()
        with output.open("wb") as stdout, log.open("ab") as stderr:
            log_start = stderr.tell()
            self._process = self._start_process(program, stdout, stderr)
            logger.debug("Started %s (%s) as process %d", self._job.label, arguments[0], self._process.pid)
            stopped = self._wait_for_process(self._process)
        code = self._process.returncode
        logger.debug("%s exited with %d after %.0f s", self._job.label, code, time.monotonic() - began)
        result = _read_result(output)
        if result and compute_experiment_id(result.spec) != self._job.experiment:
            message = (
                f"{result.run_id} is not the requested experiment: "
                "this machine reads its options differently."
            )
            return JobOutcome(kind="broken", run_id=result.run_id, message=message), code
        if result:
            kind: Literal["ran", "stopped"] = "stopped" if result.ending == "interrupted" else "ran"
            outcome = JobOutcome(kind=kind, run_id=result.run_id, ending=result.ending, message=result.reason)
            return outcome, code
        if stopped:
            return JobOutcome(kind="stopped", message=stopped), code
        return JobOutcome(
            kind="broken", message=_read_last_log_lines(log, log_start) or f"exit code {code}"
        ), code

    def _start_process(
        self, program: list[str], output: IO[bytes], errors: IO[bytes]
    ) -> "subprocess.Popen[bytes]":
        cores = self._share.cores
        launch = [sys.executable, "-I", "-S", str(LAUNCH), str(os.getpid())]
        launch.append(",".join(map(str, cores)) if cores else "all")
        if cores:
            launch.append(f"OMP_NUM_THREADS={len(cores)}")
        if self._share.gpus is not None:
            launch.append(f"CUDA_VISIBLE_DEVICES={','.join(self._share.gpus)}")
        if self._share.by_bus:
            launch.append("CUDA_DEVICE_ORDER=PCI_BUS_ID")
        return subprocess.Popen(
            [*launch, "--", *program],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            start_new_session=True,
            cwd=self._job.directory if Path(self._job.directory).is_dir() else None,
            pass_fds=self._share.leases,
        )

    def _wait_for_process(self, process: "subprocess.Popen[bytes]") -> str:
        """Wait until the process ends or must be stopped; return the reason if it was stopped."""
        assert self._held is not None
        reason, remaining_seconds = "", STOP_SECONDS
        while True:
            with suppress(subprocess.TimeoutExpired):
                process.wait(TICK_SECONDS)
                return reason
            request, held = read_stop_request(self._paths), self._held.renew_claim()
            # Without the claim there is no orderly stop: another process may be running it already.
            if not held or request == "now":
                reason = reason or ("the session was stopped" if held else "another process took the claim")
                self._kill_and_wait()
            elif request == "stop":
                if not reason:
                    process.send_signal(signal.SIGINT)
                reason = "the session was stopped"
                remaining_seconds -= TICK_SECONDS
                if remaining_seconds <= 0:
                    self._kill_and_wait()

    def _kill_and_wait(self) -> None:
        self._kill_process_group()
        if self._process:
            self._process.wait()

    def _kill_process_group(self) -> None:
        if self._process and self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)


def find_other_outcome(job: CampaignJob, runs: Sequence[CampaignRunSummary]) -> JobOutcome | None:
    """Return the outcome of a claimed job that another process has done or is doing; None: run it."""
    if sum(run.settled for run in runs) > job.settled:
        return JobOutcome(kind="elsewhere", run_id=runs[-1].paths.run_id)
    return JobOutcome(kind="busy") if _has_running(runs) else None


def _has_running(runs: Sequence[CampaignRunSummary]) -> bool:
    return any(run.state == "running" for run in runs)


def _read_result(output: Path) -> RunResult | None:
    try:
        return RunResult.model_validate_json(output.read_bytes())
    except (OSError, ValidationError):
        return None


def _read_last_log_lines(log: Path, start: int) -> str:
    with log.open("rb") as file:
        file.seek(start)
        lines = [line.strip() for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    return " ".join(lines[-2:]).removeprefix("error: ")[:MESSAGE_CHARACTERS]


# The executor protocol


@dataclass(frozen=True)
class EndedJob:
    job: CampaignJob
    outcome: JobOutcome


class JobExecutor(Protocol):
    """Decides where and when jobs run. Accepts more jobs at any time."""

    def submit(self, jobs: Sequence[CampaignJob]) -> None: ...

    def ended(self, seconds: float) -> list[EndedJob]:
        """Return the jobs that have ended since the last call. Waits at most this long for one."""

    def stop(self) -> None:
        """End jobs that have not started as stopped. Running jobs see the stop file of their session."""


# The job loop: submit the jobs, and submit again what another process claimed but did not finish

LOOP_SECONDS = 1.0
PATIENCE_SECONDS = 3.0
"""Time between two checks of jobs that other processes have claimed."""


def make_jobs(
    chosen: Sequence[ExperimentStatus],
    session: CampaignSession,
    runs: str,
    resources: RunResources,
    experience: CostEstimator,
    resume: bool,
) -> list[CampaignJob]:
    return [
        CampaignJob(
            experiment=status.experiment.id,
            label=format_cell(status.experiment.cell),
            arguments=status.experiment.arguments,
            runs=runs,
            session=str(session.paths.root),
            settled=status.settled,
            directory=str(Path.cwd()),
            resume=resume,
            resources=resources,
            wall_seconds=experience.estimate_limit_seconds(status.experiment.spec),
        )
        for status in chosen
    ]


def run_jobs(
    jobs: Sequence[CampaignJob],
    executor: JobExecutor,
    session: CampaignSession,
    claims: ExperimentClaims,
    report: Callable[[list[EndedJob]], None],
) -> list[EndedJob]:
    """Run jobs until each has ended, here or elsewhere. Calls `report` about once a second."""
    executor.submit(jobs)
    under_way, waiting, ended = len(jobs), list[CampaignJob](), list[EndedJob]()
    last_check, stopping = time.monotonic(), False
    while under_way or waiting:
        ended_now = executor.ended(LOOP_SECONDS)
        under_way -= len(ended_now)
        waiting += [ended_job.job for ended_job in ended_now if ended_job.outcome.kind == "busy"]
        finished = [ended_job for ended_job in ended_now if ended_job.outcome.kind != "busy"]
        ended += finished
        report(finished)
        if session.read_stop_request():
            if not stopping:
                executor.stop()
            stopping, waiting = True, []
        if waiting and time.monotonic() - last_check >= PATIENCE_SECONDS:
            last_check = time.monotonic()
            free = [job for job in waiting if claims.find_holder(job.experiment) is None]
            waiting = [job for job in waiting if job not in free]
            logger.debug("%d jobs of other processes are free again, %d are not", len(free), len(waiting))
            executor.submit(free)
            under_way += len(free)
    return ended
