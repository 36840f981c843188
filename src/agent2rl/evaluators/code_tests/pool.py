"""Hands programs out to workers and collects verdicts, in the order they were asked for.

A worker is a server that runs programs (in its sandbox) and a tester that judges them (here). The servers are
the harness's where it has made them: AGENT2RL_PROGRAMS names a directory with a socket for each. Elsewhere,
inside an agent's sandbox say, the pool starts its own: then the jail alone keeps programs in.

Before it judges anything else, a worker has to pass a program that is right: a machine on which nothing works
must not look like a model that fails. A server that has died is started again by whoever made it, and
meanwhile its turn goes to the others. The program that it ran is judged once more, so that a dying machine is
no verdict. Where no server answers at all for a while, there is no verdict, and a GradingError says so.
"""

import json
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
from agent2rl.evaluators.code_tests.tester import WALL_SECONDS

SOCKETS_VARIABLE = "AGENT2RL_PROGRAMS"
SOCKET = "sock"
PACKAGE = Path(agent2rl.__file__).parent
KILL_SECONDS = WALL_SECONDS + 4
"""When a tester that does not answer is ended."""
PATIENCE_SECONDS = 60.0
"""How long no server may answer."""
PAUSE_SECONDS = 0.02
MOST_LOSSES = 2

Tell = Callable[[int], None]
TRIAL_PROGRAM = "def trial(x):\n    return [x, 1.5]\n"


@dataclass(frozen=True)
class ProgramJob:
    """A program and what it must do."""

    program: str
    entry: str
    """The function that is tested."""
    reference: str
    """A right program; the tests may use what it defines."""
    test: str
    """Defines `check(candidate)`, which raises where the candidate is wrong."""
    inside: bool = False
    """Run the tests where the program runs, because their data is not plain. The verdict can be forged."""


@dataclass(frozen=True)
class ProgramVerdict:
    passed: bool
    note: str = ""
    unplain: str = ""
    """What could not cross the line, where that is why it failed."""
    lost: bool = False
    """Whether the sandbox ended with the program in it."""
    absent: bool = False
    """There was no server, and so this is none."""
    inside: bool = False
    """Whether the tests ran where the program ran."""


TRIAL = ProgramJob(
    TRIAL_PROGRAM, "trial", TRIAL_PROGRAM, "def check(candidate):\n    assert candidate(1) == [1, 1.5]\n"
)
"""What every worker must pass first."""


def build_server_command(socket: str, *options: str) -> tuple[str, ...]:
    """Starts `server` with the standard library and this package's few modules, and no other path."""
    code = (
        f"import sys; sys.path.append({str(PACKAGE.parent)!r}); "
        "from agent2rl.evaluators.code_tests.server import main; sys.path.pop(); main(*sys.argv[1:])"
    )
    return (BARE_PYTHON, "-I", "-S", "-c", code, socket, *options)


def list_server_files() -> tuple[Path, ...]:
    """The files of this package that the server needs to see."""
    return (PACKAGE / "__init__.py", PACKAGE / "evaluators" / "__init__.py", Path(__file__).parent)


class ProgramPool:
    """Use as a context manager: it owns processes, which are those of the process that made it alone."""

    def __init__(self, sockets: Sequence[Path] | None = None, own: int = 0) -> None:
        """Over servers that somebody keeps alive at these sockets, or over so many of its own."""
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
        """Over the harness's servers where there is a harness, which may have made none."""
        given = os.environ.get(SOCKETS_VARIABLE)
        if given is None:
            return cls(own=min(8, len(os.sched_getaffinity(0))))
        if not given:
            raise GradingError(
                "This grading has no sandboxes for programs.",
                "The task's evaluator must say `program_workers`.",
            )
        places = sorted(Path(given).iterdir(), key=lambda place: int(place.name))
        return cls([place / SOCKET for place in places])

    def judge_jobs(self, jobs: Sequence[ProgramJob], tell: Tell = lambda _: None) -> list[ProgramVerdict]:
        """A verdict for each job; `tell` hears how many are done."""
        if not self._workers:
            raise GradingError("There is no worker that could run programs.")
        found = _JudgingRound(jobs, tell)
        if len(jobs) == 1:  # a reward, perhaps one of thousands
            found.run_workers(self._workers)
            return found.collect_verdicts()
        threads = [
            threading.Thread(target=found.run_workers, args=([worker],), daemon=True)
            for worker in self._workers
        ]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                thread.join()
        except BaseException as error:  # an interrupt: the threads end with the job they have
            found.stop(error)
            raise
        return found.collect_verdicts()

    def close(self) -> None:
        if os.getpid() != self._owner:  # a fork: the processes are its parent's
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
        """Take one job after another until all have a verdict; a worker without a server gives way."""
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
        """The next job. While others have the last ones it waits, since they may have to give one back."""
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
                "This is no fault of the model; grade it again.",
            )
        return [self._found[number] for number in range(len(self._jobs))]


class ProgramWorker:
    """A tester process for one server; started when first needed, and again when it had to be killed."""

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
                        f"A program that is right does not pass on this machine: {trial.note}.",
                        "This is no fault of the model; the grading log says more.",
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
        except BaseException:  # its answer must not be taken for the next one's
            self.close()
            raise
        if answer:
            return ProgramVerdict(**json.loads(answer))
        self.close()
        # Tests that never end are the program's doing; a tester that died may be anybody's.
        return ProgramVerdict(False, "its tests did not come to an end", lost=not late)

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def _start_tester(self) -> "subprocess.Popen[bytes]":
        """In the socket's directory, since a socket's name may not be long; without modules from there."""
        argv = [sys.executable, "-P", "-m", "agent2rl.evaluators.code_tests.tester", self._socket.name]
        path = os.pathsep.join(filter(None, [str(PACKAGE.parent), os.environ.get("PYTHONPATH")]))
        return subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=self._socket.parent if self._socket.parent.is_dir() else None,
            env={**os.environ, "PYTHONPATH": path},
        )


class ProgramServer:
    """A server of the pool's own, without a sandbox around it; started again whenever it ends."""

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
            self._process = self._start_process()

    def close(self) -> None:
        self._closed.set()
        while self._thread.is_alive():  # it may be starting the next one just now
            self._process.kill()
            self._thread.join(PAUSE_SECONDS)
