"""Grades one model on one split in a child process, in its own sandbox, with limits.

Whatever goes wrong in there (a crash, a hang, too much memory, an answer that is not one) comes out as a
GradingError that says what happened; the next grading starts afresh.
"""

import os
import sys
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from agent2rl.core import evaluator_folders
from agent2rl.core.errors import GradingError
from agent2rl.core.records import EvalResult, EvalSettings, Limits, PromptTemplates, Record, Split
from agent2rl.core.sandbox import Command, Enclosure, Exit, Mount, Sandbox
from agent2rl.evaluators.code_tests.pool import SOCKETS_VARIABLE
from agent2rl.evaluators.judge_client import make_missing_error, too_many_missing
from agent2rl.grading.model_builder import BuiltFiles
from agent2rl.grading.program_sandboxes import PROGRAMS_MOUNT, ProgramSandboxes
from agent2rl.grading.worker import EXAMPLES, JOB, MODEL, RESULT, GradingJob, GradingOutcome
from agent2rl.net import grading_proxy_client
from agent2rl.store.files import remove_tree, write_record

R = TypeVar("R", bound=Record)
MIB = 1 << 20
RESULT_BYTES = 1 << 30


class EvaluationFailed(GradingError):
    """A grading failed with the examples open: the error's text may depend on them."""


@dataclass(frozen=True)
class SplitFile:
    """A split's examples, in a file that only a grading child opens."""

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
    """How to grade: everything but the model."""

    sandbox: Sandbox
    task: str
    engine: str
    settings: EvalSettings
    splits: dict[Split, SplitFile]
    limits: Limits
    seconds: float
    gpu: str | None = None
    beside: Mapping[str, EvaluatorFolder] = field(default_factory=dict)
    """What the task's evaluator reads beside the examples, by name."""
    code: tuple[Path, ...] = ()
    """Files and directories outside the package that the task or the engine is made of."""
    programs: int = 0
    """Sandboxes for programs that the model wrote, where the task runs any."""
    prompts: PromptTemplates | None = None
    """The user's own words, in place of the task's."""
    desk: Path | None = None
    """The socket where the child asks for searches and judgements, where it may."""
    offer: str = ""
    """What is offered there: results depend on it."""
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
        """Grade a model directory of the user's own, or the files that were built of a submission."""
        scratch.mkdir(parents=True, exist_ok=True)
        here = Path(tempfile.mkdtemp(prefix="grading-", dir=scratch))
        try:
            work, rest = here / "work", here / "scratch"
            work.mkdir()
            rest.mkdir()
            write_record(work / JOB, self._build_job())
            with ProgramSandboxes(
                self.sandbox, self.programs, here / "programs", self.limits, stop
            ) as programs:
                enclosure = self._build_enclosure(model, split, work, rest, log)
                enclosure = replace(enclosure, mounts=(*enclosure.mounts, *programs.mounts))
                ended = self.sandbox.run(self._build_command(), enclosure, stop)
            self._note_memory(ended, log)
            return self._read_outcome(ended, work / RESULT, self.splits[split].n)
        finally:
            remove_tree(here)

    def _build_job(self) -> GradingJob:
        return GradingJob(task=self.task, engine=self.engine, settings=self.settings, prompts=self.prompts)

    def _build_command(self) -> Command:
        environment = {"PYTHONDONTWRITEBYTECODE": "1"}
        if self.python_path:
            environment["PYTHONPATH"] = os.pathsep.join(str(entry) for entry in self.python_path)
        environment[SOCKETS_VARIABLE] = PROGRAMS_MOUNT if self.programs else ""
        environment[evaluator_folders.FOLDER_VARIABLE] = evaluator_folders.MOUNT_NAME if self.beside else ""
        environment[grading_proxy_client.PROXY_VARIABLE] = (
            grading_proxy_client.MOUNT_NAME if self.desk else ""
        )
        if self.gpu is not None:
            environment["CUDA_VISIBLE_DEVICES"] = self.gpu
        return Command((sys.executable, "-m", "agent2rl.grading.worker"), environment)

    def _build_enclosure(
        self, model: Path | BuiltFiles, split: Split, work: Path, scratch: Path, log: Path
    ) -> Enclosure:
        files = [*model_mounts(model), Mount(self.splits[split].path, EXAMPLES)]
        files += [
            Mount(folder.path, f"{evaluator_folders.MOUNT_NAME}/{name}")
            for name, folder in self.beside.items()
        ]
        files += [Mount(self.desk.parent, grading_proxy_client.MOUNT_NAME)] if self.desk else []
        files += [Mount(path, str(path)) for path in (*self.code, *self.python_path)]
        return Enclosure(
            role="grader",
            workspace=work,
            scratch=scratch,
            log=log,
            wall_seconds=self.seconds,
            limits=self.limits,
            mounts=tuple(files),
            grace_seconds=0,
        )

    def _note_memory(self, ended: Exit, log: Path) -> None:
        """For whoever wonders how much a grading takes of what it may."""
        most, limit = ended.peak_memory_bytes / MIB, self.limits.memory_bytes / MIB
        with log.open("a", encoding="utf-8") as file:
            file.write(f"peak memory {most:.0f} MiB of {limit:.0f} MiB\n")

    def _read_outcome(self, ended: Exit, path: Path, n: int) -> EvalResult:
        require_normal_exit("Grading", ended, self.seconds)
        outcome = read_child_answer(path, GradingOutcome)
        if outcome is not None and outcome.error is not None:
            raise (EvaluationFailed if outcome.examples_were_open else GradingError)(outcome.error)
        if outcome is None or outcome.evaluation is None or ended.code != 0:
            raise GradingError(f"The grading child crashed (exit code {ended.code}).")
        results, missing = outcome.evaluation.results, outcome.evaluation.missing
        if len(results) + len(missing) != n or len({result.id for result in results} | {*missing}) != n:
            raise GradingError(f"The grading child answered {len(results) + len(missing)} of {n} examples.")
        if too_many_missing(len(missing), n):
            raise make_missing_error(len(missing), n, next(iter(missing.values())))
        return outcome.evaluation


def model_mounts(model: Path | BuiltFiles) -> tuple[Mount, ...]:
    """Where the child sees a model: a directory as it is, or each built file at its name."""
    if isinstance(model, Path):
        return (Mount(model, MODEL),)
    return tuple(Mount(path, f"{MODEL}/{name}") for name, path in model.items())


def require_normal_exit(what: str, ended: Exit, seconds: float) -> None:
    """A child that was ended has not answered."""
    if ended.reason == "deadline":
        raise GradingError(f"{what} did not end within its {seconds:g} s.")
    if ended.reason == "stopped":
        raise GradingError(f"{what} was stopped with the run.")
    if ended.reason != "exited":
        raise GradingError(f"{what} was ended: {ended.detail or ended.reason}")


def read_child_answer(path: Path, kind: type[R]) -> R | None:
    """What a child left, which may be anything; None where it left nothing."""
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
