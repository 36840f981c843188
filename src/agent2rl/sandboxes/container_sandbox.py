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

import os
import subprocess
import threading
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from agent2rl.core.errors import MachineError
from agent2rl.core.records import Isolation
from agent2rl.core.sandbox import Command, Enclosure, Exit, Role
from agent2rl.sandboxes import container_engine, sandbox_user, selftest
from agent2rl.sandboxes.container_engine import ContainerEngine
from agent2rl.sandboxes.container_staging import StagedContainer, stage_container
from agent2rl.sandboxes.sandbox_user import SandboxUser
from agent2rl.sandboxes.supervise import SandboxStart, make_inside_command, supervise_sandbox
from agent2rl.sandboxes.view import HOSTNAME, WORKSPACE, require_hideable
from agent2rl.system.unix import resource

MORE_MEMORY_BYTES = 256 << 20
"""What the cgroup may hold beside the command's memory and shared memory, so that the guard acts first."""
MOST_OPEN_FILES = 65536
MOST_PIDS = Path("/proc/sys/kernel/pid_max")
ROOT_INSIDE = {
    "no-root": "Rootless Docker maps only its root to your user. This root has no capabilities.",
    **selftest.WRITABLE_DEVICES,
}


@dataclass(frozen=True)
class ContainerSandbox:
    engine: str
    image: str = ""
    """Replaces the host's programs and settings. Empty: those of the host are shown."""

    def workspace(self, workspace: Path) -> PurePosixPath:  # noqa: ARG002 (always the same)
        return WORKSPACE

    def check(self, hidden: tuple[Path, ...] = ()) -> Isolation:
        require_hideable(hidden)
        try:
            engine = container_engine.find_engine(self.engine)
            container_engine.remove_orphans(engine)
            gaps = ROOT_INSIDE if choose_user("agent", engine).uid == 0 else {}
        except MachineError:
            gaps = {}  # the self-test says what is wrong
        name = f"{self.engine}:{self.image}" if self.image else self.engine
        return selftest.run_self_test(name, self, hidden, gaps)

    def run(self, command: Command, enclosure: Enclosure, stop: threading.Event) -> Exit:
        engine = container_engine.find_engine(self.engine)
        user = choose_user(enclosure.role, engine)
        with stage_container(command, enclosure, user, has_own_system=bool(self.image)) as staged:
            image = container_engine.find_image(engine, self.image)
            if self.image:
                staged.view.cover_image(container_engine.list_volumes(engine, image))
            staged.view.make_mount_points()
            arguments = self._make_arguments(engine, user, staged, image)
            with container_engine.created_container(engine, arguments) as container:
                start = SandboxStart(
                    argv=(engine.program, "start", "--attach", "--interactive", container),
                    plan=staged.plan,
                    members=lambda _: staged.ready.list_members(),
                    end=lambda client: _end_container(engine, container, client),
                    environment=container_engine.make_client_environment(),
                    has_stood=staged.ready.has_arrived,
                )
                return supervise_sandbox(start, staged.enclosure, stop)

    def _make_arguments(
        self, engine: ContainerEngine, user: SandboxUser, staged: StagedContainer, image: str
    ) -> list[str]:
        """Return the arguments of `create`, without the container's name."""
        seen, role = staged.view, staged.enclosure.role
        devices = [f"--device={device.source}:{device.target}:rw" for device in seen.devices]
        if self.image and role != "program":
            devices = container_engine.make_gpu_arguments(engine, staged.enclosure.gpus)
        program, *arguments = make_inside_command(role)
        return [
            # No download, no second log without a limit, and no programs that an image runs by
            # itself.
            *("--interactive", "--rm", "--pull=never", "--log-driver=none", "--no-healthcheck"),
            *("--network=none", "--read-only", "--cap-drop=ALL", "--security-opt=no-new-privileges"),
            "--init=false",  # an engine's own first process would adopt daemons, which nothing then counts
            *("--stop-signal=SIGKILL", f"--hostname={HOSTNAME}", f"--workdir={WORKSPACE}"),
            *_make_engine_arguments(engine, user),
            *_make_limit_arguments(engine, staged.enclosure, seen.shared_memory_bytes),
            *seen.make_mount_options(),
            *devices,
            *(f"--entrypoint={program}", image, *arguments),
        ]


def choose_user(role: Role, engine: ContainerEngine) -> SandboxUser:
    if os.geteuid() == 0:
        return sandbox_user.choose_user(role)
    return SandboxUser(0 if engine.is_rootless and not engine.is_podman else os.geteuid(), dropped=False)


def _make_engine_arguments(engine: ContainerEngine, user: SandboxUser) -> list[str]:
    group = user.uid if user.dropped or user.uid == 0 else os.getegid()
    arguments = [f"--user={user.uid}:{group}"]
    if engine.is_podman:
        # Otherwise /run, /tmp, /var/tmp and the image's volumes are writable, and the environment has the
        # caller's proxy.
        arguments += ["--read-only-tmpfs=false", "--image-volume=ignore", "--http-proxy=false"]
        arguments += ["--userns=keep-id"] if engine.is_rootless else []
    elif engine.maps_users:
        # The workspace belongs to a user of the host, so users must be the same inside.
        arguments.append("--userns=host")
    if engine.has_selinux:
        # SELinux would not let a container open the files of the host that are mounted in it.
        arguments.append("--security-opt=label=disable")
    return arguments


def _make_limit_arguments(engine: ContainerEngine, enclosure: Enclosure, shared_bytes: int) -> list[str]:
    """Return the cgroup's limits, as far as the engine can set any, and ulimits that the harness may set."""
    limits, arguments = enclosure.limits, [f"--shm-size={shared_bytes}"]
    memory = limits.memory_bytes + shared_bytes + MORE_MEMORY_BYTES
    if "memory" in engine.controllers:
        # The second is memory and swap together, so there is no swap.
        arguments += [f"--memory={memory}", f"--memory-swap={memory}"]
    if "pids" in engine.controllers:
        arguments.append(f"--pids-limit={sandbox_user.count_threads(limits.processes)}")
    if "cpuset" in engine.controllers:  # a daemon's containers do not inherit the cores of the harness
        arguments.append(f"--cpuset-cpus={','.join(map(str, sorted(os.sched_getaffinity(0))))}")
    # An engine's own defaults may be more than the harness may set. Podman lowers its own to the most pids.
    processes = _cap_ulimit(resource.RLIMIT_NPROC, int(MOST_PIDS.read_text(encoding="ascii")))
    files = _cap_ulimit(resource.RLIMIT_NOFILE, MOST_OPEN_FILES)
    return [*arguments, f"--ulimit=nofile={files}", f"--ulimit=nproc={processes}", "--ulimit=core=0"]


def _cap_ulimit(kind: int, most: int) -> int:
    _, hard = resource.getrlimit(kind)
    return most if hard == resource.RLIM_INFINITY else min(hard, most)


def _end_container(engine: ContainerEngine, container: str, client: "subprocess.Popen[bytes]") -> None:
    # The client is not the container, which would go on without it.
    container_engine.remove_container(engine, container)
    client.kill()
    client.wait()
