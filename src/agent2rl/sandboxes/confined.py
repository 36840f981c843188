"""A sandbox without namespaces, for containers in which nothing nested works. It isolates in part.

What it uses instead:

    a user of its own       if the harness is root: a uid that nothing else uses, without capabilities
    Landlock                files, TCP ports; signals and abstract sockets on newer kernels (`landlock`)
    a system-call filter    as in bubblewrap, no internet protocol but TCP, no System V objects
    a broker                makes its TCP sockets, which reach this machine only (`loopback_sockets`)
    a guard                 adopts and kills all processes (`confined_guard`)
    rlimits, no_new_privs   as in bubblewrap

The command sees the host's paths: its workspace is where the harness keeps it, mounts are links in it, HOME
and TMPDIR are directories of the scratch, and the rest of the host can be seen but not opened. `list_gaps`
names every promise of a sandbox that this one does not make.

Rules can only allow, and they hold for everything below a directory. Where a hidden path lies in a shared
directory, its siblings are allowed one by one. The names below it can be listed, the files cannot be opened.
"""

import functools
import json
import os
import subprocess
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from agent2rl.core.errors import MachineError, UserError
from agent2rl.core.records import Isolation
from agent2rl.core.sandbox import BARE_PYTHON, Command, Enclosure, Exit, Mount, Process, Sandbox
from agent2rl.sandboxes import (
    directory_access,
    landlock,
    loopback_sockets,
    resource_limits,
    sandbox_user,
    seccomp,
    selftest,
    supervise,
    view,
)
from agent2rl.sandboxes.gpu_devices import list_device_mounts, renumber_visible_gpus
from agent2rl.sandboxes.supervise import SandboxStart, make_inside_plan, supervise_sandbox

GUARD = Path(__file__).with_name("confined_guard.py")
ACCOUNTS = ("/etc/passwd", "/etc/group", "/etc/hosts", "/etc/nsswitch.conf")
RELEASES = ("/etc/debian_version", "/etc/os-release")
"""What pip reads. It takes their absence for an answer, but not a refusal."""
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
TERMINALS = ("/dev/ptmx", "/dev/pts")
SHARED_MEMORY = "/dev/shm"
GIT_SETTINGS = "[safe]\n\tdirectory = *\n"
"""git refuses a repository that belongs to another user, and the workspace belongs to root."""
GIT_ENVIRONMENT = {"GIT_CONFIG_NOSYSTEM": "1"}
"""git, too, takes a missing /etc/gitconfig for an answer, and gives up at one that it may not read."""
OTHERS_SOCKETS = "Those that every user may connect to can be reached."
OWN_SOCKETS = (
    "All sockets of your user can be reached, such as those of a session bus or an ssh agent. Start the "
    "harness as root, or as a user that runs nothing else. The harness's own services ask for a key."
)
OWN_PROCESSES = 1
BROKER_SECONDS = 30.0
SECONDS_TO_DIE = 30.0
SLOTS = 64
"""Sandboxes that one harness process can have at once."""
NEEDED_CAPABILITIES = {"CHOWN": 0, "DAC_OVERRIDE": 1, "FOWNER": 3, "SETGID": 6, "SETUID": 7}


class ConfinedSandbox:
    def workspace(self, workspace: Path) -> PurePosixPath:
        return PurePosixPath(workspace.resolve())

    def check(self, hidden: tuple[Path, ...] = ()) -> Isolation:
        view.require_hideable(hidden)
        gaps = list_gaps(landlock.read_version(), os.geteuid() == 0, can_broker_sockets())
        return selftest.run_self_test("confined", self, hidden, gaps, selftest.SHARED_HOST_NAMES)

    def run(self, command: Command, enclosure: Enclosure, stop: threading.Event) -> Exit:
        version, has_broker = require_landlock(), can_broker_sockets()
        enclosure = supervise.resolve_enclosure(enclosure)
        mounts = supervise.collect_mounts(command, enclosure)
        command = renumber_visible_gpus(command, enclosure.gpus)
        command = replace(command, environment={**GIT_ENVIRONMENT, **command.environment})
        with _borrow_user() as uid, _open_ruleset(version) as ruleset:
            _prepare_directories(enclosure, mounts, uid)
            shown = _allow_paths(ruleset, enclosure, mounts, uid)
            settings = {
                "harness": os.getpid(),
                "uid": uid,
                "ruleset": ruleset.descriptor,
                "ports": version >= landlock.TCP_FROM,
                "filter": seccomp.build_filter(shares_namespaces=True, passes_tcp=has_broker).hex(),
                "broker": has_broker,
            }
            home, temporary = (str(enclosure.scratch / name) for name in ("home", "tmp"))
            with _open_settings(settings) as descriptor, _let_pass(uid, shown):
                start = SandboxStart(
                    argv=(BARE_PYTHON, "-I", "-S", str(GUARD), str(descriptor)),
                    plan={
                        **make_inside_plan(command, home, temporary, enclosure.python),
                        "sockets": supervise.plan_sockets(enclosure.sockets),
                        "limits": _make_rlimits(enclosure.limits.processes, uid),
                    },
                    members=_list_members,
                    own_processes=OWN_PROCESSES + has_broker,
                    end=_end_guard,
                    descriptors=(descriptor, ruleset.descriptor),
                    directory=enclosure.workspace,
                )
                return supervise_sandbox(start, enclosure, stop)


def list_gaps(version: int, is_root: bool, has_broker: bool) -> dict[str, str]:
    """Return the promises that this sandbox does not make with this Landlock, each with the reason.

    `has_broker`: TCP sockets can be bound to the loopback device.
    """
    gaps = {
        "files": "Names, sizes and times of the host's files can be seen. Their content cannot be read.",
        "hidden": "Names in these directories can be listed. Their files cannot be opened.",
        "processes": "The host's processes and their command lines can be seen, because there is no pid "
        "namespace.",
    }
    if version < landlock.SOCKETS_FROM:
        gaps["unix-sockets"] = (
            "This kernel's Landlock cannot restrict unix sockets that have a path: it needs Linux 7.1. "
            + (OTHERS_SOCKETS if is_root else OWN_SOCKETS)
        )
    if version < landlock.TCP_FROM:
        gaps["network"] = "This kernel's Landlock cannot restrict TCP: it needs Linux 6.7. " + (
            "TCP services of this machine can be reached, and no other host."
            if has_broker
            else "The network of this machine can be used."
        )
    elif not has_broker:
        gaps["network"] = (
            "TCP sockets cannot be bound to the loopback device here, so the ports of the run's services are "
            "open to every host."
        )
    if version < landlock.SCOPES_FROM:
        gaps["abstract-sockets"] = "This kernel's Landlock cannot restrict them: it needs Linux 6.12."
    if not is_root:
        same_user = "The command runs as your own user, because the harness is not root."
        gaps["attributes"] = (
            f"{same_user} Landlock does not restrict modes and times. With GPUs, it can also write what your "
            "processes have in /proc, such as oom_score_adj; their memory stays closed."
        )
        gaps["given-files"] = f"{same_user} It owns the workspace with all that is in it."
        if version < landlock.TRUNCATES_FROM:
            gaps["read-only"] = f"{same_user} This kernel's Landlock cannot stop it from truncating files."
        if version < landlock.SCOPES_FROM:
            gaps["signals"] = f"{same_user} This kernel's Landlock cannot restrict signals."
            gaps["daemon"] = f"{same_user} It can kill the guard that ends its daemons."
    return gaps


@functools.cache
def can_broker_sockets() -> bool:
    """Check whether a broker can make the sandbox's TCP sockets here, by trying it."""
    code = seccomp.build_filter(shares_namespaces=True, passes_tcp=True).hex()
    # In a process of its own, because a filter cannot be taken off again.
    try:
        tried = subprocess.run(
            [BARE_PYTHON, "-I", "-S", loopback_sockets.__file__, code],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=BROKER_SECONDS,
            start_new_session=True,  # Ctrl-C at a terminal is for the harness alone
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False
    return tried.returncode == 0


def require_landlock() -> int:
    """Return the version of the kernel's Landlock; raise MachineError if there is none."""
    if version := landlock.read_version():
        return version
    raise MachineError(
        "This kernel has no Landlock, or the container's system-call filter refuses it.",
        "It needs Linux 5.13 with `landlock` in /sys/kernel/security/lsm, and a container runtime that "
        "allows its system calls.",
    )


# The command's user

_slots_lock = threading.Lock()
_used_slots: set[int] = set()


@contextmanager
def _borrow_user() -> Iterator[int | None]:
    """Yield a uid that no other sandbox has meanwhile; None if the harness is not root."""
    if os.geteuid() != 0:
        yield None
        return
    _require_capabilities()
    with _slots_lock:
        slot = min(set(range(SLOTS)) - _used_slots, default=None)
        if slot is None:
            raise MachineError(f"More than {SLOTS} sandboxes run at once in one process.")
        _used_slots.add(slot)
    try:
        uid = sandbox_user.choose_mapped_user(
            # The second is for user namespaces of containers, which often have 65536 ids.
            (0x60000000 + SLOTS * os.getpid() + slot, 20000 + SLOTS * (os.getpid() % 700) + slot)
        )
        try:
            yield uid
        finally:
            _remove_shared_memory(uid)
    finally:
        with _slots_lock:
            _used_slots.discard(slot)


def _remove_shared_memory(uid: int) -> None:
    """Delete what a sandbox's user left in the host's /dev/shm: it would hold memory forever."""
    with suppress(FileNotFoundError):  # this machine has no `find`
        subprocess.run(
            ["find", SHARED_MEMORY, "-mindepth", "1", "-xdev", "-user", str(uid), "-delete"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C at a terminal is for the harness alone
            check=False,
        )


def _require_capabilities() -> None:
    status = Path("/proc/self/status").read_text(encoding="utf-8", errors="replace")
    held = int(status.partition("CapEff:")[2].split()[0], 16)
    if missing := [name for name, bit in NEEDED_CAPABILITIES.items() if not held >> bit & 1]:
        raise MachineError(
            f"The harness is root without the capabilities {', '.join(missing)}, so it cannot give the "
            "sandbox a user of its own.",
            "Run it as an ordinary user, or give the container these capabilities.",
        )


@contextmanager
def _let_pass(uid: int | None, paths: Sequence[Path]) -> Iterator[None]:
    if uid is None:
        yield
        return
    with directory_access.let_user_pass(uid, paths):
        yield


def _make_rlimits(processes: int, uid: int | None) -> dict[str, int]:
    limits = {"RLIMIT_NOFILE": 65536, "RLIMIT_CORE": 0}
    if uid is None:  # the number of processes would count this user's others too
        return limits
    return limits | {"RLIMIT_NPROC": sandbox_user.count_threads(processes)}


# The directories


def _prepare_directories(enclosure: Enclosure, mounts: Iterable[Mount], uid: int | None) -> None:
    """Create HOME, TMPDIR and links to the mounts, and give the command's user all that it may write."""
    home = enclosure.scratch / "home"
    for directory in (home, enclosure.scratch / "tmp"):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    hidden = view.resolve_existing(enclosure.hidden)
    kept, given = set(), [enclosure.scratch]
    for mount in mounts:
        if enclosure.role == "agent":
            view.require_other_place(mount.source, hidden, f"the agent must see it at {mount.target}")
        supervise.link_mount(mount, enclosure.workspace, "confined")
        if mount.writable:
            given.append(mount.source)
            continue
        kept.add(view.real_path(mount.source))
        if uid is not None:
            in_workspace = not PurePosixPath(mount.target).is_absolute()
            sandbox_user.require_readable(mount.source, hidden, recursive=in_workspace)
    if uid is None:
        return
    _share_workspace(enclosure.workspace, uid, kept)
    for tree in given:
        _change_owner(tree, uid, kept)
    for each in enclosure.sockets:
        os.lchown(each.socket, uid, uid)
    # A file of the agent's own stays.
    with suppress(FileExistsError), (home / ".gitconfig").open("x", encoding="ascii") as file:
        file.write(GIT_SETTINGS)


def _share_workspace(workspace: Path, uid: int, kept: set[Path]) -> None:
    """Let the user write in the workspace, but not rename what is given to it there.

    So the workspace itself belongs to root and to the user's group and has the sticky bit, and the rest
    belongs to the user.
    """
    os.chown(workspace, 0, uid)
    workspace.chmod(0o1775)
    for entry in os.scandir(workspace):
        if Path(entry.path) not in kept:
            _change_owner(Path(entry.path), uid, kept)


def _change_owner(tree: Path, uid: int, kept: set[Path]) -> None:
    """Give a tree to a user, except for the paths that stay as they are."""
    os.lchown(tree, uid, uid)
    for directory, folders, files in os.walk(tree):
        folders[:] = [name for name in folders if Path(directory, name) not in kept]
        for path in (Path(directory, name) for name in (*folders, *files)):
            if path not in kept:
                os.lchown(path, uid, uid)


# The rules


@contextmanager
def _open_ruleset(version: int) -> Iterator[landlock.Ruleset]:
    ruleset = landlock.Ruleset(version)
    try:
        yield ruleset
    finally:
        ruleset.close()


def _allow_paths(
    ruleset: landlock.Ruleset, enclosure: Enclosure, mounts: Sequence[Mount], uid: int | None
) -> list[Path]:
    """Allow what the command may open. Return the paths whose parents its user must be able to enter."""
    bare = enclosure.role == "program"
    rules = PathRules(ruleset, view.resolve_existing(enclosure.hidden))
    for name in (*(view.LIBRARIES if bare else view.SYSTEM), *(view.LOADER if bare else view.SETTINGS)):
        rules.share(Path(name))
    python = (view.list_interpreter_places if bare else view.list_python_places)(rules.hidden)
    for path in python:
        rules.share(path)
    # Python lists a directory to find a package in it.
    rules.allow(view.PACKAGE.parent, landlock.READ_DIRECTORY)
    for name in (*ACCOUNTS, *RELEASES) if not bare else ():
        rules.allow(Path(name), landlock.READ)
    rules.allow(Path("/proc"), landlock.READ_FILE | landlock.READ_DIRECTORY)
    # A terminal of the same user could be another one's input.
    for name in (*DEVICES, *(TERMINALS if uid is not None else ())):
        rules.allow(Path(name), landlock.DEVICE | landlock.READ_DIRECTORY)
    if not bare:
        rules.allow(Path(SHARED_MEMORY), landlock.WRITE)
        _allow_hardware(rules, enclosure)
    for mount in mounts:
        # A service's socket may be in it.
        rights = landlock.WRITE if mount.writable else landlock.READ
        rules.allow(mount.source, rights | landlock.CONNECT_SOCKET)
    for path in (enclosure.workspace, enclosure.scratch / "home", enclosure.scratch / "tmp"):
        rules.allow(path, landlock.WRITE | landlock.CONNECT_SOCKET)
    for each in enclosure.sockets:
        rules.allow(each.socket, landlock.CONNECT_SOCKET)
    sources = [mount.source for mount in mounts]
    sockets = [each.socket for each in enclosure.sockets]
    return [*python, *sources, *sockets, enclosure.workspace, enclosure.scratch / "home"]


def _allow_hardware(rules: "PathRules", enclosure: Enclosure) -> None:
    if devices := list_device_mounts(enclosure.gpus):
        for device in devices:
            rules.allow(device.source, landlock.DEVICE | landlock.READ_DIRECTORY)
        rules.allow(Path("/sys"), landlock.READ)
        # CUDA names its threads in /proc/PID/task/TID/comm and gives up (error 304) if it cannot. No
        # narrower rule holds for processes to come.
        rules.allow(Path("/proc"), landlock.WRITE_FILE | landlock.TRUNCATE)
        # NVML gives up if it may not ask this daemon. Where there is none, it does without.
        rules.allow(Path("/run/nvidia-persistenced"), landlock.CONNECT_SOCKET)
    if enclosure.role == "grader":
        for name in view.PROCESSORS:
            rules.allow(Path(name), landlock.READ)


@dataclass(frozen=True)
class PathRules:
    """Adds rules for trees to a ruleset, without the hidden paths in them."""

    ruleset: landlock.Ruleset
    hidden: list[Path]

    def share(self, path: Path) -> None:
        """Allow reading a path that every sandbox shows."""
        view.require_other_place(path, self.hidden, view.SHOWN_EVERYWHERE)
        self.allow(path, landlock.READ)

    def allow(self, path: Path, rights: int) -> None:
        real = view.real_path(path)
        if real.exists():
            self._allow_tree(real, rights)

    def _allow_tree(self, path: Path, rights: int) -> None:
        # A right to list names opens nothing that is hidden below.
        if rights == landlock.READ_DIRECTORY or not any(path in other.parents for other in self.hidden):
            self.ruleset.allow_path(str(path), rights)
            return
        if rights & landlock.CHANGE:
            raise UserError(f"The sandbox must hide a part of {path}, but the command may write there.")
        self.ruleset.allow_path(str(path), landlock.READ_DIRECTORY)
        with os.scandir(path) as entries:
            for entry in entries:
                # The target of a link has rules of its own, or none.
                if not entry.is_symlink() and Path(entry.path) not in self.hidden:
                    self._allow_tree(Path(entry.path), rights)


# The guard


@contextmanager
def _open_settings(settings: Mapping[str, object]) -> Iterator[int]:
    """Yield the descriptor of an open file with the guard's settings."""
    descriptor = os.memfd_create("agent2rl")
    try:
        os.write(descriptor, json.dumps(settings).encode())
        os.lseek(descriptor, 0, os.SEEK_SET)
        yield descriptor
    finally:
        os.close(descriptor)


def _list_members(guard: int) -> list[Process]:
    return resource_limits.find_descendants({guard}, resource_limits.list_processes())


def _end_guard(process: "subprocess.Popen[bytes]") -> None:
    """Ask the guard to kill everything, and wait until it has."""
    # SIGKILL would end the guard alone, and nobody would kill what it guards.
    process.terminate()
    try:
        process.wait(SECONDS_TO_DIE)
    except subprocess.TimeoutExpired:
        raise MachineError(
            f"Processes of the sandbox's guard {process.pid} cannot be killed.",
            "Look at the output of `dmesg`.",
        ) from None


SANDBOX: Sandbox = ConfinedSandbox()
