"""The first program inside a sandbox: it sets limits, serves the sockets, starts the command and stops it.

It is started by path as `python -I -S inside.py`, so it imports only the standard library, and as little of
it as possible: the command waits for these imports. It gets its plan as one line of JSON on stdin (not in
the arguments, because everybody on the machine can read those):

    argv          the command
    environment   its full environment, to which the URL of each service socket is added
    files         path -> text: files to write before it starts
    input         text for its stdin
    interrupt     which processes get SIGINT: the `group`, or the `leader` alone
    sockets       variable -> unix socket of the service behind it, and the key that each connection to it
                  begins with
    limits        name of an rlimit -> value
    ready         a descriptor that gets one byte when everything is set up and the command is about to start,
                  or the path of a unix socket that gets a connection
    filter        a system-call filter to install, in hexadecimal; absent where something else installs it

`{{VARIABLE}}` in argv, environment, files and input is replaced with the URL of that socket.

Afterwards a line `stop` on stdin interrupts the command, and EOF means that the harness is gone. The exit
code is the command's own, 128 + n if signal n ended it, 127 if it could not be started.

It runs with the command's own privileges, so the command can kill it; that ends the sandbox and nothing
else. It survives SIGINT, SIGTERM and SIGHUP, so that an agent that runs `pkill python` keeps its services.
"""

import contextlib
import json
import os
import resource
import select
import signal
import socket
import struct
import sys
import threading

TYPE_CHECKING = False
if TYPE_CHECKING:  # at run time these imports would take longer than the rest
    from collections.abc import Callable
    from typing import Any

SET_DUMPABLE, SET_SECCOMP, SET_NO_NEW_PRIVILEGES = 4, 22, 38
SECCOMP_FILTER = 2
HARNESS_GONE = 125
NOT_STARTED = 127


def main(confine: "Callable[[list[int]], None] | None" = None) -> int:
    """Run the command. `confine` is called with the ports of the service sockets before anything starts."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)  # not SIG_IGN, which the command would inherit
    line = sys.stdin.buffer.readline()
    if not line or _harness_is_gone():
        return HARNESS_GONE
    plan = json.loads(line)
    os.dup2(1, 2)  # one stream, so that the log has messages and errors in their order
    mark_process()
    _set_rlimits(plan["limits"])
    # Opened before the process is confined: it may not bind to ports then, and the rules name
    # these.
    sockets = [(variable, _open_listener(), service) for variable, service in plan["sockets"].items()]
    if confine:
        confine([listener.getsockname()[1] for _, listener, _ in sockets])
    urls = {variable: _make_url(listener) for variable, listener, _ in sockets}
    plan |= {part: _fill_urls(plan[part], urls) for part in ("argv", "environment", "files", "input")}
    if "filter" in plan:
        _protect_itself()
        install_filter(bytes.fromhex(plan["filter"]))
    _write_files(plan["files"])
    _report_ready(plan["ready"])
    child = _start_command(plan["argv"], plan["environment"] | urls, plan["input"])
    interrupt = os.killpg if plan["interrupt"] == "group" else os.kill
    threading.Thread(target=_handle_control_lines, args=(child, interrupt), daemon=True).start()
    if sockets:
        routes = [(listener, *service) for _, listener, service in sockets]
        threading.Thread(target=_forward_connections, args=(routes,), daemon=True).start()
    code = _wait_for_command(child)
    return code if code >= 0 else 128 - code


def mark_process() -> None:
    """Name this process, and make its sandbox the kernel's first choice for an out-of-memory kill."""
    _write_kernel_setting("/proc/self/comm", "agent2rl-inside")
    _write_kernel_setting("/proc/self/oom_score_adj", "1000")


def _protect_itself() -> None:
    """Take the command's access to this process away: it would otherwise be that of the same user."""
    call_prctl(SET_DUMPABLE, 0)


def install_filter(code: bytes) -> None:
    """Install a system-call filter for this process and all that it starts."""
    import ctypes

    call_prctl(SET_NO_NEW_PRIVILEGES, 1)
    text = ctypes.create_string_buffer(code)
    program = struct.pack("@HP", len(code) // 8, ctypes.addressof(text))
    call_prctl(SET_SECCOMP, SECCOMP_FILTER, program)


def call_prctl(option: int, *arguments: "int | bytes") -> None:
    """Set an attribute of this process; raise OSError if the kernel refuses."""
    import ctypes  # here, because most sandboxes need it elsewhere or not at all

    libc = ctypes.CDLL(None, use_errno=True)
    # Some options fail unless the unused arguments are 0.
    padded = (*arguments, 0, 0, 0, 0)[:4]
    words = [word if isinstance(word, bytes) else ctypes.c_ulong(word) for word in padded]
    if libc.prctl(option, *words) < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"prctl {option}: {os.strerror(error)}")


def _report_ready(ready: "int | str") -> None:
    if isinstance(ready, int):
        os.write(ready, b"1")
        os.close(ready)
    else:
        with socket.socket(socket.AF_UNIX) as link:
            link.connect(ready)


def _harness_is_gone() -> bool:
    """Check whether stdin is closed: if the harness died during set-up, nothing must start."""
    control = select.poll()
    control.register(0, 0)
    # No events are asked for, so it reports a hang-up and nothing else.
    return bool(control.poll(0))


def _write_kernel_setting(path: str, text: str) -> None:
    """Write a kernel setting if the kernel allows it: these are best effort, not promises."""
    with contextlib.suppress(OSError), open(path, "w", encoding="ascii") as file:
        file.write(text)


def _set_rlimits(limits: dict[str, int]) -> None:
    for name, value in limits.items():
        kind = getattr(resource, name)
        hard = resource.getrlimit(kind)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (value, value))


def _open_listener() -> socket.socket:
    """Listen on a free loopback port. Connections queue from now on until forwarding runs."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.bind(("127.0.0.1", 0))
    listener.listen(1024)
    return listener


def _make_url(listener: socket.socket) -> str:
    return f"http://127.0.0.1:{listener.getsockname()[1]}"


def _fill_urls(part: "Any", urls: dict[str, str]) -> "Any":
    """Replace the placeholder of every service socket with its URL."""
    if isinstance(part, dict):
        return {name: _fill_urls(value, urls) for name, value in part.items()}
    if isinstance(part, list):
        return [_fill_urls(value, urls) for value in part]
    for variable, url in urls.items():
        part = part.replace(f"{{{{{variable}}}}}", url)
    return part


def _write_files(files: dict[str, str]) -> None:
    """Write files; replace what an agent that is restarted left there."""
    for path, text in files.items():
        os.makedirs(os.path.dirname(path), exist_ok=True)  # noqa: PTH103, PTH120 (pathlib is slow to import)
        # Removed first, because it may be a link by now. `x` follows none.
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)  # noqa: PTH108
        with open(path, "x", encoding="utf-8") as file:
            file.write(text)


def _open_stdin(text: str) -> int:
    if not text:
        return os.open(os.devnull, os.O_RDONLY)
    # Not a pipe, which would have to be filled while the command reads.
    file = os.memfd_create("stdin")
    with open(file, "wb", closefd=False) as stdin:
        stdin.write(text.encode())
    os.lseek(file, 0, os.SEEK_SET)
    return file


def _start_command(argv: list[str], environment: dict[str, str], text: str) -> int:
    """Start the command in its own process group.

    It uses fork and exec, because importing subprocess would double the start-up time.
    """
    child = os.fork()
    if child:
        with contextlib.suppress(OSError):  # both sides do it; the child may be faster, or gone
            os.setpgid(child, child)
        return child
    try:
        os.setpgid(0, 0)
        os.umask(0o022)
        # A mask of blocked signals would be inherited.
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores these; commands expect the default
            signal.signal(number, signal.SIG_DFL)
        os.dup2(_open_stdin(text), 0)
        # The command must get no open file of the sandbox's own.
        os.closerange(3, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        os.execvpe(argv[0], argv, environment)
    except OSError as error:
        os.write(2, f"{argv[0]}: cannot start: {error.strerror}\n".encode())
    finally:
        os._exit(NOT_STARTED)


def _wait_for_command(child: int) -> int:
    """Wait for the command, and for every orphan that a first process of a pid namespace adopts."""
    while True:
        ended, status = os.waitpid(-1, 0)
        if ended == child:
            return os.waitstatus_to_exitcode(status)


def _handle_control_lines(child: int, interrupt: "Callable[[int, int], None]") -> None:
    for line in sys.stdin.buffer:
        if line == b"stop\n":
            _send_signal(interrupt, child, signal.SIGINT)
    _send_signal(os.killpg, child, signal.SIGKILL)
    os._exit(HARNESS_GONE)


def _send_signal(send: "Callable[[int, int], None]", target: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        send(target, number)


def _forward_connections(routes: list[tuple[socket.socket, str, str]]) -> None:
    """Copy bytes between the loopback ports and the unix sockets, forever."""
    import asyncio  # here, because it is slow to import and the command need not wait for it
    import functools

    links: set[object] = set()  # asyncio itself keeps only weak references to running connections

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 18):
            writer.write(data)
            await writer.drain()
        # Only this direction ends: the other side may still answer.
        writer.write_eof()

    async def carry(
        path: str, key: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        writers = [writer]
        links.add(asyncio.current_task())
        try:
            far_reader, far_writer = await asyncio.open_unix_connection(path)
            writers.append(far_writer)
            far_writer.write(key)
            await asyncio.gather(pump(reader, far_writer), pump(far_reader, writer))
        except OSError:
            pass  # one side hung up: close the other too
        finally:
            links.discard(asyncio.current_task())
            for open_writer in writers:
                open_writer.close()

    async def serve() -> None:
        for listener, path, key in routes:
            start = functools.partial(carry, path, key.encode())
            await asyncio.start_server(start, sock=listener, backlog=1024)
        await asyncio.Event().wait()

    asyncio.run(serve())


if __name__ == "__main__":
    os._exit(main())
