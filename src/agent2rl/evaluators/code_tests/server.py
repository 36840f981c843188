"""The program in a sandbox of its own that runs other programs: one fork for each, one at a time.

    python -I -S -c "..." SOCKET [--with-parent]

Whoever connects to SOCKET has a child to itself: it sends a program and the name of a function, then calls.
Hanging up ends the child. The child has the connection and nothing else, so that whatever a program does to it,
it can only say what its function returns. With --with-parent the server ends when its standard input does.

    {"program": text, "entry": name}                 -> {"ready": true}
    {"args": [..], "kwargs": {..}}                   -> {"returned": value}
    either may be answered by                           {"raised": [type, message]} or {"unplain": type}
    {"program": .., "entry": .., "inside": tests}    -> {"returned": null} where `check(entry)` does not raise
"""

import contextlib
import gc
import os
import select
import signal
import socket
import sys
import sysconfig
import types
import warnings
from typing import Any, NoReturn

from agent2rl.evaluators.code_tests import jail, values

MOST_SECONDS = 60
"""A backstop: whoever connected decides when a program has had enough."""
COMPILE_SECONDS = 5
MESSAGE_CHARACTERS = 1000
PRELOADED = (
    *("bisect", "collections", "copy", "datetime", "decimal", "fractions", "functools", "hashlib", "heapq"),
    *("itertools", "json", "math", "operator", "random", "re", "statistics", "string", "time", "typing"),
)
"""What programs like to import: read once here, and not in each child."""
LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/etc/ld.so.cache", "/dev/null", "/dev/urandom")


def main(path: str, *options: str) -> None:
    for name in PRELOADED:
        __import__(name)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with contextlib.suppress(FileNotFoundError):  # of a server before this one
        os.unlink(path)
    listener.bind(path)
    os.chmod(path, 0o777)  # the directory decides who comes here
    null = os.open(os.devnull, os.O_RDWR)
    standard = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
    jail.close_the_house([place for place in (*standard, *LIBRARIES) if os.path.exists(place)])
    warnings.simplefilter("ignore")
    gc.collect()
    gc.freeze()
    listener.listen(8)
    waiting = select.poll()
    waiting.register(listener, select.POLLIN)
    if "--with-parent" in options:
        waiting.register(0, select.POLLIN)
    while all(ready != 0 for ready, _ in waiting.poll()):
        serve(listener, null)


def serve(listener: socket.socket, null: int) -> None:
    """One program from start to end. It is compiled here, where that costs a third of what it does in a child."""
    connection, _ = listener.accept()
    with connection:
        job = values.message(connection.recv)
        if job is None:
            return
        codes = [compiled(job["program"]), *([compiled(f"{job['inside']}\ncheck({job['entry']})")] if "inside" in job else [])]
        child = os.fork()
        if child == 0:
            be_the_program(connection.fileno(), null, job["entry"], codes)
        wait(child, connection)


def compiled(source: str) -> types.CodeType | Exception:
    """Its code, or why there is none. What cannot be compiled in time ends the server, which is started again."""
    signal.setitimer(signal.ITIMER_REAL, COMPILE_SECONDS)
    try:
        return compile(source, "<program>", "exec")
    except Exception as error:
        return error
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def wait(child: int, connection: socket.socket) -> None:
    """Until the child is over, or whoever is connected hangs up; afterwards it is gone."""
    ended = os.pidfd_open(child)
    waiting = select.poll()
    waiting.register(ended, select.POLLIN)
    waiting.register(connection, select.POLLRDHUP)
    waiting.poll(1000 * MOST_SECONDS)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(ended)


def be_the_program(connection: int, null: int, entry: str, codes: list[types.CodeType | Exception]) -> NoReturn:
    """The child's life. Whatever happens in it, it does not come back."""
    try:
        for standard in (0, 1, 2):
            os.dup2(null, standard)
        line = os.dup2(connection, 3)
        os.closerange(4, 256)
        jail.enter()
        live(line, entry, codes)
    finally:
        os._exit(0)


def live(line: int, entry: str, codes: list[types.CodeType | Exception]) -> None:
    """Run the program, then answer calls to its function until nobody asks any more."""
    module = types.ModuleType("program")
    sys.modules["program"] = module
    for code in codes:
        answer = attempt(lambda: execute(code, module))  # noqa: B023 (called at once)
        if "raised" in answer:
            return say(line, answer)
    if len(codes) > 1:  # its tests are over as well
        return say(line, answer)
    if entry not in module.__dict__:
        return say(line, {"raised": ["NameError", f"the program defines no {entry}"]})
    say(line, {"ready": True})
    function = module.__dict__[entry]
    while (call := values.message(lambda size: os.read(line, size))) is not None:
        args = [values.unpack(value) for value in call["args"]]
        kwargs = {name: values.unpack(value) for name, value in call["kwargs"].items()}
        say(line, attempt(lambda: function(*args, **kwargs)))  # noqa: B023 (called at once)
    return None


def execute(code: types.CodeType | Exception, module: types.ModuleType) -> None:
    if isinstance(code, Exception):
        raise code
    exec(code, module.__dict__)


def say(line: int, answer: dict[str, Any]) -> None:
    try:
        data = values.frame(answer)
    except values.NotPlain as fault:  # too long
        data = values.frame({"unplain": str(fault)})
    while data:
        data = data[os.write(line, data) :]


def attempt(action: Any) -> dict[str, Any]:
    """What came of it, whatever it was."""
    try:
        return {"returned": values.pack(action())}
    except values.NotPlain as fault:
        return {"unplain": str(fault)}
    except BaseException as error:
        return {"raised": [type(error).__name__, _text(error)]}


def _text(error: BaseException) -> str:
    try:
        return str(error)[:MESSAGE_CHARACTERS]
    except BaseException:  # its __str__ is the program's
        return ""
