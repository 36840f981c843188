"""The file system that a command sees in the bubblewrap sandbox, as arguments of bwrap.

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
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath
from typing import Self

from agent2rl.core.errors import UserError
from agent2rl.core.sandbox import BARE_PYTHON, Enclosure, Mount
from agent2rl.sandboxes.gpu_devices import list_device_mounts
from agent2rl.sandboxes.supervise import INSIDE

WORKSPACE = PurePosixPath("/workspace")
DEVICES = PurePosixPath("/dev")
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
PROC_READ_ONLY = ("/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus")
PROCESSORS = ("/sys/devices/system/cpu", "/sys/devices/system/node")
MOST_SHARED_MEMORY_BYTES = 2 << 30
SHOWN_EVERYWHERE = "every sandbox shows it, because it holds programs or Python"


class FileSystemView:
    """Collects bwrap arguments and the files they refer to, which are closed when the context ends.

    Every parent directory is created explicitly with mode 0755, because bwrap itself would use 0700.
    """

    def __init__(self, hidden: Iterable[Path]) -> None:
        self.arguments: list[str] = []
        self.descriptors: list[int] = []
        self.hidden = resolve_existing(hidden)
        self._made = {PurePosixPath("/")}
        self._covers: list[PurePosixPath] = []

    def add_arguments(self, *arguments: str | os.PathLike[str]) -> None:
        self.arguments += [os.fspath(argument) for argument in arguments]

    def make_directory(self, path: PurePosixPath) -> None:
        for directory in (*reversed(path.parents), path):
            if directory not in self._made:
                self._made.add(directory)
                self.add_arguments("--perms", "0755", "--dir", directory)

    def bind_path(self, source: Path, target: PurePosixPath, option: str = "--ro-bind") -> None:
        """Show `source` at `target`, and cover the hidden paths below it."""
        self.make_directory(target.parent)
        self.add_arguments(option, source, target)
        # The mount replaces what was created or covered there before.
        self._made = {path for path in self._made if not path.is_relative_to(target)}
        self._covers = [path for path in self._covers if not path.is_relative_to(target)]
        shown = real_path(source)
        below = [path for path in self.hidden if shown in path.parents]
        for path in below:
            if not any(other in path.parents for other in below):
                self._cover_path(target / path.relative_to(shown), path)

    def share_path(self, source: Path) -> None:
        """Show a path of the host at the same path; for paths that every sandbox shows."""
        require_other_place(source, self.hidden, SHOWN_EVERYWHERE)
        self.bind_path(source, PurePosixPath(source))

    def _cover_path(self, target: PurePosixPath, hidden: Path) -> None:
        if hidden.is_dir():
            self._covers.append(target)
            self.add_arguments("--perms", "0755", "--tmpfs", target)
        else:
            self.add_arguments("--perms", "0444", "--ro-bind-data", self.open_memory_file(b""), target)

    def add_text_file(self, target: PurePosixPath, content: str) -> None:
        self.make_directory(target.parent)
        self.add_arguments("--perms", "0644", "--file", self.open_memory_file(content.encode()), target)

    def open_memory_file(self, content: bytes) -> str:
        """Return the descriptor of an open file with this content, which bwrap calls FD."""
        descriptor = os.memfd_create("agent2rl")
        self.descriptors.append(descriptor)
        os.write(descriptor, content)
        os.lseek(descriptor, 0, os.SEEK_SET)
        return str(descriptor)

    def make_read_only(self) -> None:
        """Make everything that was created here read-only. Call this last."""
        for path in (*self._covers, PurePosixPath("/")):
            self.add_arguments("--remount-ro", path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for descriptor in self.descriptors:
            os.close(descriptor)


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
            view.add_arguments("--symlink", path.readlink(), name)
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


def add_proc_and_dev(view: FileSystemView, memory_bytes: int, gpus: Sequence[str] | None) -> None:
    """Add /proc and /dev. bwrap leaves /proc/sys writable for files' owner 0, so it is mounted read-only."""
    view.add_arguments("--proc", "/proc")
    for name in PROC_READ_ONLY:
        if Path(name).exists():
            view.add_arguments("--ro-bind", name, name)
    view.add_arguments("--dev", "/dev")
    shared = min(MOST_SHARED_MEMORY_BYTES, memory_bytes // 4)
    view.add_arguments("--perms", "1777", "--size", str(shared), "--tmpfs", "/dev/shm")
    if devices := list_device_mounts(gpus):
        for folder in sorted({PurePosixPath(device.target).parent for device in devices} - {DEVICES}):
            view.add_arguments("--perms", "0755", "--dir", folder)
        for device in devices:
            view.add_arguments("--dev-bind", device.source, device.target)
        view.add_arguments("--ro-bind", "/sys", "/sys")
    view.add_arguments("--remount-ro", "/dev")


def add_processor_topology(view: FileSystemView) -> None:
    """Add the cores and memory nodes of the machine: engines such as vLLM bind their threads by them."""
    for name in PROCESSORS:
        if Path(name).is_dir():
            view.bind_path(Path(name), PurePosixPath(name))


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
    view: FileSystemView, enclosure: Enclosure, mounts: Iterable[Mount], uid: int, tools: Iterable[str] = ()
) -> dict[str, str]:
    """Build the whole view and return the paths of the service sockets.

    Later entries may lie inside earlier ones, so the order matters. `tools` are programs that the sandbox
    itself needs inside.
    """
    bare = enclosure.role == "program"
    add_system_directories(view, LIBRARIES if bare else SYSTEM)
    add_etc_files(view, LOADER if bare else SETTINGS)
    add_accounts(view, uid)
    add_proc_and_dev(view, enclosure.limits.memory_bytes, () if bare else enclosure.gpus)
    if enclosure.role == "grader":
        add_processor_topology(view)
    view.bind_path(enclosure.scratch / "tmp", TEMPORARY, "--bind")
    view.bind_path(enclosure.scratch / "home", HOME, "--bind")
    view.bind_path(enclosure.workspace, WORKSPACE, "--bind")
    # The sandbox's own files come after the interpreter's libraries, of which a part may be hidden.
    bare_paths = (*list_interpreter_places(view.hidden), INSIDE, *map(Path, tools))
    for path in bare_paths if bare else list_python_places(view.hidden):
        view.share_path(path)
    for mount in sorted(mounts, key=lambda mount: len((WORKSPACE / mount.target).parts)):  # parents first
        if enclosure.role == "agent":
            require_other_place(mount.source, view.hidden, f"the agent must see it at {mount.target}")
        view.bind_path(mount.source, WORKSPACE / mount.target, "--bind" if mount.writable else "--ro-bind")
    sockets = {each.variable: SOCKETS / f"{number}.sock" for number, each in enumerate(enclosure.sockets)}
    for each in enclosure.sockets:
        view.bind_path(each.socket, sockets[each.variable])
    view.make_read_only()
    return {variable: str(path) for variable, path in sockets.items()}
