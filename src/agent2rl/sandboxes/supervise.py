"""Runs a sandbox from start to end: mount points, output, limits, deadline, stop. Shared by all sandboxes.

One thread does it all, because the kernel ties a sandbox to the *thread* that started it, which must
outlive it. `SandboxStart` defines how a sandbox is started and ended, and which processes are its own.

    harness                pipes                    sandbox
    supervise   --  plan, then "stop"   -->  stdin  inside.py, which starts the command
                <--  one byte           --   ready
    log         <--  capped             --   stdout and stderr of all

Mount points are created in the workspace without following links: it may hold files of an earlier run of an
agent, and a link such as `models -> /etc` must not lead the harness out of it.
"""

import json
import logging
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import IO, Literal

from agent2rl.core.errors import MachineError, UserError
from agent2rl.core.sandbox import (
    BARE_PYTHON,
    Command,
    Enclosure,
    Exit,
    Mount,
    Process,
    Role,
    SandboxPython,
    ServiceSocket,
)
from agent2rl.net.socket_keys import read_key
from agent2rl.sandboxes import start_failures
from agent2rl.sandboxes.resource_limits import LimitGuard
from agent2rl.system.unix import O_CLOEXEC, O_DIRECTORY, O_NOFOLLOW

logger = logging.getLogger(__name__)

# Mount points in the workspace

DIRECTORY = os.O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC


def resolve_enclosure(enclosure: Enclosure) -> Enclosure:
    """Return the enclosure with real paths of its directories, so that later steps follow no links."""
    workspace, scratch = enclosure.workspace.resolve(strict=True), enclosure.scratch.resolve()
    return replace(enclosure, workspace=workspace, scratch=scratch)


def collect_mounts(command: Command, enclosure: Enclosure) -> tuple[Mount, ...]:
    """Return the enclosure's and the command's mounts; raise UserError if one is invalid."""
    mounts = (*enclosure.mounts, *command.mounts)
    for mount in mounts:
        if not mount.source.exists():
            raise UserError(f"Cannot mount {mount.source} at {mount.target}: it does not exist.")
        if ".." in PurePosixPath(mount.target).parts:
            raise UserError(f"The mount target {mount.target!r} contains '..'.", "Write the path without it.")
    return mounts


def make_mountpoint(workspace: Path, target: PurePosixPath, source: Path) -> None:
    """Create an empty directory or file below the workspace, like `source`, unless it exists."""
    with open_parent(workspace, target) as directory, _refuse_links(target):
        if source.is_dir():
            os.close(_open_directory(target.name, directory))
        else:
            # Without O_NONBLOCK, opening a pipe that an agent left there would wait for a reader.
            flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            os.close(os.open(target.name, flags, 0o644, dir_fd=directory))


def link_mount(mount: Mount, workspace: Path, sandbox: str) -> None:
    """Link a mount in the workspace to its source, where nothing can be mounted; a target elsewhere must
    exist already."""
    target, source = PurePosixPath(mount.target), mount.source.resolve()
    link = workspace / target
    if link.resolve() == source or (target.is_absolute() and link.exists()):
        return
    if target.is_absolute():
        raise UserError(
            f"The {sandbox} sandbox cannot show {source} at {target}.",
            "Use --sandbox bubblewrap, or create that path yourself.",
        )
    with open_parent(workspace, target) as directory:
        try:
            os.symlink(source, target.name, dir_fd=directory)
        except FileExistsError:
            raise UserError(f"{link} exists, but must be a link to {source}.", "Move it away.") from None


@contextmanager
def open_parent(workspace: Path, target: PurePosixPath) -> Iterator[int]:
    """Open the directory below the workspace that holds `target`; create it if it is missing."""
    directory = os.open(workspace, DIRECTORY)
    try:
        with _refuse_links(target):
            for part in target.parent.parts:
                below = _open_directory(part, directory)
                os.close(directory)
                directory = below
        yield directory
    finally:
        os.close(directory)


def _open_directory(name: str, parent: int) -> int:
    """Open a directory without following links. Create it if it is missing, with mode 0755."""
    try:
        os.mkdir(name, 0o755, dir_fd=parent)
    except FileExistsError:
        return os.open(name, DIRECTORY, dir_fd=parent)
    directory = os.open(name, DIRECTORY, dir_fd=parent)
    os.fchmod(directory, 0o755)  # whatever the umask
    return directory


@contextmanager
def _refuse_links(target: PurePosixPath) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(
            f"Cannot mount {target} in the workspace, because something else is there: {error.strerror}.",
            "Move it away.",
        ) from error


# Running and supervising

INSIDE = Path(__file__).with_name("inside.py")
UMASK = 0o022
"""Of a sandbox's programs: they create directories that the command's user must be able to enter."""
LOG_BYTES = 256 << 20
HEAD_BYTES = 2000
CHUNK_BYTES = 1 << 16
MOST_CHUNKS_AT_THE_END = 64
DEADLINE_SECONDS = 0.05
"""How often a deadline that moves is asked for at most."""


@dataclass(frozen=True)
class SandboxStart:
    """How to start, measure and end one sandbox."""

    argv: tuple[str, ...]
    """Command that ends up running `inside.py`."""
    plan: Mapping[str, object]
    """The plan for `inside.py`. Without `ready`, it gets a descriptor for that."""
    members: Callable[[int], list[Process]]
    """Returns the processes that count towards the limits, given the pid of the started one."""
    end: Callable[["subprocess.Popen[bytes]"], None]
    """Kills all remaining processes and waits until they are gone."""
    own_processes: int = 0
    """How many of the members belong to the sandbox, not to the command."""
    descriptors: tuple[int, ...] = ()
    directory: Path | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    """Environment of the started program. The command does not inherit it."""
    has_stood: Callable[[], bool] | None = None
    """Returns whether set-up reached the start of the command. None: `inside.py` says so by a descriptor."""


@dataclass(frozen=True)
class SandboxEnding:
    reason: Literal["exited", "deadline", "stopped", "memory", "processes", "disk"]
    detail: str = ""


SPIN = "1000"
"""Busy-wait rounds of an OpenMP thread. By default it spins for milliseconds, which makes multi-threaded
training several times slower when other programs compete for the cores."""


def make_inside_command(role: Role) -> tuple[str, ...]:
    """Return the first command in a sandbox."""
    return (BARE_PYTHON if role == "program" else sys.executable, "-I", "-S", str(INSIDE))


def make_inside_plan(
    command: Command, home: str, temporary: str, python: SandboxPython | None
) -> dict[str, object]:
    """Return the part of the plan for `inside.py` that describes a command."""
    return {
        "argv": command.argv,
        "environment": _make_environment(command, home, temporary, python or _find_own_python()),
        "files": {str(Path(home, path)): text for path, text in command.files.items()},
        "input": command.input,
        "interrupt": command.interrupt,
    }


def plan_sockets(
    sockets: Iterable[ServiceSocket], paths: Mapping[str, str] | None = None
) -> dict[str, tuple[str, str]]:
    """Return the part of the plan that names each service's socket inside, and its key.

    `paths`: where the sockets are inside, by their variables. None: where they are outside.
    """
    places = paths or {each.variable: str(each.socket.resolve()) for each in sockets}
    return {
        each.variable: (places[each.variable], read_key(each.socket.resolve()).decode()) for each in sockets
    }


def _find_own_python() -> SandboxPython:
    variables = {"VIRTUAL_ENV": sys.prefix} if sys.prefix != sys.base_prefix else {}
    return SandboxPython(Path(sys.executable).parent, variables)


def _make_environment(command: Command, home: str, temporary: str, python: SandboxPython) -> dict[str, str]:
    """Return the command's full environment without the service sockets; nothing is inherited."""
    bins = (python.bin, *python.more_bins, "/usr/local/bin", "/usr/bin", "/bin")
    base = {
        "PATH": ":".join(map(str, bins)),
        "HOME": home,
        "USER": "agent",
        "LANG": "C.UTF-8",
        "TMPDIR": temporary,
        "GOMP_SPINCOUNT": SPIN,
    }
    return base | dict(python.variables) | dict(command.environment)


def supervise_sandbox(start: SandboxStart, enclosure: Enclosure, stop: threading.Event) -> Exit:
    """Run a sandbox to its end. Afterwards none of its processes is alive and none of its descriptors open.

    The exit code is the command's own, 128 + n if signal n ended it.
    """
    began = time.monotonic()
    logger.debug("%s sandbox starts, with %.0f s", enclosure.role, enclosure.wall_seconds)
    guard = LimitGuard(enclosure, start.own_processes)
    with open(enclosure.log, "ab", buffering=0) as file:
        log = _CappedLog(file)
        sandbox = _LiveSandbox(start, log)
        try:
            sandbox.send_plan()
            ending = _watch_until_end(sandbox, guard, enclosure, stop)
        finally:
            sandbox.close()
            if enclosure.process_observer:
                enclosure.process_observer((), None)
    if ending.reason == "exited" and not sandbox.stood:
        reason = log.head.decode(errors="replace").strip() or "it printed no reason."
        raise MachineError(f"The sandbox did not start: {reason}", start_failures.CHECK_HINT)
    code = sandbox.process.returncode if ending.reason == "exited" else None
    seconds = time.monotonic() - began
    logger.debug("%s sandbox ended after %.1f s: %s, code %s", enclosure.role, seconds, ending.reason, code)
    return Exit(ending.reason, code, seconds, ending.detail, guard.peak_memory_bytes)


def _watch_until_end(
    sandbox: "_LiveSandbox", guard: LimitGuard, enclosure: Enclosure, stop: threading.Event
) -> SandboxEnding:
    """Watch until it ends or must be killed. At the deadline or a stop it first gets an interrupt and a
    grace period."""
    due = time.monotonic() + enclosure.wall_seconds
    ending: SandboxEnding | None = None
    while True:
        sandbox.pump_output(min(time.monotonic() + guard.pause, due))
        if sandbox.process.poll() is not None:
            return ending or SandboxEnding("exited")
        if breach := guard.check_limits(sandbox.list_members):
            return ending or SandboxEnding(breach.reason, breach.detail)
        # The deadline moves where the clock stops during a submission, so it is asked for again.
        if ending is None and time.monotonic() >= due and enclosure.remaining_seconds:
            seconds_left = enclosure.remaining_seconds()
            due = time.monotonic() + (max(seconds_left, DEADLINE_SECONDS) if seconds_left > 0 else 0.0)
        is_due = time.monotonic() >= due
        if ending is None and (is_due or stop.is_set()):
            ending = SandboxEnding("stopped" if stop.is_set() else "deadline")
            due = time.monotonic() + enclosure.grace_seconds
            sandbox.send_line(b"stop\n")
        elif ending is not None and is_due:
            detail = f"It kept running for {enclosure.grace_seconds:g} s after the interrupt and was killed."
            return SandboxEnding(ending.reason, detail)


class _CappedLog:
    """A log file with a maximum size; further output is dropped."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._room = LOG_BYTES
        self.head = b""

    def write_chunk(self, chunk: bytes) -> None:
        self.head += chunk[: HEAD_BYTES - len(self.head)]
        if self._room < 0:
            return
        self._file.write(chunk[: self._room])
        self._room -= len(chunk)
        if self._room < 0:
            self._file.write(b"\n[agent2rl: the log is full; further output was dropped]\n")


class _LiveSandbox:
    """A started sandbox and the harness's ends of its pipes."""

    def __init__(self, start: SandboxStart, log: _CappedLog) -> None:
        self._start = start
        self._log = log
        self.stood = False
        """Whether set-up reached the start of the command; known once closed."""
        self._ready, ready_inside = os.pipe()
        try:
            self.process = subprocess.Popen(
                start.argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                cwd=start.directory,
                env=dict(start.environment),
                pass_fds=(*start.descriptors, ready_inside),
                start_new_session=True,  # Ctrl-C at a terminal is for the harness alone
                umask=UMASK,
            )
        except BaseException:
            os.close(self._ready)
            raise
        finally:
            os.close(ready_inside)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._control, self._output = self.process.stdin, self.process.stdout
        self._silent = False
        self._ready_inside = ready_inside

    def send_plan(self) -> None:
        plan = {"ready": self._ready_inside, **self._start.plan}
        with suppress(BrokenPipeError):  # it has just ended; the caller will notice
            self._control.write(json.dumps(plan).encode() + b"\n")
            self._control.flush()
        # The plan must arrive whole. Later lines must not hold up the harness if nobody reads them.
        os.set_blocking(self._control.fileno(), False)

    def send_line(self, line: bytes) -> None:
        """Send a control line, best effort: a sandbox that does not read is killed after its grace period."""
        with suppress(BrokenPipeError, BlockingIOError):
            os.write(self._control.fileno(), line)

    def list_members(self) -> list[Process]:
        return self._start.members(self.process.pid)

    def pump_output(self, until: float) -> None:
        """Copy output to the log until that time, or until the end."""
        while (seconds_left := until - time.monotonic()) > 0 and self.process.poll() is None:
            # After the end of the output poll returns at once, which would keep a core busy.
            if self._silent:
                with suppress(subprocess.TimeoutExpired):
                    self.process.wait(seconds_left)
            else:
                self._carry_chunk(seconds_left)

    def _carry_chunk(self, seconds: float) -> bool:
        """Copy one chunk to the log, if one arrives in time."""
        waiting = select.poll()
        waiting.register(self._output, select.POLLIN)
        if not waiting.poll(1000 * seconds):
            return False
        chunk = os.read(self._output.fileno(), CHUNK_BYTES)
        self._log.write_chunk(chunk)
        self._silent = not chunk
        return not self._silent

    def close(self) -> None:
        """Kill it, log its remaining output and close every descriptor."""
        try:
            self._start.end(self.process)
            # Bounded, because without isolation a surviving process may write forever.
            for _ in range(MOST_CHUNKS_AT_THE_END):
                if not self._carry_chunk(0):
                    break
            has_stood = self._start.has_stood
            # The sandbox is dead, so the pipe has no writer and this does not wait.
            self.stood = has_stood() if has_stood else os.read(self._ready, 1) == b"1"
        finally:
            os.close(self._ready)
            self._output.close()
            with suppress(BrokenPipeError):
                self._control.close()
