"""A sandbox in a container of Docker or Podman, with the view and the promises of bubblewrap.

The engine makes the namespaces, the read-only root and the cgroup; `inside.py` is the container's first
process. It adds the sandbox's own system-call filter to the engine's, and the command has no access to it.

    who starts it                     the command's user
    root                              a user id that nothing else uses
    an ordinary user, Docker          that user, because the daemon works as root
    an ordinary user, Podman          that user, in a user namespace (keep-id)
    an ordinary user, rootless Docker that user, called root inside: it maps no other user to the caller

If the harness dies, the container's stdin is closed, and `inside.py` ends the container. Processes, memory
and disk are watched from outside as in bubblewrap. The cgroup's limits are higher, for what that misses.
"""

import csv
import io
import os
import resource
import select
import socket
import struct
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from agent2rl.core.errors import MachineError
from agent2rl.core.records import Isolation
from agent2rl.core.sandbox import Command, Enclosure, Exit, Process
from agent2rl.sandboxes import (
    bubblewrap,
    container_engine,
    resource_limits,
    seccomp,
    selftest,
    supervise,
    view,
)
from agent2rl.sandboxes.bubblewrap import SandboxUser
from agent2rl.sandboxes.container_engine import ContainerEngine
from agent2rl.sandboxes.container_view import ContainerView
from agent2rl.sandboxes.gpu_devices import renumber_visible_gpus
from agent2rl.sandboxes.supervise import SandboxStart

READY = view.SOCKETS / "ready"
MORE_MEMORY_BYTES = 256 << 20
"""What the cgroup may hold beside the command's memory and shared memory, so that the guard acts first."""
MOST_OPEN_FILES = 65536
MOST_PIDS = Path("/proc/sys/kernel/pid_max")
ROOT_INSIDE = {"no-root": "Rootless Docker maps only its root to your user. This root has no capabilities."}


@dataclass(frozen=True)
class ContainerSandbox:
    engine: str
    image: str = ""
    """Replaces the host's programs and settings. Empty: those of the host are shown."""

    def workspace(self, workspace: Path) -> PurePosixPath:  # noqa: ARG002 (always the same)
        return view.WORKSPACE

    def check(self, hidden: tuple[Path, ...] = ()) -> Isolation:
        view.require_hideable(hidden)
        try:
            engine = container_engine.find_engine(self.engine)
            container_engine.remove_orphans(engine)
            gaps = ROOT_INSIDE if choose_user("agent", engine).uid == 0 else {}
        except MachineError:
            gaps = {}  # the self-test says what is wrong
        return selftest.run_self_test(self.engine, self, hidden, gaps)

    def run(self, command: Command, enclosure: Enclosure, stop: threading.Event) -> Exit:
        engine = container_engine.find_engine(self.engine)
        enclosure = supervise.resolve_enclosure(enclosure)
        user = choose_user(enclosure.role, engine)
        mounts = supervise.collect_mounts(command, enclosure)
        command = renumber_visible_gpus(command, enclosure.gpus)
        bubblewrap.prepare_mounts(enclosure, mounts, user)
        with (
            tempfile.TemporaryDirectory(prefix="container-", dir=enclosure.scratch) as folder,
            ReadySocket(Path(folder, "ready"), user) as ready,
        ):
            seen = ContainerView(enclosure.hidden, Path(folder))
            sockets = view.build_view(seen, enclosure, mounts, user.uid, has_own_system=bool(self.image))
            seen.bind_path(ready.path, READY)
            seen.make_mount_points()
            arguments = self._make_arguments(engine, enclosure, user, seen)
            with container_engine.created_container(engine, arguments) as container:
                start = SandboxStart(
                    argv=(engine.program, "start", "--attach", "--interactive", container),
                    plan={
                        **supervise.make_inside_plan(
                            command, str(view.HOME), str(view.TEMPORARY), enclosure.python
                        ),
                        "sockets": sockets,
                        "limits": _make_rlimits(enclosure.limits.processes, user),
                        "filter": seccomp.build_filter().hex(),
                        "ready": str(READY),
                    },
                    members=lambda _: ready.list_members(),
                    end=lambda client: _end_container(engine, container, client),
                    environment=container_engine.make_client_environment(),
                    has_stood=lambda: ready.find_first_pid() is not None,
                )
                return supervise.supervise_sandbox(start, enclosure, stop)

    def _make_arguments(
        self, engine: ContainerEngine, enclosure: Enclosure, user: SandboxUser, seen: ContainerView
    ) -> list[str]:
        """Return the arguments of `create`, without the container's name."""
        bare = enclosure.role == "program"
        gpus = (
            container_engine.make_gpu_arguments(engine, enclosure.gpus) if self.image and not bare else None
        )
        program, *arguments = supervise.make_inside_command(enclosure.role)
        return [
            *("--interactive", "--rm", "--pull=never", "--log-driver=none", "--no-healthcheck"),
            *("--stop-signal=SIGKILL", "--network=none", "--read-only", "--cap-drop=ALL"),
            *(
                "--security-opt=no-new-privileges",
                f"--hostname={view.HOSTNAME}",
                f"--workdir={view.WORKSPACE}",
            ),
            *_make_engine_arguments(engine, user),
            *_make_limit_arguments(engine, enclosure, seen.shared_memory_bytes),
            *_make_mount_arguments(seen),
            *(gpus or [f"--device={device.source}:{device.target}:rw" for device in seen.devices]),
            *(f"--entrypoint={program}", container_engine.find_image(engine, self.image), *arguments),
        ]


def choose_user(role: supervise.Role, engine: ContainerEngine) -> SandboxUser:
    if os.geteuid() == 0:
        return bubblewrap.choose_user(role)
    return SandboxUser(0 if engine.is_rootless and not engine.is_podman else os.geteuid(), dropped=False)


def _make_rlimits(processes: int, user: SandboxUser) -> dict[str, int]:
    """Return the rlimits. That of processes would count the user's others too, if it is not of its own."""
    limits = bubblewrap.make_rlimits(processes)
    return (
        limits if user.dropped else {name: value for name, value in limits.items() if name != "RLIMIT_NPROC"}
    )


def _make_engine_arguments(engine: ContainerEngine, user: SandboxUser) -> list[str]:
    group = user.uid if user.dropped or user.uid == 0 else os.getegid()
    arguments = [f"--user={user.uid}:{group}"]
    if engine.is_podman:
        # Otherwise /run, /tmp and /var/tmp are writable, and the caller's proxy is in the environment.
        arguments += ["--read-only-tmpfs=false", "--http-proxy=false"]
        arguments += ["--userns=keep-id"] if engine.is_rootless else []
    elif engine.maps_users:
        arguments.append("--userns=host")
    if engine.has_selinux:
        arguments.append("--security-opt=label=disable")
    return arguments


def _make_limit_arguments(engine: ContainerEngine, enclosure: Enclosure, shared_bytes: int) -> list[str]:
    """Return the cgroup's limits, as far as the engine can set any, and ulimits that the harness may set."""
    limits, arguments = enclosure.limits, [f"--shm-size={shared_bytes}"]
    memory = limits.memory_bytes + shared_bytes + MORE_MEMORY_BYTES
    if "memory" in engine.controllers:
        arguments += [f"--memory={memory}", f"--memory-swap={memory}"]
    if "pids" in engine.controllers:
        arguments.append(f"--pids-limit={bubblewrap.count_threads(limits.processes)}")
    if "cpuset" in engine.controllers:  # a daemon's containers do not inherit the cores of the harness
        arguments.append(f"--cpuset-cpus={','.join(map(str, sorted(os.sched_getaffinity(0))))}")
    # An engine's own defaults may be more than the harness may set. Podman lowers its own to the most pids.
    processes = _cap_ulimit(resource.RLIMIT_NPROC, int(MOST_PIDS.read_text(encoding="ascii")))
    files = _cap_ulimit(resource.RLIMIT_NOFILE, MOST_OPEN_FILES)
    return [*arguments, f"--ulimit=nofile={files}", f"--ulimit=nproc={processes}", "--ulimit=core=0"]


def _cap_ulimit(kind: int, most: int) -> int:
    _, hard = resource.getrlimit(kind)
    return most if hard == resource.RLIM_INFINITY else min(hard, most)


def _make_mount_arguments(seen: ContainerView) -> list[str]:
    return [
        _format_mount({"type": "bind", "src": str(bind.source), "dst": str(target)}, bind.writable)
        for target, bind in sorted(seen.binds.items(), key=lambda item: (len(item[0].parts), item[0]))
    ]


def _format_mount(fields: Mapping[str, str], writable: bool) -> str:
    """Return a mount option, which is a line of CSV: a path may contain commas."""
    line = io.StringIO()
    values = [f"{name}={value}" for name, value in fields.items()]
    csv.writer(line, lineterminator="").writerow([*values, *([] if writable else ["readonly"])])
    return f"--mount={line.getvalue()}"


class ReadySocket:
    """A socket to which `inside.py` connects before it starts the command. So its pid is known too."""

    def __init__(self, path: Path, user: SandboxUser) -> None:
        self.path = path
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.setblocking(False)
        self._first_pid: int | None = None
        with _open_short(path.parent) as short:
            self._listener.bind(f"{short}/{path.name}")
        self._listener.listen(1)
        if user.dropped:
            os.chown(path, user.uid, user.uid)

    def find_first_pid(self) -> int | None:
        """Return the pid of `inside.py`; 0 if it has none here, None before it is ready."""
        if self._first_pid is None and select.select([self._listener], [], [], 0)[0]:
            link, _ = self._listener.accept()
            with link:
                credentials = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
            self._first_pid = int(struct.unpack("3i", credentials)[0])
        return self._first_pid

    def list_members(self) -> list[Process]:
        first = self.find_first_pid()
        if first is None:
            return []
        if first == 0:
            raise MachineError(
                "The container's processes are not visible to the harness, so it cannot limit them.",
                "Start agent2rl on the machine of the container engine's daemon, not in another container.",
            )
        return resource_limits.find_descendants({first}, resource_limits.list_processes())

    def __enter__(self) -> "ReadySocket":
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()


@contextmanager
def _open_short(directory: Path) -> Iterator[str]:
    """Yield a short name of a directory: the kernel takes at most 107 characters for a socket's path."""
    descriptor = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def _end_container(engine: ContainerEngine, container: str, client: "subprocess.Popen[bytes]") -> None:
    container_engine.remove_container(engine, container)
    client.kill()
    client.wait()
