"""The default sandbox: namespaces, a system-call filter and a file system built from nothing, by bubblewrap.

There are two profiles, because a process that is uid 0 outside can write kernel settings from any user
namespace:

    harness is an ordinary user   a user namespace, in which the command is uid 1000 without capabilities
    harness is root               no user namespace; the innermost step drops to a uid that nothing else uses
                                  and that owns everything the command may write

There is no network except the service sockets. Processes, memory and disk are watched from outside. Not
covered: the CPU time and disk bandwidth that it takes from others, and kernel bugs.

Distributions have old versions of bwrap. What those from 0.4.0 on lack is done in another way:

    --disable-userns    since 0.8.0    the system-call filter refuses new namespaces anyway
    --size              since 0.7.0    /dev/shm is a directory of the scratch, which the limit of disk counts
    --perms             since 0.5.0    files have mode 0666, on a file system that is read-only
"""

import functools
import json
import os
import re
import signal
import subprocess
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Self

from agent2rl.core.errors import MachineError
from agent2rl.core.records import Isolation
from agent2rl.core.sandbox import Command, Enclosure, Exit, Process, Sandbox
from agent2rl.sandboxes import resource_limits, seccomp, selftest, supervise, view
from agent2rl.sandboxes.gpu_devices import list_device_mounts, renumber_visible_gpus
from agent2rl.sandboxes.sandbox_user import SandboxUser, choose_user, make_rlimits, prepare_mounts
from agent2rl.sandboxes.start_failures import build_old_bwrap, find_program
from agent2rl.sandboxes.supervise import (
    SandboxStart,
    make_inside_command,
    make_inside_plan,
    supervise_sandbox,
)

# A new session has no terminal, so nothing can be typed into the user's.
FLAGS = (
    *("--die-with-parent", "--new-session"),
    *("--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try", "--unshare-net"),
    *("--hostname", view.HOSTNAME, "--chdir", str(view.WORKSPACE)),
)
DEVICES = PurePosixPath("/dev")
SHARED_MEMORY = DEVICES / "shm"
NEWEST_REQUIRED_OPTION = "--json-status-fd"
"""Of the options without which there is no sandbox, the one that bwrap got last, in 0.3.2."""
PROC_READ_ONLY = ("/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus")
OWN_PROCESSES = 2  # bwrap's first process inside, and inside.py
SECONDS_TO_DIE = 30.0


class BubblewrapSandbox:
    def workspace(self, workspace: Path) -> PurePosixPath:  # noqa: ARG002 (always the same)
        return view.WORKSPACE

    def check(self, hidden: tuple[Path, ...] = ()) -> Isolation:
        view.require_hideable(hidden)
        return selftest.run_self_test("bubblewrap", self, hidden)

    def run(self, command: Command, enclosure: Enclosure, stop: threading.Event) -> Exit:
        program = find_bwrap()
        enclosure = supervise.resolve_enclosure(enclosure)
        user = choose_user(enclosure.role)
        mounts = supervise.collect_mounts(command, enclosure)
        command = renumber_visible_gpus(command, enclosure.gpus)
        prepare_mounts(enclosure, mounts, user)
        with BwrapView(enclosure, program) as seen, BwrapStatus() as status:
            sockets = view.build_view(seen, enclosure, mounts, user.uid, user.make_drop_command()[:1])
            seen.make_read_only()
            filter_file = seen.open_memory_file(seccomp.build_filter())
            descriptor_flags = ("--seccomp", filter_file, "--json-status-fd", str(status.writer))
            flags = (*FLAGS, *_make_user_flags(user, program), *descriptor_flags)
            # In a file, because the sandbox can read bwrap's command line as that of process 1.
            arguments = seen.open_memory_file(
                b"".join(os.fsencode(part) + b"\0" for part in (*flags, *seen.arguments))
            )
            start = SandboxStart(
                argv=(
                    program.path,
                    "--args",
                    arguments,
                    "--",
                    *user.make_drop_command(),
                    *make_inside_command(enclosure.role),
                ),
                plan={
                    **make_inside_plan(command, str(view.HOME), str(view.TEMPORARY), enclosure.python),
                    "sockets": supervise.plan_sockets(enclosure.sockets, sockets),
                    "limits": make_rlimits(enclosure.limits.processes),
                },
                members=_list_members,
                own_processes=OWN_PROCESSES,
                end=status.kill_sandbox,
                descriptors=(*seen.descriptors, status.writer),
            )
            return supervise_sandbox(start, enclosure, stop)


@dataclass(frozen=True)
class BwrapProgram:
    path: str
    help_text: str
    """Empty if it does not even print that; then its messages say why."""

    def has_option(self, option: str) -> bool:
        return re.search(rf"{option}\b", self.help_text) is not None


def find_bwrap() -> BwrapProgram:
    """Return the installed bwrap; raise MachineError if it is missing or too old."""
    path = find_program("bwrap")
    program = BwrapProgram(path, _ask_program(path, "--help"))
    if program.help_text and not program.has_option(NEWEST_REQUIRED_OPTION):
        raise build_old_bwrap(_ask_program(path, "--version").removeprefix("bubblewrap "))
    return program


@functools.cache
def _ask_program(path: str, option: str) -> str:
    return subprocess.run([path, option], capture_output=True, text=True, check=False).stdout.strip()


def _make_user_flags(user: SandboxUser, program: BwrapProgram) -> tuple[str, ...]:
    if user.dropped:
        return ()
    namespace = ("--unshare-user", "--uid", str(user.uid), "--gid", str(user.uid), "--cap-drop", "ALL")
    return (*namespace, "--disable-userns") if program.has_option("--disable-userns") else namespace


def _list_members(started: int) -> list[Process]:
    return resource_limits.find_descendants({started}, resource_limits.list_processes())


class BwrapView(view.FileSystemView):
    """Collects bwrap arguments and the files they refer to, which are closed when the context ends.

    Every parent directory is created explicitly, which gives it the mode 0755.
    """

    def __init__(self, enclosure: Enclosure, program: BwrapProgram) -> None:
        super().__init__(enclosure.hidden)
        self._program = program
        self._scratch = enclosure.scratch
        self.arguments: list[str] = []
        self.descriptors: list[int] = []
        self._made = {PurePosixPath("/")}
        self._covers: list[PurePosixPath] = []

    def add_bind(self, source: Path, target: PurePosixPath, writable: bool) -> None:
        self._make_directory(target.parent)
        self._add_arguments("--bind" if writable else "--ro-bind", source, target)
        # The mount replaces what was created or covered there before.
        self._made = {path for path in self._made if not path.is_relative_to(target)}
        self._covers = [path for path in self._covers if not path.is_relative_to(target)]

    def add_cover(self, target: PurePosixPath, is_directory: bool) -> None:
        if is_directory:
            self._covers.append(target)
            self._add_arguments("--tmpfs", target)
        else:
            # Not --ro-bind-data: before 0.5.0 only root could read the file.
            self._add_arguments("--ro-bind", self._make_empty_file(), target)

    def add_link(self, target: PurePosixPath, leads_to: Path) -> None:
        self._add_arguments("--symlink", leads_to, target)

    def add_text_file(self, target: PurePosixPath, content: str) -> None:
        self._make_directory(target.parent)
        mode = ("--perms", "0644") if self._program.has_option("--perms") else ()
        self._add_arguments(*mode, "--file", self.open_memory_file(content.encode()), target)

    def add_kernel_files(self, enclosure: Enclosure) -> None:
        """Add them. bwrap leaves /proc/sys writable for files' owner 0, so it is mounted read-only."""
        self._add_arguments("--proc", "/proc")
        for name in PROC_READ_ONLY:
            if Path(name).exists():
                self._add_arguments("--ro-bind", name, name)
        self._add_arguments("--dev", DEVICES)
        self._add_shared_memory(view.limit_shared_memory(enclosure.limits.memory_bytes))
        if devices := () if enclosure.role == "program" else list_device_mounts(enclosure.gpus):
            for folder in sorted({PurePosixPath(device.target).parent for device in devices} - {DEVICES}):
                self._add_arguments("--dir", folder)
            for device in devices:
                # With --bind, the mount would not let anybody open a device.
                self._add_arguments("--dev-bind", device.source, device.target)
            self._add_arguments("--ro-bind", "/sys", "/sys")
        self._add_arguments("--remount-ro", DEVICES)
        if enclosure.role == "grader":
            self._add_processor_topology()

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
            self._add_arguments("--remount-ro", path)

    def _add_shared_memory(self, most_bytes: int) -> None:
        if self._program.has_option("--size"):
            self._add_arguments("--perms", "1777", "--size", str(most_bytes), "--tmpfs", SHARED_MEMORY)
            return
        folder = self._scratch / "shm"
        folder.mkdir(exist_ok=True)
        folder.chmod(0o1777)
        self._add_arguments("--bind", folder, SHARED_MEMORY)

    def _make_empty_file(self) -> Path:
        file = self._scratch / "empty"
        file.touch(exist_ok=True)
        file.chmod(0o444)
        return file

    def _add_processor_topology(self) -> None:
        """Add the cores and memory nodes of the machine: engines such as vLLM bind their threads by them."""
        for name in view.PROCESSORS:
            if Path(name).is_dir():
                self.bind_path(Path(name), PurePosixPath(name))

    def _add_arguments(self, *arguments: str | os.PathLike[str]) -> None:
        self.arguments += [os.fspath(argument) for argument in arguments]

    def _make_directory(self, path: PurePosixPath) -> None:
        for directory in (*reversed(path.parents), path):
            if directory not in self._made:
                self._made.add(directory)
                self._add_arguments("--dir", directory)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for descriptor in self.descriptors:
            os.close(descriptor)


class BwrapStatus:
    """Reads bwrap's status output (JSON lines), above all the pid of the sandbox's first process."""

    def __init__(self) -> None:
        self._reader, self.writer = os.pipe()
        os.set_blocking(self._reader, False)
        self._status = b""

    def kill_sandbox(self, process: "subprocess.Popen[bytes]") -> None:
        """Kill bwrap and with it everything in its pid namespace, and wait until all of it is gone.

        The first process dies with bwrap only once it is set up, so wait for bwrap to report its pid first.
        """
        deadline = time.monotonic() + SECONDS_TO_DIE
        while self._read_first_pid() is None and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.005)
        process.kill()
        process.wait()
        while (first := self._read_first_pid()) is not None and _is_bwrap(first):
            with suppress(ProcessLookupError):
                os.kill(first, signal.SIGKILL)
            if time.monotonic() > deadline:
                raise MachineError(
                    f"The sandbox's first process {first} cannot be killed.", "Look at the output of `dmesg`."
                )
            time.sleep(0.005)

    def _read_first_pid(self) -> int | None:
        with suppress(BlockingIOError):
            self._status += os.read(self._reader, 1 << 16)
        line, end, _ = self._status.partition(b"\n")
        return int(json.loads(line)["child-pid"]) if end else None

    def __enter__(self) -> "BwrapStatus":
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._reader)
        os.close(self.writer)


def _is_bwrap(pid: int) -> bool:
    """Check by name, because another process could have got its pid by now."""
    process = resource_limits.read_process(pid)
    return process is not None and process.name == "bwrap"


SANDBOX: Sandbox = BubblewrapSandbox()
