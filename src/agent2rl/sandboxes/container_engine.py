"""The command line of a container engine: Docker, or Podman, which takes the same commands.

The engine makes containers out of an image. Without an image of the user's it is a tiny one: empty
directories, and the links of the host's root directory such as /bin -> usr/bin. Everything else is mounted.

A container's name says which harness made it, so that the next one removes what a crash left behind:
`agent2rl-OWNER-PID-START-RANDOM`, with the harness's pid and start time. OWNER is a hash of its machine, user
and pid namespace: a daemon may serve others, whose processes this harness cannot see.
"""

import functools
import hashlib
import io
import json
import os
import re
import secrets
import shutil
import subprocess
import tarfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from agent2rl.core.errors import MachineError, UserError
from agent2rl.sandboxes import start_failures, view
from agent2rl.sandboxes.supervise import UMASK

PASSED_VARIABLES = (
    *("PATH", "HOME", "TMPDIR", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "XDG_DATA_HOME"),
    *("DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG", "DOCKER_CERT_PATH", "DOCKER_TLS_VERIFY"),
    "DOCKER_API_VERSION",
    *("CONTAINER_HOST", "CONTAINERS_CONF", "CONTAINERS_STORAGE_CONF", "DBUS_SESSION_BUS_ADDRESS"),
)
"""Variables that an engine's client reads. It would hand proxies to the container, so they are left out."""
NOT_STARTED = "The sandbox did not start: "
COMMAND_SECONDS = 120.0
SECONDS_TO_DIE = 30.0
START_FIELD = 19
"""The start time in /proc/PID/stat, counted after the name."""
ROOT_DIRECTORIES = ("dev", "etc", "home", "proc", "run", "sys", "tmp", "usr", "workspace")
CDI_FOLDERS = (Path("/etc/cdi"), Path("/var/run/cdi"))
GONE = re.compile(r"no such container|no container with|already in progress|does not exist", re.IGNORECASE)


@dataclass(frozen=True)
class ContainerEngine:
    name: str
    program: str
    is_podman: bool
    is_rootless: bool
    maps_users: bool
    """Whether the daemon gives containers a user namespace, unless told otherwise."""
    has_selinux: bool
    controllers: frozenset[str]
    """Those of `memory`, `pids` and `cpuset` that containers can be limited by."""

    def run(self, *arguments: str, content: bytes | None = None) -> str:
        """Return what a command of the engine prints; raise MachineError with its words if it fails."""
        return run_engine(self.program, *arguments, content=content)


def find_engine(name: str) -> ContainerEngine:
    """Return the engine of this name, if it is installed and answers."""
    program = shutil.which(name)
    if program is None:
        raise start_failures.build_missing_program(name)
    return _ask_engine(name, program, tuple(make_client_environment().items()))


@functools.cache
def _ask_engine(name: str, program: str, _: tuple[tuple[str, str], ...]) -> ContainerEngine:
    """Ask an engine what it can do. Cached, but not its errors: a daemon may be started meanwhile."""
    facts = json.loads(run_engine(program, "info", "--format", "{{json .}}"))
    read = _read_podman_facts if "host" in facts else _read_docker_facts
    return read(name, program, facts)


def _read_podman_facts(name: str, program: str, facts: Mapping[str, Any]) -> ContainerEngine:
    host = facts["host"]
    if host.get("serviceIsRemote"):
        raise MachineError(f"{NOT_STARTED}podman works on another machine here.")
    rootless = bool(host["security"]["rootless"])
    # Without cgroups of version 2, an ordinary user's containers have no limits.
    limited = not rootless or host.get("cgroupVersion") == "v2"
    return ContainerEngine(
        name=name,
        program=program,
        is_podman=True,
        is_rootless=rootless,
        maps_users=False,
        has_selinux=bool(host["security"].get("selinuxEnabled")),
        controllers=frozenset(host.get("cgroupControllers") or ()) if limited else frozenset(),
    )


def _read_docker_facts(name: str, program: str, facts: Mapping[str, Any]) -> ContainerEngine:
    if errors := facts.get("ServerErrors"):
        raise MachineError(f"{NOT_STARTED}{' '.join(errors)}", start_failures.CHECK_HINT)
    options = {part for option in facts.get("SecurityOptions") or () for part in option.split(",")}
    fields = {"memory": "MemoryLimit", "pids": "PidsLimit", "cpuset": "CPUSet"}
    return ContainerEngine(
        name=name,
        program=program,
        is_podman=False,
        is_rootless="name=rootless" in options,
        maps_users="name=userns" in options,
        has_selinux="name=selinux" in options,
        controllers=frozenset(each for each, field in fields.items() if facts.get(field)),
    )


def make_client_environment() -> dict[str, str]:
    return {name: os.environ[name] for name in PASSED_VARIABLES if name in os.environ}


def run_engine(program: str, *arguments: str, content: bytes | None = None) -> str:
    try:
        ended = subprocess.run(
            [program, *arguments],
            input=content or b"",
            capture_output=True,
            env=make_client_environment(),
            timeout=COMMAND_SECONDS,
            start_new_session=True,  # Ctrl-C at a terminal is for the harness alone
            umask=UMASK,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise MachineError(
            f"`{Path(program).name} {arguments[0]}` did not answer within {COMMAND_SECONDS:g} s.",
            "Look at the log of its daemon.",
        ) from None
    if ended.returncode != 0:
        words = _select_words(ended.stderr.decode(errors="replace")) or "it printed no reason."
        raise MachineError(f"{NOT_STARTED}{words}", start_failures.CHECK_HINT)
    return ended.stdout.decode(errors="replace").strip()


def _select_words(text: str) -> str:
    """Return an engine's message without warnings and the advice to read its manual."""
    lines = [line.strip() for line in text.splitlines()]
    noise = ("See 'docker ", "Run 'docker ", "time=", "Resource limits are not supported")
    errors = [line for line in lines if line and not line.startswith(noise)]
    return " ".join(errors or lines)


# Images


def find_image(engine: ContainerEngine, image: str) -> str:
    """Return the id of an image on this machine; the empty name is the image with nothing in it."""
    if not image:
        return _find_root_image(engine, make_root_archive())
    # It would be read as an option.
    if image.startswith("-"):
        raise UserError(f"{image!r} is not the name of an image.")
    try:
        return _read_image_id(engine, image)
    except MachineError as error:
        raise UserError(
            f"The image {image!r} is not on this machine.", f"Get it: {engine.name} pull {image}"
        ) from error


@functools.cache
def _find_root_image(engine: ContainerEngine, archive: bytes) -> str:
    # Named after its content, so that another version of agent2rl makes one of its own.
    name = f"agent2rl-root:{hashlib.sha256(archive).hexdigest()[:16]}"
    try:
        return _read_image_id(engine, name)
    except MachineError:
        engine.run("import", "-", name, content=archive)
        return _read_image_id(engine, name)


def _read_image_id(engine: ContainerEngine, image: str) -> str:
    return engine.run("image", "inspect", "--format", "{{.Id}}", image)


def list_volumes(engine: ContainerEngine, image: str) -> list[PurePosixPath]:
    """Return the directories of an image that the engine would make writable, whatever its root is."""
    if engine.is_podman:  # it is told to ignore them
        return []
    volumes = json.loads(engine.run("image", "inspect", "--format", "{{json .Config.Volumes}}", image)) or {}
    return [PurePosixPath(volume) for volume in sorted(volumes)]


def make_root_archive() -> bytes:
    """Return a tar file of the root directory that containers begin with."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name in ROOT_DIRECTORIES:
            directory = tarfile.TarInfo(name)
            directory.type, directory.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(directory)
        for name, target in list_root_links():
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, target
            archive.addfile(link)
    return stream.getvalue()


def list_root_links() -> list[tuple[str, str]]:
    """Return the links of the host's root directory to its programs and libraries."""
    paths = [Path(name) for name in view.SYSTEM]
    return [(path.name, str(path.readlink())) for path in paths if path.is_symlink()]


def make_gpu_arguments(
    engine: ContainerEngine,
    gpus: Sequence[str] | None,
    devices: Path = Path("/dev"),
    cdi_folders: Sequence[Path] = CDI_FOLDERS,
) -> list[str]:
    """Return arguments by which the vendor's toolkit shows GPUs and the driver's libraries in an image."""
    names = ["all"] if gpus is None else list(gpus)
    if not names or not (devices / "nvidiactl").exists():
        return []
    if engine.is_podman or any(any(folder.glob("nvidia*")) for folder in cdi_folders):
        return [f"--device=nvidia.com/gpu={name}" for name in names]
    return ["--gpus", "all" if gpus is None else f'"device={",".join(names)}"']


# Containers


def name_container() -> str:
    return f"{_name_harness(os.getpid())}-{secrets.token_hex(6)}"


def _name_harness(pid: int) -> str:
    """Return the start of the names of a live harness's containers; raise OSError if it is gone."""
    namespace = Path("/proc/self/ns/pid").stat().st_ino  # on every machine, the first one has the same
    owner = hashlib.sha256(f"{os.uname().nodename} {os.getuid()} {namespace}".encode()).hexdigest()[:12]
    status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    started = status.rpartition(")")[2].split()[START_FIELD]
    return f"agent2rl-{owner}-{pid}-{started}"


@contextmanager
def created_container(engine: ContainerEngine, arguments: Iterable[str]) -> Iterator[str]:
    """Create a container and yield its name. It is removed on errors; else the caller does it."""
    name = name_container()
    try:
        engine.run("create", "--name", name, *arguments)
        yield name
    except BaseException:
        remove_container(engine, name)
        raise


def remove_container(engine: ContainerEngine, name: str) -> None:
    """Kill a container's processes and remove it, unless it is gone."""
    deadline = time.monotonic() + SECONDS_TO_DIE
    while True:
        try:
            engine.run("rm", "--force", "--volumes", name)
        except MachineError as error:
            if GONE.search(error.message):
                return
            # Podman fails if the container ends by itself at this moment.
            if time.monotonic() > deadline:
                reason = error.message.removeprefix(NOT_STARTED)
                raise MachineError(f"The container {name} cannot be removed: {reason}") from error
            time.sleep(0.1)
        else:
            return


def remove_orphans(engine: ContainerEngine) -> None:
    """Remove containers of this user's harnesses on this machine that are gone."""
    harness = _name_harness(os.getpid())
    prefix = harness.rsplit("-", 2)[0]
    names = engine.run("ps", "--all", "--filter", f"name={prefix}-", "--format", "{{.Names}}").split()
    for name in names:
        # The engine finds the prefix anywhere in a name.
        owner = name.rpartition("-")[0]
        if owner.startswith(f"{prefix}-") and not _is_alive(owner):
            remove_container(engine, name)


def _is_alive(harness: str) -> bool:
    pid = harness.split("-")[2]
    try:
        return pid.isdecimal() and _name_harness(int(pid)) == harness
    except OSError:
        return False
