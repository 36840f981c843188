"""The server in the sandbox, which runs programs one at a time, each in its own fork.

    python -I -S -c "..." SOCKET [--with-parent]

Each connection to SOCKET gets its own child: the client sends a program and the name of a function, then
calls. A connection must begin with the key that the server writes beside its socket, as the harness's own
sockets want it (`net.socket_keys`). Closing the connection ends the child. The child has only the connection.
So whatever a program does in it, it can only affect what its function returns. With --with-parent, the server
ends when its standard input does.

    P (program, fallback, name, None)  -> Y              it is ready to be called
    C (args, kwargs)                   -> R value        what it returned
    P (program, fallback, name, tests) -> R None         `check(name)` of these tests did not raise
    any of them                        -> E (type, text) it raised, or U type: what it returned cannot cross
                                       -> O code         the child has ended: its exit code, or minus a signal

If the program does not compile, the fallback runs, up to the first line that is no code. An error outside of
the function matters only if the function is then missing: the tests decide.
"""

import contextlib
import functools
import gc
import hmac
import marshal
import os
import select
import signal
import socket
import sys
import sysconfig
import tempfile
import types
import warnings
from collections.abc import Callable
from typing import Any, NoReturn

from agent2rl.evaluators.code_tests import jail, plain_data

MOST_SECONDS = 60
"""A backstop: normally the client decides when to end a program."""
KEY_SECONDS = 1.0
"""Within which the key of a connection must arrive. Testers send it at once."""
COMPILE_SECONDS = 2
MOST_CUTS = 20
"""Usually one is enough, or two where it leaves a statement unfinished."""
MESSAGE_CHARACTERS = 1000
PRELOADED = (
    *(
        "bisect",
        "collections",
        "copy",
        "functools",
        "hashlib",
        "heapq",
        "itertools",
        "math",
        "operator",
        "re",
    ),
    *("string", "time", "typing"),
)
"""Modules that programs often import: loaded once here instead of in each child."""
Compiled = types.CodeType | Exception
LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/etc/ld.so.cache", "/dev/null", "/dev/urandom")


def main(path: str, *options: str) -> None:
    for name in PRELOADED:
        __import__(name)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with contextlib.suppress(FileNotFoundError):  # of a server before this one
        os.unlink(path)  # noqa: PTH108 (pathlib takes time to load)
    key = write_key(path)
    listener.bind(path)
    os.chmod(path, 0o777)  # noqa: PTH101 (the directory decides who comes here)
    # Programs cannot write files, so their temporary ones are in memory.
    memory_file: Any = functools.partial(tempfile.SpooledTemporaryFile, 0)
    tempfile.TemporaryFile = tempfile.NamedTemporaryFile = memory_file
    # Otherwise tempfile looks for a directory by writing files.
    tempfile.tempdir = "/tmp"
    null = os.open(os.devnull, os.O_RDWR)
    standard = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), f"{sys.base_prefix}/lib"}
    places = [place for place in (*standard, *LIBRARIES) if os.path.exists(place)]  # noqa: PTH110
    jail.restrict_process(places)
    warnings.simplefilter("ignore")
    # A child's collector would otherwise touch, and so copy, all pages that it shares with this
    # one.
    gc.collect()
    gc.freeze()
    listener.listen(8)
    waiting = select.poll()
    waiting.register(listener, select.POLLIN)
    if "--with-parent" in options:
        waiting.register(0, select.POLLIN)
    while all(ready != 0 for ready, _ in waiting.poll()):
        serve_program(listener, key, null)


def write_key(path: str) -> bytes:
    """Write a key for the socket at this path. It must be there before anybody can connect."""
    key = os.urandom(16).hex().encode()
    with open(f"{path}.new", "wb") as file:
        file.write(key)
    os.replace(f"{path}.new", f"{path}.key")  # noqa: PTH105
    return key


def serve_program(listener: socket.socket, key: bytes, null: int) -> None:
    """Run one program from start to end. It is compiled here, which takes a third of the time in a child."""
    connection, _ = listener.accept()
    with connection:
        if not receives_key(connection, key):
            return
        job = plain_data.read_frame(connection.recv)
        if job is None:
            return
        program, fallback, entry, tests = marshal.loads(job[1])  # from the trusted side
        codes = [compile_in_time(compile_program, program, fallback, entry)]
        if tests is not None:
            codes.append(compile_in_time(compile_source, f"{tests}\ncheck({entry})"))
        child = os.fork()
        if child == 0:
            run_child(connection.fileno(), null, entry, codes)
        wait_for_child(child, connection)


def receives_key(connection: socket.socket, key: bytes) -> bool:
    """Check whether a connection begins with the key. So few bytes arrive at once."""
    connection.settimeout(KEY_SECONDS)
    try:
        return hmac.compare_digest(connection.recv(len(key)), key)
    except OSError:
        return False
    finally:
        connection.settimeout(None)


def compile_in_time(action: Callable[..., Compiled], *sources: str) -> Compiled:
    """Return the code or the error. Compiling for too long ends the server, which is then restarted."""
    signal.setitimer(signal.ITIMER_REAL, COMPILE_SECONDS)
    try:
        return action(*sources)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def compile_source(source: str) -> Compiled:
    try:
        return compile(source, "<program>", "exec")
    except Exception as error:
        return error


def compile_program(program: str, fallback: str, entry: str) -> Compiled:
    """Compile the program, or else as much of the fallback as is code."""
    code = compile_source(program)
    return compile_code_lines(fallback, entry) if fallback and isinstance(code, Exception) else code


def compile_code_lines(source: str, entry: str) -> Compiled:
    """Compile a text up to the first line at the margin that is no code. The function must be before it."""
    lines = source.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    first_error = code = compile_source(source)
    for _ in range(MOST_CUTS):
        if not isinstance(code, SyntaxError):
            break
        end = min(code.lineno or 1, len(lines)) - 1
        while end > 0 and not lines[end][:1].strip():
            end -= 1
        lines = lines[:end]
        code = compile_source("\n".join([*lines, ""]))
    return code if isinstance(code, types.CodeType) and entry in code.co_names else first_error


def wait_for_child(child: int, connection: socket.socket) -> None:
    """Wait until the child ends (and report it) or the client disconnects; then kill the child."""
    ended = os.pidfd_open(child)
    waiting = select.poll()
    waiting.register(ended, select.POLLIN)
    waiting.register(connection, select.POLLRDHUP)
    over = any(ready == ended for ready, _ in waiting.poll(1000 * MOST_SECONDS))
    os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    os.close(ended)
    if over:
        with contextlib.suppress(OSError):  # the client is gone or does not read
            connection.send(
                plain_data.build_frame(b"O", os.waitstatus_to_exitcode(status)), socket.MSG_DONTWAIT
            )


def run_child(connection: int, null: int, entry: str, codes: list[Compiled]) -> NoReturn:
    """Run the child. Never returns, whatever happens in it."""
    try:
        for standard in (0, 1, 2):
            os.dup2(null, standard)
        line = os.dup2(connection, 3)
        os.closerange(4, 256)
        jail.enter_jail()
        answer_calls(line, entry, codes)
    finally:
        os._exit(0)


def answer_calls(line: int, entry: str, codes: list[Compiled]) -> None:
    """Run the program, then answer calls to its function until the connection ends."""
    module = types.ModuleType("program")
    sys.modules["program"] = module
    program, *tests = codes
    error = attempt_call(execute_code, program, module)
    if entry not in module.__dict__:
        missing = plain_data.build_frame(b"E", ("NameError", f"the program defines no {entry}"))
        return write_all(line, missing if error == NOTHING else error)
    if tests:
        return write_all(line, attempt_call(execute_code, tests[0], module))
    write_all(line, plain_data.build_frame(b"Y"))
    function = module.__dict__[entry]
    while (call := plain_data.read_frame(lambda size: os.read(line, size))) is not None:
        args, kwargs = plain_data.loads_trusted(call[1])  # from the trusted side
        write_all(line, attempt_call(function, *args, **kwargs))
    return None


def execute_code(code: Compiled, module: types.ModuleType) -> None:
    if isinstance(code, Exception):
        raise code
    exec(code, module.__dict__)


def attempt_call(action: Callable[..., Any], /, *args: Any, **kwargs: Any) -> bytes:
    """Call a function and return the message with its result or error."""
    try:
        return plain_data.build_frame(b"R", action(*args, **kwargs))
    except plain_data.NotPlain as fault:
        return plain_data.build_frame(b"U", str(fault))
    except BaseException as error:
        return plain_data.build_frame(b"E", (type(error).__name__, _format_error(error)))


NOTHING = plain_data.build_frame(b"R")


def write_all(line: int, data: bytes) -> None:
    while data:
        data = data[os.write(line, data) :]


def _format_error(error: BaseException) -> str:
    try:
        return str(error)[:MESSAGE_CHARACTERS]
    except BaseException:  # __str__ is code of the program
        return ""
