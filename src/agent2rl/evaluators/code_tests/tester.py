"""The trusted side of one worker: run a problem's tests against a program that runs elsewhere.

    python -m agent2rl.evaluators.code_tests.tester SOCKET

Reads a `ProgramJob` per line and answers each with a `ProgramVerdict`. The tests and the reference solution
belong to the task and run here. The program runs behind SOCKET; here it is a proxy that sends arguments and
receives results as plain data. Arguments are copied, so a program cannot change them.

This is a separate process because a test may compute forever with a returned value: then the pool kills it.
"""

import builtins
import contextlib
import functools
import io
import json
import random
import signal
import socket
import sys
import time
import types
from pathlib import Path
from typing import Any

from agent2rl.evaluators.code_tests import plain_data
from agent2rl.net.socket_keys import read_key
from agent2rl.system.unix import resource

WALL_SECONDS = 6.0
"""Time limit for a program and its tests. `jail` has a tighter limit for CPU time."""
MEMORY_BYTES = 2 << 30
"""Memory limit for tests and the values they build."""
NOTE_CHARACTERS = 200
LOST = "the sandbox was lost with the program"
ENDINGS = {-24: "processor time", -9: "killed: processor time or memory", -11: "crashed"}
INSIDE = "tests ran inside: this verdict could be forged"


ENDS_LOOPS = (StopIteration, StopAsyncIteration)
"""Exceptions that would silently end a loop of a test, and so the test."""


class ProgramError(Exception):
    """The program raised an error that is not a builtin one."""


class ProgramOver(BaseException):
    """The program has ended, so no test can pass any more. A BaseException, so that tests do not catch it."""


class ProgramConnection:
    """A connection to one program, which starts and ends with it."""

    def __init__(self, path: str) -> None:
        self.over: ProgramOver | None = None
        """Set permanently when an answer fails."""
        self.deadline = time.monotonic() + WALL_SECONDS
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(WALL_SECONDS)
        self._socket.connect(path)
        # After it is connected, because a server that is started again has another key.
        self._socket.sendall(read_key(Path(path)))

    def send_request(self, kind: bytes, question: Any) -> tuple[bytes, bytes]:
        """Return the kind of the program's answer and its undecoded value, or raise ProgramOver."""
        if self.over:
            raise self.over
        try:
            self._send_bytes(plain_data.build_frame(kind, question))
            answer = plain_data.read_frame(self._receive_bytes)
        except TimeoutError:
            raise self.end("it took too long") from None
        except OSError:
            raise self.end(LOST) from None
        except ValueError as error:
            raise self.end(f"it answered nonsense: {error}") from None
        if answer is None:
            raise self.end(LOST)
        if answer[0] == b"O":
            raise self.end(f"the program ended ({_describe_exit(self.read(answer[1]))})")
        if answer[0] == b"E":
            raise rebuild_error(self.read(answer[1]))
        return answer

    def read(self, data: bytes) -> Any:
        """Decode a value of the program; raise ProgramOver if it is not plain data."""
        try:
            return plain_data.loads(data)
        except (ValueError, plain_data.NotPlain) as error:
            raise self.end(f"it answered nonsense: {error}") from None

    def end(self, why: str) -> ProgramOver:
        """Mark the program as over: nothing passes from here on, even if a test catches everything."""
        self.over = ProgramOver(why)
        return self.over

    def _send_bytes(self, data: bytes) -> None:
        self._socket.settimeout(self._compute_time_left())
        self._socket.sendall(data)

    def _receive_bytes(self, size: int) -> bytes:
        self._socket.settimeout(self._compute_time_left())
        return self._socket.recv(size)

    def _compute_time_left(self) -> float:
        remaining = self.deadline - time.monotonic()
        if remaining <= 0:
            raise TimeoutError
        return remaining

    def close(self) -> None:
        self._socket.close()


def _describe_exit(code: Any) -> str:
    return ENDINGS.get(code, "by itself") if isinstance(code, int) else "by itself"


class FunctionProxy:
    """The program's function as the tests see it."""

    def __init__(self, line: ProgramConnection) -> None:
        self._line = line
        self.unplain = ""
        """The kind of value that could not cross the socket, if any."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            kind, value = self._line.send_request(b"C", (args, kwargs))
        except plain_data.NotPlain as fault:
            self.unplain = f"an argument is {fault}"
            raise self._line.end(self.unplain) from None
        found = self._line.read(value)
        if kind == b"R":
            return found
        has_note = kind == b"U" and isinstance(found, str)
        self.unplain = f"a result is {found[:NOTE_CHARACTERS]}" if has_note else ""
        raise self._line.end(self.unplain or "it answered nonsense")


def rebuild_error(found: Any) -> Exception:
    """Rebuild the program's error for the tests: a builtin one as it is, any other as a ProgramError."""
    name_and_text = found if isinstance(found, tuple) and len(found) == 2 else ("", "")
    name, text = (part[:NOTE_CHARACTERS] if isinstance(part, str) else "" for part in name_and_text)
    kind = getattr(builtins, name, None)
    if isinstance(kind, type) and issubclass(kind, Exception) and not issubclass(kind, ENDS_LOOPS):
        with contextlib.suppress(TypeError):  # some take other arguments than a text
            return kind(text)
    return ProgramError(f"{name}: {text}")


def judge_program(job: dict[str, Any], path: str) -> dict[str, Any]:
    """Test one program and return the fields of its verdict."""
    line = ProgramConnection(path)
    proxy = FunctionProxy(line)
    try:
        with _limit_time(line), contextlib.redirect_stdout(io.StringIO()):
            if job["inside"]:
                _test_inside(job, line)
            else:
                _test_outside(job, line, proxy)
    except (Exception, ProgramOver) as error:
        note = _format_note(error)
        lost = isinstance(error, ProgramOver) and str(error) == LOST
        note = f"{INSIDE}. {note}" if job["inside"] else note
        return {
            "passed": False,
            "note": note[:NOTE_CHARACTERS],
            "unplain": proxy.unplain,
            "lost": lost,
            "inside": job["inside"],
        }
    finally:
        line.close()
    return {"passed": True, "note": INSIDE if job["inside"] else "", "inside": job["inside"]}


def _format_note(error: BaseException) -> str:
    """Return the reason of a failure as valid Unicode: the messages of a program may be any text."""
    try:
        said = str(error) if isinstance(error, ProgramOver) else f"{type(error).__name__}: {error}"
    except ValueError:  # an int with too many digits
        said = type(error).__name__
    return said.encode("utf-8", errors="replace").decode()


def _test_outside(job: dict[str, Any], line: ProgramConnection, proxy: FunctionProxy) -> None:
    """Run the tests here. They see the definitions of the reference, with the proxy as its function."""
    namespace: dict[str, Any] = {"__name__": "tests"}
    exec(_compile_tests(job["reference"]), namespace)
    namespace[job["entry"]] = proxy
    exec(_compile_tests(job["test"]), namespace)
    line.send_request(b"P", (job["program"], job["fallback"], job["entry"], None))
    # Tests may draw random arguments, and the same program must get the same verdict again.
    random.seed(0)
    namespace["check"](proxy)
    if line.over:
        raise line.over


@functools.lru_cache(1024)
def _compile_tests(source: str) -> types.CodeType:
    return compile(source, "<tests>", "exec")


def _test_inside(job: dict[str, Any], line: ProgramConnection) -> None:
    """Run the tests inside the sandbox, because their data cannot leave it. The program could forge this."""
    question = (job["program"], job["fallback"], job["entry"], job["test"])
    kind, _ = line.send_request(b"P", question)
    if kind != b"R":
        raise ProgramOver("it answered nonsense")


@contextlib.contextmanager
def _limit_time(line: ProgramConnection) -> Any:
    """Stop tests that compute for too long."""

    def raise_timeout(*_: object) -> None:
        raise line.end("it took too long")

    signal.signal(signal.SIGALRM, raise_timeout)
    signal.setitimer(signal.ITIMER_REAL, WALL_SECONDS + 1)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def main(path: str) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, resource.getrlimit(resource.RLIMIT_AS)[1]))
    # What a test prints must not pass for an answer.
    answers, sys.stdout = sys.stdout, io.StringIO()
    for text in sys.stdin:
        try:
            verdict = judge_program(json.loads(text), path)
        except OSError:  # no server at the moment
            verdict = {"passed": False, "absent": True}
        answers.write(json.dumps(verdict) + "\n")
        answers.flush()


if __name__ == "__main__":
    main(sys.argv[1])
