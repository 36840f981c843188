"""A sandbox runs one command with a stated view of the world, stated limits and a deadline."""

import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Literal, Protocol

from agent2rl.core.records import Isolation, Limits

Role = Literal["agent", "grader", "program"]
"""Who is enclosed. A program sees the bare interpreter; the others see the whole of this Python as well."""

BARE_PYTHON: str = getattr(sys, "_base_executable", "") or sys.executable
"""The interpreter itself, and not a virtual environment's name for it: all of Python that a program sees."""


@dataclass(frozen=True)
class Mount:
    """A file or directory of the host, seen inside at `target`, read-only unless `writable`.

    A relative target is below the workspace.
    """

    source: Path
    target: str
    writable: bool = False


@dataclass(frozen=True)
class Door:
    """A unix socket of the harness, reached inside as HTTP at the loopback URL in `$variable`."""

    variable: str
    socket: Path


def url_placeholder(variable: str) -> str:
    """Stands for a door's URL in a command's variables, files and arguments until it is known, inside."""
    return f"{{{{{variable}}}}}"


@dataclass(frozen=True)
class Command:
    argv: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    """The whole environment besides PATH, HOME and the doors: nothing is inherited."""
    mounts: tuple[Mount, ...] = ()
    """Files that the command itself brings along."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Written before it starts, by the command's own user: path below HOME -> text."""
    input: str = ""
    """What it reads from stdin."""
    interrupt: Literal["group", "leader"] = "group"
    """Who hears the interrupt at the deadline: all of its process group, or the first process alone."""


@dataclass(frozen=True)
class Process:
    """One that is alive, as the host sees it."""

    pid: int
    parent: int
    name: str
    """As it calls itself, 15 bytes at most."""
    resident_bytes: int
    began: float
    """Seconds since the epoch; with the pid it names the process."""
    cpu_seconds: float
    waited_seconds: float
    """Of CPU, used by children that have ended and that it has waited for, and by theirs."""


ProcessObserver = Callable[[Sequence[Process], int | None], None]
"""Hears of the command's processes and of the disk's sum, as far as it is known. It returns at once and
raises nothing: the limits are kept by the thread that calls it."""


@dataclass(frozen=True)
class Enclosure:
    """What a command may see, use and reach."""

    role: Role
    workspace: Path
    """The one directory that is writable and outlives the run; the command starts in it."""
    scratch: Path
    """Holds HOME and /tmp; counted with the workspace, deleted by the caller."""
    log: Path
    """Where stdout and stderr go, written from outside so that the command cannot take it back."""
    wall_seconds: float
    limits: Limits
    mounts: tuple[Mount, ...] = ()
    hidden: tuple[Path, ...] = ()
    """Directories and files of the host that are empty inside, wherever a mount or the shared Python would
    show them. A mount from inside one of them still appears."""
    doors: tuple[Door, ...] = ()
    grace_seconds: float = 5.0
    """Between the interrupt at the deadline and the kill."""
    seen: ProcessObserver | None = None
    """Told a few times a second, and with no processes when all is over."""


@dataclass(frozen=True)
class Exit:
    """How a command ended. `code` is known only where it exited by itself."""

    reason: Literal["exited", "deadline", "stopped", "memory", "processes", "disk"]
    code: int | None
    wall_seconds: float
    detail: str = ""
    """One sentence for people, empty where the reason says it all."""
    peak_memory_bytes: int = 0
    """The most that its processes were seen to hold together, looked at a few times a second."""


class Sandbox(Protocol):
    def workspace(self, workspace: Path) -> PurePosixPath:
        """Where the workspace is seen inside."""
        ...

    def check(self, hidden: tuple[Path, ...] = ()) -> Isolation:
        """Try every promise for real; what does not hold is named with a hint.

        `hidden` are places of this machine that no sandbox may show; whether one does is tried too.
        """
        ...

    def run(self, command: Command, enclosure: Enclosure, stop: threading.Event) -> Exit:
        """Run to the end, the deadline, a limit, or until `stop` is set. Nothing of it survives."""
        ...
