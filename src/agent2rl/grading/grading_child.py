"""Grade one model on one split in a child process, in its own sandbox, with limits.

Any failure of the child (a crash, a hang, too much memory, an invalid answer) is raised as a GradingError
that says what happened. Each grading starts a new child. Programs that a submitted model wrote run in further
sandboxes next to the child's, because a sandbox cannot be created inside another. Each shares only a
directory with a socket with the child, and is restarted when it ends.
"""

import logging
import os
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self, TypeVar

from pydantic import ValidationError

from agent2rl.core import task as core_task
from agent2rl.core.errors import Agent2RLError, EngineFailure, GradingError, MachineError
from agent2rl.core.grading_records import EvalResult, EvalSettings, Split
from agent2rl.core.records import Limits, PromptTemplates, Record
from agent2rl.core.sandbox import Command, Enclosure, Exit, Mount, Sandbox
from agent2rl.core.task import ProgramEvaluator, Task
from agent2rl.evaluators.code_tests.pool import (
    SOCKET,
    SOCKETS_VARIABLE,
    build_server_command,
    list_server_files,
)
from agent2rl.evaluators.judge import make_missing_error, too_many_missing
from agent2rl.grading import worker
from agent2rl.grading.model_builder import BuiltFiles
from agent2rl.grading.worker import EXAMPLES, JOB, MODEL, RESULT, GradingJob, GradingOutcome
from agent2rl.net import grading_proxy_client
from agent2rl.record.files import remove_tree, write_record

logger = logging.getLogger(__name__)

# Sandboxes for programs that a submitted model wrote.

PROGRAMS_MOUNT = "programs"
"""Path of the directories in the child's workspace."""
# These sandboxes end with the grading. A deadline of their own would only end them too early.
LONGEST_SECONDS = 30 * 86400.0
START_SECONDS = 30.0
PAUSE_SECONDS = 0.02
MEMORY_BYTES, DISK_BYTES, PROCESSES = 2 << 30, 64 << 20, 16


def count_program_sandboxes(task: Task) -> int:
    """Return the number of sandboxes for a grading: as many as the task wants, limited by the cores."""
    workers = task.evaluator.program_workers if isinstance(task.evaluator, ProgramEvaluator) else 0
    return min(workers, len(os.sched_getaffinity(0)))


class ProgramSandboxes:
    """Keeps a number of sandboxes alive inside its context."""

    def __init__(
        self, sandbox: Sandbox, count: int, home: Path, limits: Limits, stop: threading.Event | None = None
    ) -> None:
        """`stop` ends the wait for their start."""
        self._sandbox = sandbox
        self._homes = [home / str(number) for number in range(count)]
        self._limits = Limits(
            memory_bytes=min(MEMORY_BYTES, limits.memory_bytes), disk_bytes=DISK_BYTES, processes=PROCESSES
        )
        self._stop = threading.Event()
        self._stopped = stop or threading.Event()
        self._fault: Agent2RLError | None = None
        self._threads = [
            threading.Thread(target=self._keep_running, args=(home,), daemon=True) for home in self._homes
        ]

    @property
    def sockets(self) -> list[Path]:
        return [home / "work" / SOCKET for home in self._homes]

    @property
    def mounts(self) -> tuple[Mount, ...]:
        return tuple(Mount(home / "work", f"{PROGRAMS_MOUNT}/{home.name}") for home in self._homes)

    def _keep_running(self, home: Path) -> None:
        """Run one sandbox, and restart it whenever it ends."""
        enclosure = Enclosure(
            role="program",
            workspace=home / "work",
            scratch=home / "scratch",
            log=home / "log",
            wall_seconds=LONGEST_SECONDS,
            limits=self._limits,
            hidden=PACKAGES,
            grace_seconds=0,
        )
        command = Command(
            build_server_command(SOCKET), mounts=tuple(Mount(path, str(path)) for path in list_server_files())
        )
        while not self._stop.is_set():
            try:
                self._sandbox.run(command, enclosure, self._stop)
            except Agent2RLError as error:
                self._fault = error
            except Exception as error:  # may be temporary, such as a lack of descriptors
                self._fault = MachineError(f"A sandbox for programs failed: {type(error).__name__}: {error}")
            # A sandbox that ends at once must not keep a core busy with starting it.
            self._stop.wait(PAUSE_SECONDS)

    def __enter__(self) -> Self:
        for home in self._homes:
            (home / "work").mkdir(parents=True)
            (home / "scratch").mkdir()
        try:
            for thread in self._threads:
                thread.start()
            self._wait_until_ready()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _wait_until_ready(self) -> None:
        """Wait for all sandboxes: a machine that cannot start them must not look like a failing model."""
        late = time.monotonic() + START_SECONDS
        while not self._stopped.is_set() and not all(socket.exists() for socket in self.sockets):
            if self._fault is not None:
                raise self._fault
            if time.monotonic() > late:
                said = self._homes[0].joinpath("log").read_text(errors="replace")[-500:]
                raise MachineError(f"A sandbox for programs does not start: {said or 'no output.'}")
            time.sleep(PAUSE_SECONDS)

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join()


_BASE = {
    "base": sysconfig.get_config_var("installed_base"),
    "platbase": sysconfig.get_config_var("installed_platbase"),
}
"""Directories of the base interpreter, if this runs in a virtual environment."""
PACKAGES = (
    *(Path(sysconfig.get_path(name, vars=_BASE)) for name in ("purelib", "platlib")),
    Path("/usr/lib/python3/dist-packages"),
)
"""Installed packages, which are hidden because they are not part of the interpreter."""

R = TypeVar("R", bound=Record)
MIB = 1 << 20
PROCESS_BYTES = 2 << 30
"""Memory for each process of an engine: half a GiB for itself, and its share of the KV cache."""
RESULT_BYTES = 1 << 30
LOG_LINES, LOG_CHARACTERS = 12, 2000
"""How much of a log a message quotes at most."""


class EvaluationFailed(GradingError):
    """A grading failed while the examples were open, so the error's text may depend on them."""


@dataclass(frozen=True)
class SplitFile:
    """The file with a split's examples, which only a grading child opens."""

    path: Path
    n: int
    sha256: str


@dataclass(frozen=True)
class EvaluatorFolder:
    """A folder that only grading children see."""

    path: Path
    sha256: str


@dataclass(frozen=True)
class GradingChild:
    """Everything that a grading needs except the model."""

    sandbox: Sandbox
    task: str
    engine: str
    settings: EvalSettings
    splits: dict[Split, SplitFile]
    limits: Limits
    seconds: float
    gpu: str | None = None
    gpus: tuple[str, ...] | None = None
    """GPUs whose device files a grading without a `gpu` sees. None: all."""
    evaluator_folders: Mapping[str, EvaluatorFolder] = field(default_factory=dict)
    """Further folders that the task's evaluator reads, by name."""
    code: tuple[Path, ...] = ()
    """Files and directories outside the package with code of the task or the engine."""
    programs: int = 0
    """Number of sandboxes for programs that the model wrote."""
    prompts: PromptTemplates | None = None
    """The user's prompt templates, which replace the task's."""
    profile: str | None = None
    """The published profile that evaluates; None: the task's own evaluation."""
    proxy_socket: Path | None = None
    """The socket of the grading proxy for searches and judgements, if there is one."""
    proxy_description: str = ""
    """Description of the proxy's services, on which results depend."""
    python_path: tuple[Path, ...] = ()
    """The user's own import path, for tasks and engines given as package.module:NAME."""

    def grade_model(
        self,
        model: Path | BuiltFiles,
        split: Split,
        log: Path,
        scratch: Path,
        stop: threading.Event,
    ) -> EvalResult:
        """Grade a trusted model directory, or the files built from a submission."""
        scratch.mkdir(parents=True, exist_ok=True)
        here = Path(tempfile.mkdtemp(prefix="grading-", dir=scratch))
        try:
            work, rest = here / "work", here / "scratch"
            work.mkdir()
            rest.mkdir()
            write_record(work / JOB, self._build_job())
            log_start = log.stat().st_size if log.exists() else 0
            with ProgramSandboxes(
                self.sandbox, self.programs, here / "programs", self.limits, stop
            ) as programs:
                enclosure = self._build_enclosure(model, split, work, rest, log)
                enclosure = replace(enclosure, mounts=(*enclosure.mounts, *programs.mounts))
                ended = self.sandbox.run(self._build_command(), enclosure, stop)
            self._note_memory(ended, log)
            logger.debug(
                "Grading on %s: %s after %.1f s, peak memory %.0f MiB",
                split,
                ended.reason,
                ended.wall_seconds,
                ended.peak_memory_bytes / MIB,
            )
            return self._read_outcome(ended, work / RESULT, self.splits[split].n, log, log_start)
        finally:
            remove_tree(here)

    def _build_job(self) -> GradingJob:
        return GradingJob(
            task=self.task,
            engine=self.engine,
            settings=self.settings,
            prompts=self.prompts,
            profile=self.profile,
            processes=count_engine_processes(self.limits),
        )

    def _build_command(self) -> Command:
        environment = {"PYTHONDONTWRITEBYTECODE": "1"}
        if self.python_path:
            environment["PYTHONPATH"] = os.pathsep.join(str(entry) for entry in self.python_path)
        environment[SOCKETS_VARIABLE] = PROGRAMS_MOUNT if self.programs else ""
        environment[core_task.FOLDER_VARIABLE] = core_task.MOUNT_NAME if self.evaluator_folders else ""
        environment[grading_proxy_client.PROXY_VARIABLE] = (
            grading_proxy_client.MOUNT_NAME if self.proxy_socket else ""
        )
        if self.gpu is not None:
            environment["CUDA_VISIBLE_DEVICES"] = self.gpu
        return Command((sys.executable, "-m", worker.__name__), environment)

    def _build_enclosure(
        self, model: Path | BuiltFiles, split: Split, work: Path, scratch: Path, log: Path
    ) -> Enclosure:
        files = [*model_mounts(model), Mount(self.splits[split].path, EXAMPLES)]
        files += [
            Mount(folder.path, f"{core_task.MOUNT_NAME}/{name}")
            for name, folder in self.evaluator_folders.items()
        ]
        files += (
            [Mount(self.proxy_socket.parent, grading_proxy_client.MOUNT_NAME)] if self.proxy_socket else []
        )
        files += [Mount(path, str(path)) for path in (*self.code, *self.python_path)]
        return Enclosure(
            role="grader",
            workspace=work,
            scratch=scratch,
            log=log,
            wall_seconds=self.seconds,
            limits=self.limits,
            mounts=tuple(files),
            gpus=self.gpus if self.gpu is None else (self.gpu,),
            grace_seconds=0,
        )

    def _note_memory(self, ended: Exit, log: Path) -> None:
        """Write the peak memory and the limit to the log."""
        most, limit = ended.peak_memory_bytes / MIB, self.limits.memory_bytes / MIB
        with log.open("a", encoding="utf-8") as file:
            file.write(f"peak memory {most:.0f} MiB of {limit:.0f} MiB\n")

    def _read_outcome(self, ended: Exit, path: Path, n: int, log: Path, log_start: int) -> EvalResult:
        require_normal_exit("Grading", ended, self.seconds)
        outcome = read_child_answer(path, GradingOutcome)
        if outcome is not None and outcome.error is not None and outcome.engine_failed:
            raise EngineFailure(outcome.error, quote_log_end(log, log_start))
        if outcome is not None and outcome.error is not None:
            raise (EvaluationFailed if outcome.examples_were_open else GradingError)(outcome.error)
        if outcome is None or outcome.evaluation is None or ended.code != 0:
            raise GradingError(f"The grading child crashed (exit code {ended.code}).")
        results, missing = outcome.evaluation.results, outcome.evaluation.missing
        # The child has read untrusted weights: each example must be there, and none twice.
        if len(results) + len(missing) != n or len({result.id for result in results} | {*missing}) != n:
            raise GradingError(f"The grading child answered {len(results) + len(missing)} of {n} examples.")
        if too_many_missing(len(missing), n):
            raise make_missing_error(len(missing), n, next(iter(missing.values())))
        return outcome.evaluation


def count_engine_processes(limits: Limits) -> int:
    """Return how many processes of an engine fit into the limits; each may have one that renders chats."""
    return max(1, min(limits.processes // 2, limits.memory_bytes // PROCESS_BYTES))


def model_mounts(model: Path | BuiltFiles) -> tuple[Mount, ...]:
    """Return the mounts of a model: a whole directory, or each built file at its name."""
    if isinstance(model, Path):
        return (Mount(model, MODEL),)
    return tuple(Mount(path, f"{MODEL}/{name}") for name, path in model.items())


def require_normal_exit(what: str, ended: Exit, seconds: float) -> None:
    """Raise if the child did not exit by itself."""
    if ended.reason == "deadline":
        raise GradingError(f"{what} did not finish within {seconds:g} s.")
    if ended.reason == "stopped":
        raise GradingError(f"{what} was stopped with the run.")
    if ended.reason != "exited":
        raise GradingError(f"{what} was killed: {ended.detail or ended.reason}")


def quote_log_end(log: Path, start: int) -> str:
    """Return the last lines of a grading log after `start`, where this grading began to write."""
    with log.open("rb") as file:
        # A character has at most four bytes in UTF-8.
        file.seek(max(start, os.fstat(file.fileno()).st_size - 4 * LOG_CHARACTERS))
        lines = file.read().decode(errors="replace").splitlines()
    quoted = "\n".join(line.rstrip() for line in lines[-LOG_LINES:] if line.strip())
    return f"The last lines of the grading log:\n{quoted[-LOG_CHARACTERS:]}"


def read_child_answer(path: Path, kind: type[R]) -> R | None:
    """Read and validate the child's untrusted answer; None if there is none."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    with open(descriptor, "rb") as file:
        if os.fstat(descriptor).st_size > RESULT_BYTES:
            raise GradingError(f"The grading child's answer is larger than {RESULT_BYTES >> 20} MiB.")
        try:
            return kind.model_validate_json(file.read())
        except ValidationError as error:
            raise GradingError(
                f"The grading child's answer is malformed: {error.errors()[0]['msg']}."
            ) from None
