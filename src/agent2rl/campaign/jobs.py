"""A job runs one claimed experiment. The worker that every executor uses, the executor protocol, and the loop
that feeds jobs to an executor.

The run is a process of its own, `agent2rl run`, in a session of its own: no signal of a terminal reaches it.
It is killed with whoever waits for it here, so that a claim whose holder is dead has no run that goes on.
"""

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
from agent2rl.core.record import Record
from agent2rl.core.records import Ending, RunResult
from agent2rl.record.paths import SessionPaths, claims_folder

# One job: an experiment claimed, run and given back. What every executor does, on whatever machine.

LAUNCH = Path(__file__).with_name("launch.py")
TICK_SECONDS = 0.5
STOP_SECONDS = 60.0
"""For a run to end in order; then it is killed."""
WRONG_COMMAND = 2
RESUME_TAKES = ("--no-report", "--track=", "--track-group=")
SAID = 300


class CampaignJob(Record):
    """An experiment that is to be run; the same wherever it is done."""

    experiment: str
    label: str
    """For people."""
    arguments: tuple[str, ...]
    """Of `agent2rl run`."""
    runs: str
    session: str
    """The directory of the session that it is done for."""
    directory: str
    """That relative paths among the arguments start from, where it exists."""
    settled: int
    """Runs of it that had ended when it was decided to run it: where there are more, somebody was faster."""
    resume: bool
    """Whether a run that crashed can be taken up."""
    resources: RunResources
    wall_seconds: float
    """All that it may take, where somebody must say beforehand."""


class JobOutcome(Record):
    """What became of a job."""

    kind: Literal[
        "ran",  # there is a result
        "busy",  # another is at work on it
        "elsewhere",  # another was faster
        "stopped",  # the session was asked to stop
        "broken",  # it ended without a result
    ]
    run_id: str | None = None
    ending: Ending | None = None
    message: str = ""


@dataclass(frozen=True)
class MachineShare:
    """What of a machine a job has."""

    cores: tuple[int, ...] | None = None
    """None: whatever this process may use."""
    gpus: tuple[str, ...] | None = None
    """As CUDA_VISIBLE_DEVICES names them. None: what this process sees."""
    leases: tuple[int, ...] = ()
    """Files whose locks are to be held as long as the run lives."""
    by_bus: bool = False
    """Whether GPUs are numbered by their place on the bus. Else as whoever named them has it."""


class JobWorker:
    """A job under way."""

    def __init__(self, job: CampaignJob, share: MachineShare) -> None:
        self._job, self._share = job, share
        self._paths = SessionPaths(Path(job.session))
        self._held: HeldClaim | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def run(self) -> JobOutcome:
        job = self._job
        if read_stop_request(self._paths):
            return JobOutcome(kind="stopped")
        past = RunHistory(Path(job.runs))
        if _has_running(past.list_experiment_runs(job.experiment)):
            return JobOutcome(kind="busy")  # claims stay for good: none is made in vain at each look
        self._held = ExperimentClaims(claims_folder(Path(job.runs))).claim_experiment(
            job.experiment, self._paths.root.name
        )
        if self._held is None:
            return JobOutcome(kind="busy")
        try:
            runs = past.list_experiment_runs(job.experiment)
            return find_other_outcome(job, runs) or self._resume_or_run(past, runs)
        finally:
            self._kill_and_wait()
            self._held.release()

    def abandon_run(self) -> None:
        """Leave the run as a crash would, to be taken up elsewhere. Safe in a signal's handler."""
        self._kill_process_group()
        if self._held:
            self._held.release()

    def _resume_or_run(self, past: RunHistory, runs: list[CampaignRunSummary]) -> JobOutcome:
        """The last run is taken up where it crashed; where that is refused, a new one is begun."""
        if self._job.resume and runs and runs[-1].state == "crashed":
            kept = [each for each in self._job.arguments if each.startswith(RESUME_TAKES)]
            outcome, code = self._run_command(
                "resume", runs[-1].paths.run_id, *kept, *self._make_group_option()
            )
            if code != WRONG_COMMAND:
                return outcome
            if gone := find_other_outcome(self._job, past.list_experiment_runs(self._job.experiment)):
                return gone  # somebody resumed it by hand just now
        return self._run_command(
            "run", *self._job.arguments, *self._make_memory_option(), *self._make_group_option()
        )[0]

    def _make_group_option(self) -> tuple[str, ...]:
        """What trackers show its runs as: the campaign."""
        arguments = self._job.arguments
        said = any(each.startswith("--track-group=") for each in arguments)
        tracked = any(each.startswith("--track=") for each in arguments)
        return (f"--track-group={self._paths.root.parent.name}",) if tracked and not said else ()

    def _make_memory_option(self) -> tuple[str, ...]:
        memory = self._job.resources.memory
        said = any(each.startswith("--max-memory=") for each in self._job.arguments)
        return (f"--max-memory={memory}",) if memory and not said else ()

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
            return JobOutcome(kind="stopped", message="it was told to end"), 1
        with output.open("wb") as said, log.open("ab") as errors:
            beginning = errors.tell()
            self._process = self._start_process(program, said, errors)
            stopped = self._wait_for_process(self._process)
        code = self._process.returncode
        result = _read_result(output)
        if result and compute_experiment_id(result.spec) != self._job.experiment:
            message = (
                f"{result.run_id} is not the experiment that was asked for: this machine reads it otherwise."
            )
            return JobOutcome(kind="broken", run_id=result.run_id, message=message), code
        if result:
            kind: Literal["ran", "stopped"] = "stopped" if result.ending == "interrupted" else "ran"
            outcome = JobOutcome(kind=kind, run_id=result.run_id, ending=result.ending, message=result.reason)
            return outcome, code
        if stopped:
            return JobOutcome(kind="stopped", message=stopped), code
        return JobOutcome(
            kind="broken", message=_read_last_log_lines(log, beginning) or f"exit code {code}"
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
        """Until it ends, or has to; says why it was made to."""
        assert self._held is not None
        why, patience = "", STOP_SECONDS
        while True:
            with suppress(subprocess.TimeoutExpired):
                process.wait(TICK_SECONDS)
                return why
            how, held = read_stop_request(self._paths), self._held.renew_claim()
            if not held or how == "now":
                why = why or ("the session was stopped" if held else "the claim was lost to another")
                self._kill_and_wait()
            elif how == "stop":
                if not why:
                    process.send_signal(signal.SIGINT)
                why = "the session was stopped"
                patience -= TICK_SECONDS
                if patience <= 0:
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
    """What is left to do of a job that was claimed: nothing, where somebody else did it or is doing it."""
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


def _read_last_log_lines(log: Path, beginning: int) -> str:
    with log.open("rb") as file:
        file.seek(beginning)
        lines = [line.strip() for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    return " ".join(lines[-2:]).removeprefix("error: ")[:SAID]


# What a campaign asks of whatever runs its jobs.


@dataclass(frozen=True)
class EndedJob:
    job: CampaignJob
    outcome: JobOutcome


class JobExecutor(Protocol):
    """Where and when a job is done is the executor's to know. It may be given further jobs at any time."""

    def submit(self, jobs: Sequence[CampaignJob]) -> None: ...

    def ended(self, seconds: float) -> list[EndedJob]:
        """Jobs that have ended since the last call; waits so long for one at most."""

    def stop(self) -> None:
        """Jobs that have not begun end as stopped. Those that have begun see their session's stop file."""


# Sees a campaign through: gives its jobs to an executor, and again what another claimed and did not do.

LOOP_SECONDS = 1.0
PATIENCE_SECONDS = 3.0
"""Between two looks at what another has claimed."""


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
            experiment=one.experiment.id,
            label=format_cell(one.experiment.cell),
            arguments=one.experiment.arguments,
            runs=runs,
            session=str(session.paths.root),
            settled=one.settled,
            directory=str(Path.cwd()),
            resume=resume,
            resources=resources,
            wall_seconds=experience.estimate_limit_seconds(one.experiment.spec),
        )
        for one in chosen
    ]


def run_jobs(
    wanted: Sequence[CampaignJob],
    executor: JobExecutor,
    session: CampaignSession,
    claims: ExperimentClaims,
    tell: Callable[[list[EndedJob]], None],
) -> list[EndedJob]:
    """Until every job has ended, here or elsewhere. `tell` is called about once a second."""
    executor.submit(wanted)
    under_way, waiting, ended = len(wanted), list[CampaignJob](), list[EndedJob]()
    looked, stopping = time.monotonic(), False
    while under_way or waiting:
        found = executor.ended(LOOP_SECONDS)
        under_way -= len(found)
        waiting += [one.job for one in found if one.outcome.kind == "busy"]
        news = [one for one in found if one.outcome.kind != "busy"]
        ended += news
        tell(news)
        if session.read_stop_request():
            if not stopping:
                executor.stop()
            stopping, waiting = True, []
        if waiting and time.monotonic() - looked >= PATIENCE_SECONDS:
            looked = time.monotonic()
            free = [job for job in waiting if claims.find_holder(job.experiment) is None]
            waiting = [job for job in waiting if job not in free]
            executor.submit(free)
            under_way += len(free)
    return ended
