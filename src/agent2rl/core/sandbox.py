"""A sandbox runs one command with a given file system view, resource limits and a deadline."""

import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Literal, Protocol

from agent2rl.core.records import Isolation, Limits

Role = Literal["agent", "grader", "program"]
"""What runs inside. A program sees the bare interpreter; the others also see this Python's packages."""

AUTO_SANDBOX = "auto"
"""In place of a sandbox's name: the first that works on the machine of the run."""

BARE_PYTHON: str = getattr(sys, "_base_executable", "") or sys.executable
"""The interpreter itself, not its link in a virtual environment: all of Python that a program sees."""


@dataclass(frozen=True)
class Mount:
    """A file or directory of the host, mounted at `target`, read-only unless `writable`.

    A relative target is below the workspace.
    """

    source: Path
    target: str
    writable: bool = False


@dataclass(frozen=True)
class ServiceSocket:
    """A unix socket of the harness, reached inside as HTTP at the loopback URL in `$variable`."""

    variable: str
    socket: Path


def url_placeholder(variable: str) -> str:
    """Return the placeholder for the URL of a service socket in a command's environment, files and arguments.

    The URL is known only inside the sandbox, which replaces the placeholder.
    """
    return f"{{{{{variable}}}}}"


@dataclass(frozen=True)
class Command:
    argv: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    """The full environment apart from PATH, HOME and the service sockets: nothing is inherited."""
    mounts: tuple[Mount, ...] = ()
    """Files that the command itself needs."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Files written before it starts, by the command's own user: path below HOME -> text."""
    input: str = ""
    """Text for stdin."""
    interrupt: Literal["group", "leader"] = "group"
    """Which processes get SIGINT at the deadline: the whole process group, or the first process alone."""


@dataclass(frozen=True)
class Process:
    """A live process, as the host sees it."""

    pid: int
    parent: int
    name: str
    """Its own name for itself, 15 bytes at most."""
    resident_bytes: int
    began: float
    """Seconds since the epoch; together with the pid it identifies the process."""
    cpu_seconds: float
    waited_seconds: float
    """CPU time of ended children that it has waited for, and of their children."""


@dataclass(frozen=True)
class SandboxPython:
    """A Python environment for a command, in place of the harness's own. Its files are mounted separately."""

    bin: Path
    """Comes first on the PATH."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """VIRTUAL_ENV or CONDA_PREFIX."""
    more_bins: tuple[Path, ...] = ()
    """Come next on the PATH."""


ProcessObserver = Callable[[Sequence[Process], int | None], None]
"""Callback with the command's live processes and its disk usage in bytes, if known. It must return at once
and must not raise: the thread that calls it enforces the limits."""


@dataclass(frozen=True)
class Enclosure:
    """What a command may see, use and reach."""

    role: Role
    workspace: Path
    """The one writable directory that outlives the run; the command starts in it."""
    scratch: Path
    """Holds HOME and /tmp; counts towards the disk limit with the workspace; the caller deletes it."""
    log: Path
    """Receives stdout and stderr; written from outside, so that the command cannot change it."""
    wall_seconds: float
    limits: Limits
    remaining_seconds: Callable[[], float] | None = None
    """Returns the time left, for a deadline that can move. It is called when `wall_seconds` are over, and
    again when the time that it returned is over. None: the deadline does not move."""
    mounts: tuple[Mount, ...] = ()
    hidden: tuple[Path, ...] = ()
    """Directories and files of the host that appear empty wherever a mount or the shared Python would show
    them. A mount from inside one of them still appears."""
    sockets: tuple[ServiceSocket, ...] = ()
    python: SandboxPython | None = None
    """None: the harness's own."""
    gpus: tuple[str, ...] | None = None
    """GPUs whose device files are shown, as CUDA_VISIBLE_DEVICES names them. Inside, that variable has their
    numbers there, if the command sets it. None: all GPUs. A program has none in any case."""
    grace_seconds: float = 5.0
    """Between the interrupt at the deadline and the kill."""
    process_observer: ProcessObserver | None = None
    """Called a few times a second, and once with no processes after the end."""


@dataclass(frozen=True)
class Exit:
    """How a command ended. `code` is known only if it exited by itself."""

    reason: Literal["exited", "deadline", "stopped", "memory", "processes", "disk"]
    code: int | None
    wall_seconds: float
    detail: str = ""
    """One sentence for people; empty if `reason` is enough."""
    peak_memory_bytes: int = 0
    """Peak memory of all its processes together, sampled a few times a second."""


class Sandbox(Protocol):
    def workspace(self, workspace: Path) -> PurePosixPath:
        """Return the workspace's path inside the sandbox."""
        ...

    def check(self, hidden: tuple[Path, ...] = ()) -> Isolation:
        """Test every isolation promise for real; a broken one comes with a hint.

        `hidden` are paths of this machine that no sandbox may show; the test covers them too.
        """
        ...

    def run(self, command: Command, enclosure: Enclosure, stop: threading.Event) -> Exit:
        """Run until the command exits, reaches the deadline or a limit, or `stop` is set.

        No process of it survives.
        """
        ...
