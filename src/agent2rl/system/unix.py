"""Parts of Python that only Unix or Linux has.

Runs need Linux, but runs can be read on any system. So every module can be imported everywhere: a missing
flag is 0, and a missing module raises a MachineError when it is used.
"""

import ctypes
import importlib
import os
import platform
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn

from agent2rl.core.errors import MachineError

NEEDS_LINUX = "`agent2rl check` lists what works here, and how to get a Linux for the rest."
SYSTEM_NAMES = {"Darwin": "macOS"}

O_CLOEXEC: int = getattr(os, "O_CLOEXEC", 0)
O_DIRECTORY: int = getattr(os, "O_DIRECTORY", 0)
O_NOCTTY: int = getattr(os, "O_NOCTTY", 0)
O_NOFOLLOW: int = getattr(os, "O_NOFOLLOW", 0)
O_NONBLOCK: int = getattr(os, "O_NONBLOCK", 0)


class MissingModule:
    """Takes the place of a module that this system lacks."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> NoReturn:
        raise MachineError(
            f"This needs Linux: Python has no {self._name}.{attribute} on this system.", NEEDS_LINUX
        )


def require_linux(what: str) -> None:
    """Raise MachineError on other systems; `what` names what needs Linux, in the plural."""
    if (system := platform.system()) != "Linux":
        raise MachineError(f"{what} need Linux, and this is {SYSTEM_NAMES.get(system, system)}.", NEEDS_LINUX)


def import_if_present(name: str) -> Any:
    """Return the module, or a stand-in that raises a MachineError when it is used."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return MissingModule(name)


def read_at(file: int, size: int, offset: int) -> bytes:
    """Return at most `size` bytes of an open file from `offset` on. The file's position is undefined then."""
    if hasattr(os, "pread"):
        return os.pread(file, size, offset)
    os.lseek(file, offset, os.SEEK_SET)
    return os.read(file, size)


def release_free_memory() -> None:
    """Give memory that was freed back to the system.

    glibc keeps some for each thread that ran beside others, so a process seems to grow with its threads.
    """
    with suppress(AttributeError, OSError, TypeError):  # another C library, or none that can be named
        ctypes.CDLL(None).malloc_trim(0)


if TYPE_CHECKING:
    import fcntl as fcntl
    import resource as resource

    import inotify_simple as inotify_simple
else:
    fcntl = import_if_present("fcntl")
    resource = import_if_present("resource")
    inotify_simple = import_if_present("inotify_simple")
