"""The file system that a command sees in bubblewrap and in a container.

    /usr /bin /lib ...            the host's programs                             read-only
    /etc                          a few shared files, and its own users and hosts read-only
    this Python, this package     at their own paths, wherever those are          read-only
    /proc /dev                    of its own namespaces                           /proc/sys read-only
    /dev/nvidia*, /sys            device files of its own GPUs (`gpu_devices`)    /sys read-only
    /sys/devices/system/cpu|node  cores and memory nodes, for graders only        read-only
    /run/sockets/N.sock           the sockets it may connect to
    /workspace                    the workspace                                   writable
    /home/agent /tmp              directories of the scratch                      writable
    mounts                        added by the caller

The role `program` sees less: only the libraries of /usr, no settings, no GPU, and only the bare Python
interpreter. Everything else is absent, and the rest of the tree is read-only. Sources are resolved when the
sandbox starts, so they must not be under the command's control.

Hidden paths of the enclosure are covered, wherever they would be visible, by an empty directory or file. A
mount from inside one still appears. A grader's mount of the hidden path itself appears too; an agent's is
refused.
"""

import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath

from agent2rl.core.errors import UserError
from agent2rl.core.sandbox import BARE_PYTHON, Enclosure, Mount
from agent2rl.sandboxes.supervise import INSIDE

WORKSPACE = PurePosixPath("/workspace")
HOME = PurePosixPath("/home/agent")
TEMPORARY = PurePosixPath("/tmp")
SOCKETS = PurePosixPath("/run/sockets")
HOSTNAME = "agent2rl"
PACKAGE = Path(__file__).parents[1]
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
LIBRARIES = ("/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/libx32", "/lib", "/lib32", "/lib64", "/libx32")
SETTINGS = (
    "/etc/alternatives",
    "/etc/crypto-policies",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/localtime",
    "/etc/pki/ca-trust/extracted",
    "/etc/pki/tls/certs",
    "/etc/ssl",
)
LOADER = ("/etc/ld.so.cache",)
PROCESSORS = ("/sys/devices/system/cpu", "/sys/devices/system/node")
MOST_SHARED_MEMORY_BYTES = 2 << 30
SHOWN_EVERYWHERE = "every sandbox shows it, because it holds programs or Python"


class FileSystemView(ABC):
    """Collects what a command sees. Each kind of sandbox says how that is written down for its program."""

    def __init__(self, hidden: Iterable[Path]) -> None:
        self.hidden = resolve_existing(hidden)

    def bind_path(self, source: Path, target: PurePosixPath, writable: bool = False) -> None:
        """Show `source` at `target` in place of what was there, and cover the hidden paths below it."""
        self.add_bind(source, target, writable)
        shown = real_path(source)
        below = [path for path in self.hidden if shown in path.parents]
        for path in below:
            if not any(other in path.parents for other in below):
                self.add_cover(target / path.relative_to(shown), is_directory=path.is_dir())

    def share_path(self, source: Path) -> None:
        """Show a path of the host at the same path; for paths that every sandbox shows."""
        require_other_place(source, self.hidden, SHOWN_EVERYWHERE)
        self.bind_path(source, PurePosixPath(source))

    @abstractmethod
    def add_bind(self, source: Path, target: PurePosixPath, writable: bool) -> None:
        """Show a file, a directory or a socket in place of all that was added at `target` or below it.

        It creates the mount point and its parents (mode 0755). Only those below the workspace exist already.
        What the host has mounted below `source` appears too. Unless `writable`, all of that is read-only.
        """

    @abstractmethod
    def add_cover(self, target: PurePosixPath, is_directory: bool) -> None:
        """Show an empty directory or file. A directory is read-only at the end: mounts may come below it."""

    @abstractmethod
    def add_link(self, target: PurePosixPath, leads_to: Path) -> None:
        """Add a link in the root directory, such as /bin, unless it is there in any case."""

    @abstractmethod
    def add_text_file(self, target: PurePosixPath, content: str) -> None:
        """Show a small file that everybody can read, and nobody can write."""

    @abstractmethod
    def add_kernel_files(self, enclosure: Enclosure) -> None:
        """Add /proc, /dev, and what is needed of /sys.

        /proc is that of its own pid namespace, with /proc/sys and the like read-only. /dev has the usual
        devices, the device files of the enclosure's GPUs (not for programs), and a writable /dev/shm as large
        as `limit_shared_memory` says; the rest of it is read-only at the end. Of /sys, graders see
        `PROCESSORS`, and commands with a GPU all of it; read-only.
        """


def real_path(path: Path) -> Path:
    """Resolve links; works for paths that do not exist or are not readable too."""
    return Path(os.path.realpath(path))


def resolve_existing(paths: Iterable[Path]) -> list[Path]:
    """Return the real paths of those that exist, parents first."""
    return sorted({real_path(path) for path in paths if os.path.lexists(real_path(path))})


def require_other_place(source: Path, hidden: Iterable[Path], reason: str) -> None:
    """Raise UserError if a path to be shown is itself hidden."""
    if real_path(source) in hidden:
        raise UserError(
            f"The sandbox must hide {source}, but {reason}.",
            "Keep runs (AGENT2RL_RUNS), the cache (AGENT2RL_CACHE), task folders (AGENT2RL_TASKS) and data "
            "(--data-dir) in directories of their own.",
        )


def require_hideable(hidden: Iterable[Path]) -> None:
    """Raise UserError for paths that cannot be hidden, because every sandbox shows them."""
    hidden_paths = resolve_existing(hidden)
    for shown in (*map(Path, (*SYSTEM, *SETTINGS)), *list_python_places(hidden_paths)):
        require_other_place(shown, hidden_paths, SHOWN_EVERYWHERE)


def add_system_directories(view: FileSystemView, names: Iterable[str]) -> None:
    for name in names:
        path = Path(name)
        if path.is_symlink():
            view.add_link(PurePosixPath(name), path.readlink())
        elif path.is_dir():
            view.share_path(path)


def add_etc_files(view: FileSystemView, names: Iterable[str]) -> None:
    for name in names:
        if Path(name).exists():
            view.share_path(Path(name))


def add_accounts(view: FileSystemView, uid: int) -> None:
    """Add files for users, hosts and name lookup: none of the host's, and no lookup over the network."""
    files = {
        "passwd": f"root:x:0:0::/nonexistent:/bin/false\nagent:x:{uid}:{uid}::{HOME}:/bin/bash\n",
        "group": f"root:x:0:\nagent:x:{uid}:\n",
        "hosts": f"127.0.0.1 localhost {HOSTNAME}\n::1 localhost\n",
        "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
        "resolv.conf": "",
    }
    for name, content in files.items():
        view.add_text_file(PurePosixPath("/etc") / name, content)


def limit_shared_memory(memory_bytes: int) -> int:
    """Return the size of /dev/shm for a sandbox with this memory."""
    # What lies there belongs to no process, so the limit of memory does not count it.
    return min(MOST_SHARED_MEMORY_BYTES, memory_bytes // 4)


def list_python_places(hidden: Sequence[Path] = ()) -> list[Path]:
    """Return paths outside /usr of this interpreter, its libraries and this package, including links."""
    prefixes = {Path(path) for path in (sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix)}
    return _select_outside({*prefixes, PACKAGE, *_follow_links(Path(sys.executable))}, SYSTEM, hidden)


def list_interpreter_places(hidden: Sequence[Path] = ()) -> list[Path]:
    """Return the paths of the bare interpreter and its standard library."""
    libraries = {Path(sys.base_prefix) / "lib", Path(sys.base_exec_prefix) / sys.platlibdir}
    return _select_outside({*libraries, *_follow_links(Path(BARE_PYTHON))}, LIBRARIES, hidden)


def _follow_links(path: Path) -> list[Path]:
    """Return the path and each target of its chain of links."""
    chain = [path]
    while path.is_symlink():
        path = Path(os.path.normpath(path.parent / path.readlink()))
        chain.append(path)
    return chain


def _select_outside(paths: set[Path], shown: Iterable[str], hidden: Sequence[Path]) -> list[Path]:
    """Return the paths that are not already visible below `shown`, each once, parents first."""

    def is_visible(path: Path, other: Path) -> bool:
        return path.is_relative_to(other) and not _is_covered(path, other, hidden)

    new = {path for path in paths if not any(is_visible(path, Path(name)) for name in shown)}
    return sorted(path for path in new if not any(is_visible(path, other) for other in new - {path}))


def _is_covered(path: Path, shown: Path, hidden: Iterable[Path]) -> bool:
    """Check whether a hidden path below `shown` covers this path."""
    top, bottom = real_path(shown), real_path(path.parent) / path.name
    return any(top in other.parents and bottom.is_relative_to(other) for other in hidden)


def build_view(
    view: FileSystemView,
    enclosure: Enclosure,
    mounts: Iterable[Mount],
    uid: int,
    tools: Iterable[str] = (),
    has_own_system: bool = False,
) -> dict[str, str]:
    """Build the whole view and return the paths of the service sockets.

    Later entries may lie inside earlier ones, so the order matters. `tools` are programs that the sandbox
    itself needs inside. `has_own_system`: programs and settings are not the host's.
    """
    bare = enclosure.role == "program"
    if not has_own_system:
        add_system_directories(view, LIBRARIES if bare else SYSTEM)
        add_etc_files(view, LOADER if bare else SETTINGS)
    add_accounts(view, uid)
    view.add_kernel_files(enclosure)
    view.bind_path(enclosure.scratch / "tmp", TEMPORARY, writable=True)
    view.bind_path(enclosure.scratch / "home", HOME, writable=True)
    view.bind_path(enclosure.workspace, WORKSPACE, writable=True)
    # The sandbox's own files come after the interpreter's libraries, of which a part may be hidden.
    bare_paths = (*list_interpreter_places(view.hidden), INSIDE, *map(Path, tools))
    for path in bare_paths if bare else list_python_places(view.hidden):
        view.share_path(path)
    for mount in sorted(mounts, key=lambda mount: len((WORKSPACE / mount.target).parts)):  # parents first
        if enclosure.role == "agent":
            require_other_place(mount.source, view.hidden, f"the agent must see it at {mount.target}")
        view.bind_path(mount.source, WORKSPACE / mount.target, mount.writable)
    sockets = {each.variable: SOCKETS / f"{number}.sock" for number, each in enumerate(enclosure.sockets)}
    for each in enclosure.sockets:
        view.bind_path(each.socket, sockets[each.variable])
    return {variable: str(path) for variable, path in sockets.items()}
