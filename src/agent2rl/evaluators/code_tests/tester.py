"""The trusted side of one worker: runs a problem's tests against a program that runs elsewhere.

    python -m agent2rl.evaluators.code_tests.tester SOCKET

Reads a `Job` a line and answers each with a `Verdict`. The tests and the reference solution are the task's own
and run here; the program runs behind SOCKET, and here it is a proxy that sends arguments and gets results, as
plain data. Arguments cross as copies, so a program cannot change them.

A process of its own, because a test may compute for ever with what a program returned: then the pool kills it.
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
from typing import Any

from agent2rl.evaluators.code_tests import values

WALL_SECONDS = 6.0
"""For a whole program and its tests. Its processor time is limited more tightly, in `jail`."""
NOTE_CHARACTERS = 200
ENDED = "the program ended"
INSIDE = "tests ran inside: this verdict could be forged"


class ProgramError(Exception):
    """The program raised an error of its own kind."""


class Over(BaseException):
    """No test can pass any more; no test may catch it."""


class Line:
    """A connection to one program, which starts with it and ends with it."""

    def __init__(self, path: str) -> None:
        self.over: Over | None = None
        """Set for good with the first answer that did not come."""
        self.deadline = time.monotonic() + WALL_SECONDS
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(WALL_SECONDS)
        self._socket.connect(path)

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        """The program's answer; Over where there is none."""
        if self.over:
            raise self.over
        try:
            self._send(values.frame(question))
            answer = values.message(self._read)
        except TimeoutError:
            raise self.end("it took too long") from None
        except OSError:
            raise self.end(ENDED) from None
        except ValueError as error:
            raise self.end(f"it answered nonsense: {error}") from None
        if answer is None:
            raise self.end(ENDED)
        return answer

    def end(self, why: str) -> Over:
        """Nothing passes from here on, even if a test catches everything."""
        self.over = Over(why)
        return self.over

    def _send(self, data: bytes) -> None:
        self._socket.settimeout(self._left())
        self._socket.sendall(data)

    def _read(self, size: int) -> bytes:
        self._socket.settimeout(self._left())
        return self._socket.recv(size)

    def _left(self) -> float:
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left

    def close(self) -> None:
        self._socket.close()


class Proxy:
    """The program's function, as the tests see it."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self.unplain = ""
        """What kind of thing could not cross, if anything."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            packed = {name: values.pack(value) for name, value in kwargs.items()}
            answer = self._line.ask({"args": [values.pack(value) for value in args], "kwargs": packed})
        except values.NotPlain as fault:
            self.unplain = f"an argument is {fault}"
            raise self._line.end(self.unplain) from None
        if "raised" in answer:
            raise error_of(answer["raised"])
        if "unplain" in answer:
            self.unplain = f"a result is {str(answer['unplain'])[:NOTE_CHARACTERS]}"
            raise self._line.end(self.unplain)
        try:
            return values.unpack(answer["returned"])
        except (KeyError, ValueError, RecursionError) as error:
            raise self._line.end(f"it answered nonsense: {error}") from None


def error_of(found: Any) -> Exception:
    """The program's error as the tests see it: a builtin one as such, any other as a ProgramError."""
    name, text = (str(part)[:NOTE_CHARACTERS] for part in found) if _is_pair(found) else ("", "nonsense")
    kind = getattr(builtins, name, None)
    if isinstance(kind, type) and issubclass(kind, Exception):
        with contextlib.suppress(TypeError):  # some take more than a text
            return kind(text)
    return ProgramError(f"{name}: {text}")


def _is_pair(found: Any) -> bool:
    return isinstance(found, list) and len(found) == 2


def judge(job: dict[str, Any], path: str) -> dict[str, Any]:
    """The verdict on one program."""
    line = Line(path)
    proxy = Proxy(line)
    try:
        with _alarm(), contextlib.redirect_stdout(io.StringIO()):
            if job["inside"]:
                _inside(job, line)
            else:
                _outside(job, line, proxy)
    except (Exception, Over) as error:
        note = f"{type(error).__name__}: {error}" if isinstance(error, Exception) else str(error)
        ended = isinstance(error, Over) and str(error) == ENDED
        note = f"{INSIDE}. {note}" if job["inside"] else note
        return {
            "passed": False,
            "note": note[:NOTE_CHARACTERS],
            "unplain": proxy.unplain,
            "ended": ended,
            "inside": job["inside"],
        }
    finally:
        line.close()
    return {"passed": True, "note": INSIDE if job["inside"] else "", "inside": job["inside"]}


def _outside(job: dict[str, Any], line: Line, proxy: Proxy) -> None:
    """The tests here. They see what the reference solution defines, and the proxy in the place of its function."""
    namespace: dict[str, Any] = {"__name__": "tests"}
    exec(_compiled(job["reference"]), namespace)
    namespace[job["entry"]] = proxy
    exec(_compiled(job["test"]), namespace)
    answer = line.ask({"program": job["program"], "entry": job["entry"]})
    if "raised" in answer:
        raise error_of(answer["raised"])
    random.seed(0)
    namespace["check"](proxy)
    if line.over:
        raise line.over


@functools.lru_cache(1024)
def _compiled(source: str) -> types.CodeType:
    return compile(source, "<tests>", "exec")


def _inside(job: dict[str, Any], line: Line) -> None:
    """The tests where the program is, because their data cannot leave: it could forge this."""
    answer = line.ask({"program": job["program"], "entry": job["entry"], "inside": job["test"]})
    if "raised" in answer:
        raise error_of(answer["raised"])
    if "returned" not in answer:
        raise Over("it answered nonsense")


@contextlib.contextmanager
def _alarm() -> Any:
    """Ends tests that go on computing by themselves."""

    def ring(*_: object) -> None:
        raise Over("it took too long")

    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, WALL_SECONDS + 1)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def main(path: str) -> None:
    answers, sys.stdout = sys.stdout, io.StringIO()
    for text in sys.stdin:
        try:
            verdict = judge(json.loads(text), path)
        except OSError:  # nobody serves there, at the moment
            verdict = {"passed": False, "absent": True}
        answers.write(json.dumps(verdict) + "\n")
        answers.flush()


if __name__ == "__main__":
    main(sys.argv[1])
