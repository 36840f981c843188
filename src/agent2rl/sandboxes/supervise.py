"""Runs a sandbox from start to end: mount points, output, limits, deadline, stop. Shared by all sandboxes.

One thread does it all, because the kernel ties a sandbox to the *thread* that started it, which must
outlive it. How a sandbox is started and ended, and which processes are its own, `SandboxStart` says.

    harness                pipes                    sandbox
    supervise   --  plan, then "stop"   -->  stdin  inside.py, which starts the command
                <--  one byte           --   ready
    log         <--  capped             --   stdout and stderr of all

Mount points are made in the workspace without following links: it may hold what an earlier run of an agent
left, and `models -> /etc` must not lead the harness out.
"""

import json
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import IO, Literal

from agent2rl.core.errors import MachineError, UserError
from agent2rl.core.sandbox import BARE_PYTHON, Command, Enclosure, Exit, Mount, Process, Role
from agent2rl.sandboxes.resource_limits import LimitGuard

# Makes the places in a workspace where mounts will appear, without following a link that lies in it.

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def resolve_enclosure(enclosure: Enclosure) -> Enclosure:
    """The same with real paths of its directories, so that nothing later need follow a link to them."""
    workspace, scratch = enclosure.workspace.resolve(strict=True), enclosure.scratch.resolve()
    return replace(enclosure, workspace=workspace, scratch=scratch)


def collect_mounts(command: Command, enclosure: Enclosure) -> tuple[Mount, ...]:
    """The enclosure's and the command's own, each with a source that exists."""
    mounts = (*enclosure.mounts, *command.mounts)
    for mount in mounts:
        if not mount.source.exists():
            raise UserError(f"{mount.source} does not exist, but is to be mounted at {mount.target}.")
        if ".." in PurePosixPath(mount.target).parts:
            raise UserError(f"The mount target {mount.target!r} contains '..'.", "Name the place itself.")
    return mounts


def make_mountpoint(workspace: Path, target: PurePosixPath, source: Path) -> None:
    """An empty directory or file below the workspace, as `source` is one, unless it is there already."""
    with open_parent(workspace, target) as directory, _refuse_links(target):
        if source.is_dir():
            with suppress(FileExistsError):
                os.mkdir(target.name, 0o755, dir_fd=directory)
            flags = DIRECTORY
        else:
            flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        os.close(os.open(target.name, flags, 0o644, dir_fd=directory))


@contextmanager
def open_parent(workspace: Path, target: PurePosixPath) -> Iterator[int]:
    """The directory below the workspace that holds `target`, made where it is missing."""
    directory = os.open(workspace, DIRECTORY)
    try:
        with _refuse_links(target):
            for part in target.parent.parts:
                with suppress(FileExistsError):
                    os.mkdir(part, 0o755, dir_fd=directory)
                below = os.open(part, DIRECTORY, dir_fd=directory)
                os.close(directory)
                directory = below
        yield directory
    finally:
        os.close(directory)


@contextmanager
def _refuse_links(target: PurePosixPath) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(
            f"In the workspace something stands where {target} is to be mounted: {error.strerror}.",
            "Move it away.",
        ) from error


INSIDE = Path(__file__).with_name("inside.py")
LOG_BYTES = 256 << 20
HEAD_BYTES = 2000
CHUNK_BYTES = 1 << 16
MOST_CHUNKS_AT_THE_END = 64


@dataclass(frozen=True)
class SandboxStart:
    """How one sandbox is started, counted and ended."""

    argv: tuple[str, ...]
    """Leads to `make_inside_command.py`."""
    plan: Mapping[str, object]
    """What `make_inside_command.py` is told, but for `ready`."""
    members: Callable[[int], list[Process]]
    """The processes whose memory counts, given the pid of the started one."""
    end: Callable[["subprocess.Popen[bytes]"], None]
    """Kills what is still alive, and waits until it is gone."""
    own_processes: int = 0
    """How many of the members are the sandbox's, not the command's."""
    descriptors: tuple[int, ...] = ()
    directory: Path | None = None


@dataclass(frozen=True)
class SandboxEnding:
    reason: Literal["exited", "deadline", "stopped", "memory", "processes", "disk"]
    detail: str = ""


SPIN = "1000"
"""Rounds that a thread of OpenMP waits busily for the others. By default it waits for milliseconds, and where
other programs want the cores too, a training in several threads becomes several times slower."""


def make_inside_command(role: Role) -> tuple[str, ...]:
    """The first command in a sandbox."""
    return (BARE_PYTHON if role == "program" else sys.executable, "-I", "-S", str(INSIDE))


def make_inside_plan(command: Command, home: str, temporary: str) -> dict[str, object]:
    """What `make_inside_command.py` is told of a command."""
    return {
        "argv": command.argv,
        "environment": _make_environment(command, home, temporary),
        "files": {str(Path(home, path)): text for path, text in command.files.items()},
        "input": command.input,
        "interrupt": command.interrupt,
    }


def _make_environment(command: Command, home: str, temporary: str) -> dict[str, str]:
    """The command's whole environment but for the doors, built from nothing."""
    base = {
        "PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin",
        "HOME": home,
        "USER": "agent",
        "LANG": "C.UTF-8",
        "TMPDIR": temporary,
        "GOMP_SPINCOUNT": SPIN,
    }
    if sys.prefix != sys.base_prefix:
        base["VIRTUAL_ENV"] = sys.prefix
    return base | dict(command.environment)


def supervise_sandbox(start: SandboxStart, enclosure: Enclosure, stop: threading.Event) -> Exit:
    """Run to the end. Afterwards nothing of the sandbox is alive and no descriptor of it is open.

    The exit code is the command's own, 128 + n where signal n ended it.
    """
    began = time.monotonic()
    guard = LimitGuard(enclosure, start.own_processes)
    with open(enclosure.log, "ab", buffering=0) as file:
        log = _CappedLog(file)
        sandbox = _LiveSandbox(start, log)
        try:
            sandbox.send_plan()
            ending = _watch_until_end(sandbox, guard, enclosure, stop)
        finally:
            sandbox.close()
            if enclosure.seen:
                enclosure.seen((), None)
    if ending.reason == "exited" and not sandbox.stood:
        reason = log.head.decode(errors="replace").strip() or "it said nothing."
        raise MachineError(f"The sandbox did not start: {reason}", "`agent2rl check` names the known causes.")
    code = sandbox.process.returncode if ending.reason == "exited" else None
    return Exit(ending.reason, code, time.monotonic() - began, ending.detail, guard.peak_memory_bytes)


def _watch_until_end(
    sandbox: "_LiveSandbox", guard: LimitGuard, enclosure: Enclosure, stop: threading.Event
) -> SandboxEnding:
    """Watch until it ends or must be ended. At the deadline and at a stop it is asked first, with grace."""
    due = time.monotonic() + enclosure.wall_seconds
    ending: SandboxEnding | None = None
    while True:
        sandbox.pump_output(min(time.monotonic() + guard.pause, due))
        if sandbox.process.poll() is not None:
            return ending or SandboxEnding("exited")
        if breach := guard.check_limits(sandbox.list_members):
            return ending or SandboxEnding(breach.reason, breach.detail)
        late = time.monotonic() >= due
        if ending is None and (late or stop.is_set()):
            ending = SandboxEnding("stopped" if stop.is_set() else "deadline")
            due = time.monotonic() + enclosure.grace_seconds
            sandbox.send_line(b"stop\n")
        elif ending is not None and late:
            grace = f"It went on for {enclosure.grace_seconds:g} s after the interrupt and was killed."
            return SandboxEnding(ending.reason, grace)


class _CappedLog:
    """A log file that takes so much and no more, however much there is to take."""

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
            self._file.write(b"\n[agent2rl: the log is full; what came after this was dropped]\n")


class _LiveSandbox:
    """A started sandbox and the harness's ends of its pipes."""

    def __init__(self, start: SandboxStart, log: _CappedLog) -> None:
        self._start = start
        self._log = log
        self.stood = False
        """Whether it came as far as starting the command; known once closed."""
        self._ready, ready_inside = os.pipe()
        try:
            self.process = subprocess.Popen(
                start.argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                cwd=start.directory,
                env={},
                pass_fds=(*start.descriptors, ready_inside),
                start_new_session=True,  # Ctrl-C at a terminal is for the harness alone
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
        plan = {**self._start.plan, "ready": self._ready_inside}
        with suppress(BrokenPipeError):  # it has just ended, as the caller will see
            self._control.write(json.dumps(plan).encode() + b"\n")
            self._control.flush()
        os.set_blocking(self._control.fileno(), False)

    def send_line(self, line: bytes) -> None:
        """As far as it listens: whoever stops reading or fills the pipe is killed when its grace is over."""
        with suppress(BrokenPipeError, BlockingIOError):
            os.write(self._control.fileno(), line)

    def list_members(self) -> list[Process]:
        return self._start.members(self.process.pid)

    def pump_output(self, until: float) -> None:
        """Carry output to the log until then, or until the end."""
        while (left := until - time.monotonic()) > 0 and self.process.poll() is None:
            if self._silent:
                with suppress(subprocess.TimeoutExpired):
                    self.process.wait(left)
            else:
                self._carry_chunk(left)

    def _carry_chunk(self, seconds: float) -> bool:
        """One chunk to the log, if one comes in time."""
        waiting = select.poll()
        waiting.register(self._output, select.POLLIN)
        if not waiting.poll(1000 * seconds):
            return False
        chunk = os.read(self._output.fileno(), CHUNK_BYTES)
        self._log.write_chunk(chunk)
        self._silent = not chunk
        return not self._silent

    def close(self) -> None:
        """End it, keep its last words, and give every descriptor back."""
        try:
            self._start.end(self.process)
            # A bound, because where nothing isolates a survivor may write for ever.
            for _ in range(MOST_CHUNKS_AT_THE_END):
                if not self._carry_chunk(0):
                    break
            self.stood = os.read(self._ready, 1) == b"1"
        finally:
            os.close(self._ready)
            self._output.close()
            with suppress(BrokenPipeError):
                self._control.close()
