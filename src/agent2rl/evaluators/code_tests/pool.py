"""Distribute programs to workers and return their verdicts in order.

A worker is a server that runs programs (in its sandbox) and a tester that judges them (here). In a grading,
the harness starts the servers: AGENT2RL_PROGRAMS is a directory with a socket for each. Elsewhere, such as in
an agent's sandbox, the pool starts its own servers; then only the jail confines the programs.

A worker must first pass a trial with a correct program: a machine on which nothing works must not look like a
failing model. A dead server is restarted by its creator, and other workers take over meanwhile. The program
that it ran is judged again, so that a failing machine never causes a verdict. If no server answers for a
while, there is no verdict, and a GradingError is raised.
"""

import json
import logging
import os
import select
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

import agent2rl
from agent2rl.core.errors import GradingError
from agent2rl.core.sandbox import BARE_PYTHON
from agent2rl.evaluators.code_tests import tester
from agent2rl.evaluators.code_tests.tester import WALL_SECONDS

logger = logging.getLogger(__name__)

SOCKETS_VARIABLE = "AGENT2RL_PROGRAMS"
SOCKET = "sock"
PACKAGE = Path(agent2rl.__file__).parent
KILL_SECONDS = WALL_SECONDS + 4
"""A tester that does not answer for this long is killed."""
PATIENCE_SECONDS = 60.0
"""Grading fails if no server answers for this long."""
PAUSE_SECONDS = 0.02
MOST_LOSSES = 2

Tell = Callable[[int], None]
TRIAL_PROGRAM = "def trial(x):\n    return [x, 1.5]\n"


@dataclass(frozen=True)
class ProgramJob:
    """A program and its tests."""

    program: str
    entry: str
    """The name of the function to test."""
    reference: str
    """A correct program; the tests may use its definitions."""
    test: str
    """Defines `check(candidate)`, which raises if the candidate is wrong."""
    fallback: str = ""
    """Another text of the program, for the case that the first does not compile. Text after it is cut off."""
    inside: bool = False
    """Run the tests inside the sandbox because their data is not plain. Such a verdict can be forged."""


@dataclass(frozen=True)
class ProgramVerdict:
    passed: bool
    note: str = ""
    unplain: str = ""
    """The value that could not cross the socket, if that is the reason for the failure."""
    lost: bool = False
    """Whether the sandbox ended while it ran the program."""
    absent: bool = False
    """Whether there was no server; then this is not a verdict."""
    inside: bool = False
    """Whether the tests ran inside the sandbox."""


TRIAL = ProgramJob(
    TRIAL_PROGRAM, "trial", TRIAL_PROGRAM, "def check(candidate):\n    assert candidate(1) == [1, 1.5]\n"
)
"""The trial that every worker must pass first."""


def build_server_command(socket: str, *options: str) -> tuple[str, ...]:
    """Return the command that starts `server` with only the standard library and the few modules it needs."""
    # The path is taken away after the import, so that no program can import this package.
    code = (
        f"import sys; sys.path.append({str(PACKAGE.parent)!r}); "
        "from agent2rl.evaluators.code_tests.server import main; sys.path.pop(); main(*sys.argv[1:])"
    )
    return (BARE_PYTHON, "-I", "-S", "-c", code, socket, *options)


def list_server_files() -> tuple[Path, ...]:
    """Return the files of this package that the server needs."""
    return (PACKAGE / "__init__.py", PACKAGE / "evaluators" / "__init__.py", Path(__file__).parent)


class ProgramPool:
    """A pool of workers. Use it as a context manager; only the process that made it can use and close it."""

    def __init__(self, sockets: Sequence[Path] | None = None, own: int = 0) -> None:
        """Use the servers at these sockets, which are managed elsewhere, or start `own` servers."""
        self._owner = os.getpid()
        self._home = Path(tempfile.mkdtemp(prefix="programs-")) if own else None
        self._servers: list[ProgramServer] = []
        self._workers: list[ProgramWorker] = []
        try:
            for number in range(own):
                assert self._home is not None
                self._servers.append(ProgramServer(self._home / str(number)))
        except BaseException:
            self.close()
            raise
        paths = [server.socket for server in self._servers] if sockets is None else sockets
        self._workers = [ProgramWorker(path) for path in paths]

    @classmethod
    def open(cls) -> Self:
        """Open a pool with the harness's servers in a grading, or with its own servers elsewhere."""
        given = os.environ.get(SOCKETS_VARIABLE)
        if given is None:
            return cls(own=min(8, len(os.sched_getaffinity(0))))
        if not given:
            raise GradingError(
                "This grading has no sandboxes for programs.",
                "The task's evaluator must set `program_workers`.",
            )
        places = sorted(Path(given).iterdir(), key=lambda place: int(place.name))
        return cls([place / SOCKET for place in places])

    def judge_jobs(self, jobs: Sequence[ProgramJob], tell: Tell = lambda _: None) -> list[ProgramVerdict]:
        """Return a verdict for each job; `tell` gets the number of finished jobs."""
        if not self._workers:
            raise GradingError("There is no worker to run programs.")
        judging = _JudgingRound(jobs, tell)
        if len(jobs) == 1:  # a training reward, perhaps one of thousands: no threads
            judging.run_workers(self._workers)
            return judging.collect_verdicts()
        threads = [
            threading.Thread(target=judging.run_workers, args=([worker],), daemon=True)
            for worker in self._workers
        ]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                thread.join()
        except BaseException as error:  # an interrupt: the threads end with the job they have
            judging.stop(error)
            raise
        return judging.collect_verdicts()

    def close(self) -> None:
        if os.getpid() != self._owner:  # a fork: the processes belong to the parent
            return
        for worker in self._workers:
            worker.close()
        for server in self._servers:
            server.close()
        if self._home:
            shutil.rmtree(self._home, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _JudgingRound:
    """The jobs of one call, shared by the threads that work on them."""

    def __init__(self, jobs: Sequence[ProgramJob], tell: Tell) -> None:
        self._jobs = jobs
        self._tell = tell
        self._waiting = deque(range(len(jobs)))
        self._found: dict[int, ProgramVerdict] = {}
        self._losses = [0] * len(jobs)
        self._changed = threading.Condition()
        self._served_at = time.monotonic()
        self._fault: BaseException | None = None

    def run_workers(self, workers: Sequence["ProgramWorker"]) -> None:
        """Judge jobs until all have a verdict. If a worker has no server, the next worker takes over."""
        turn = 0
        try:
            while (number := self._take_job()) is not None:
                verdict = workers[turn % len(workers)].judge_job(self._jobs[number])
                self._record_verdict(number, verdict)
                if verdict.absent:
                    turn += 1
                    time.sleep(PAUSE_SECONDS)
        except BaseException as error:
            self.stop(error)

    def stop(self, fault: BaseException) -> None:
        with self._changed:
            self._fault = fault
            self._changed.notify_all()

    def _take_job(self) -> int | None:
        """Return the next job. Waits while others work on the last jobs, because they may return one."""
        with self._changed:
            while not self._is_over():
                if self._waiting:
                    return self._waiting.popleft()
                self._changed.wait()
        return None

    def _record_verdict(self, number: int, verdict: ProgramVerdict) -> None:
        with self._changed:
            self._losses[number] += verdict.lost
            if verdict.absent or (verdict.lost and self._losses[number] < MOST_LOSSES):
                self._waiting.append(number)
            else:
                self._found[number] = verdict
                self._tell(len(self._found))
            if not verdict.absent:
                self._served_at = time.monotonic()
            self._changed.notify_all()

    def _is_over(self) -> bool:
        late = time.monotonic() - self._served_at > PATIENCE_SECONDS
        return late or self._fault is not None or len(self._found) == len(self._jobs)

    def collect_verdicts(self) -> list[ProgramVerdict]:
        if self._fault:
            raise self._fault
        if len(self._found) < len(self._jobs):
            raise GradingError(
                f"No sandbox for programs answered for {PATIENCE_SECONDS:g} s.",
                "This is not the model's fault. Grade it again.",
            )
        return [self._found[number] for number in range(len(self._jobs))]


class ProgramWorker:
    """The tester process of one server; started when first needed, and again after it was killed."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._process: subprocess.Popen[bytes] | None = None
        self._turn = threading.Lock()
        self._works = False

    def judge_job(self, job: ProgramJob) -> ProgramVerdict:
        with self._turn:
            if not self._works:
                trial = self._ask_tester(TRIAL)
                if trial.absent or trial.lost:
                    return ProgramVerdict(False, absent=True)
                if not trial.passed:
                    raise GradingError(
                        f"A correct program does not pass on this machine: {trial.note}.",
                        "This is not the model's fault. See the grading log.",
                    )
                self._works = True
            return self._ask_tester(job)

    def _ask_tester(self, job: ProgramJob) -> ProgramVerdict:
        process = self._process = self._process or self._start_tester()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            with suppress(BrokenPipeError):
                process.stdin.write(json.dumps(asdict(job)).encode() + b"\n")
                process.stdin.flush()
            waiting = select.poll()
            waiting.register(process.stdout, select.POLLIN)
            late = not waiting.poll(1000 * KILL_SECONDS)
            answer = b"" if late else process.stdout.readline()
        except BaseException:  # its late answer must not be taken for that of the next job
            self.close()
            raise
        if answer:
            return ProgramVerdict(**json.loads(answer))
        self.close()
        # Tests that never end are the program's fault; a dead tester may have other causes.
        return ProgramVerdict(False, "its tests did not come to an end", lost=not late)

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def _start_tester(self) -> "subprocess.Popen[bytes]":
        """Start in the socket's directory, because socket paths must be short; import nothing from there."""
        argv = [sys.executable, "-P", "-m", tester.__name__, self._socket.name]
        path = os.pathsep.join(filter(None, [str(PACKAGE.parent), os.environ.get("PYTHONPATH")]))
        return subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=self._socket.parent if self._socket.parent.is_dir() else None,
            env={**os.environ, "PYTHONPATH": path},
        )


class ProgramServer:
    """A server of the pool itself, without a sandbox; restarted whenever it ends."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        self.socket = directory / SOCKET
        self._closed = threading.Event()
        self._process = self._start_process()
        self._thread = threading.Thread(target=self._restart_on_exit, daemon=True)
        self._thread.start()

    def _start_process(self) -> "subprocess.Popen[bytes]":
        command = build_server_command(SOCKET, "--with-parent")
        return subprocess.Popen(command, stdin=subprocess.PIPE, cwd=self.socket.parent)

    def _restart_on_exit(self) -> None:
        while True:
            with self._process:  # waits for its end, and closes its input
                self._process.wait()
            if self._closed.wait(PAUSE_SECONDS):
                return
            logger.debug("A program server exited with %s; restarting it", self._process.returncode)
            self._process = self._start_process()

    def close(self) -> None:
        self._closed.set()
        while self._thread.is_alive():  # the thread may be starting the next process
            self._process.kill()
            self._thread.join(PAUSE_SECONDS)
