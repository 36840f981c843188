"""A container of Apptainer, as on clusters: apptainer, or apptainer:IMAGE for the programs of an image.

Apptainer has no daemon: the container is a child of the harness, and belongs to its user. Without an image
its root is a directory of the run, with the links of the host's root directory and mount points. `inside.py`
is the first process of its pid namespace, so the command can neither stop nor kill it, and all ends with it.

    who starts it        the command's user
    root                 a user id that nothing else uses
    an ordinary user     that user, in a user namespace or by Apptainer's setuid program

There is no cgroup of its own; on a cluster it is in the job's. `list_gaps` names what it does not promise.
"""

import functools
import os
import shutil
import signal
import subprocess
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from agent2rl.core.errors import MachineError, UserError
from agent2rl.core.records import Isolation
from agent2rl.core.sandbox import Command, Enclosure, Exit, Process, Sandbox
from agent2rl.sandboxes import resource_limits, sandbox_user, selftest
from agent2rl.sandboxes.container_engine import ROOT_DIRECTORIES, list_root_links
from agent2rl.sandboxes.container_staging import StagedContainer, stage_container
from agent2rl.sandboxes.sandbox_user import SandboxUser
from agent2rl.sandboxes.start_failures import NEWER_APPTAINER
from agent2rl.sandboxes.supervise import SandboxStart, make_inside_command, supervise_sandbox
from agent2rl.sandboxes.view import HOSTNAME, WORKSPACE, require_hideable

# Without --no-eval a shell would evaluate what arguments and variables say.
FLAGS = (
    *("--containall", "--no-eval", "--no-init", "--no-privs", "--no-home", "--uts", "--hostname", HOSTNAME),
    *("--no-mount", "home,tmp,cwd,hostfs,bind-paths,sys", "--net", "--network", "none"),
    *("--pwd", str(WORKSPACE)),
)
NEWEST_OPTIONS = ("--no-eval", "bind-paths")
"""Of 1.1 and 1.2. Without the second, directories that the site binds in every container would be visible."""
PASSED_VARIABLES = ("PATH", "HOME", "APPTAINER_CONFIGDIR", "APPTAINER_TMPDIR", "APPTAINER_CACHEDIR")
SECONDS_TO_DIE = 30.0
PAUSE_SECONDS = 0.005


@dataclass(frozen=True)
class ApptainerSandbox:
    image: str = ""
    """Replaces the host's programs and settings. Empty: those of the host are shown."""

    def workspace(self, workspace: Path) -> PurePosixPath:  # noqa: ARG002 (always the same)
        return WORKSPACE

    def check(self, hidden: tuple[Path, ...] = ()) -> Isolation:
        require_hideable(hidden)
        gaps = {} if os.geteuid() == 0 else selftest.WRITABLE_DEVICES
        name = f"apptainer:{self.image}" if self.image else "apptainer"
        return selftest.run_self_test(name, self, hidden, gaps)

    def run(self, command: Command, enclosure: Enclosure, stop: threading.Event) -> Exit:
        # It would be read as an option.
        if self.image.startswith("-"):
            raise UserError(f"{self.image!r} is not the name of an image.")
        program = _find_apptainer()
        user = _choose_user(enclosure)
        with stage_container(command, enclosure, user, has_own_system=bool(self.image)) as staged:
            image = self.image or str(_make_root(staged))
            start = SandboxStart(
                argv=(
                    *(program, "--silent", "exec", *FLAGS, *_make_user_flags(user)),
                    *staged.view.make_mount_options(),
                    *(f"--bind={device.source}" for device in staged.view.devices),
                    image,
                    *make_inside_command(enclosure.role),
                ),
                plan=staged.plan,
                members=lambda _: staged.ready.list_members(),
                end=lambda process: _end_apptainer(process, staged),
                environment={name: os.environ[name] for name in PASSED_VARIABLES if name in os.environ},
                has_stood=staged.ready.has_arrived,
            )
            return supervise_sandbox(start, staged.enclosure, stop)


def parse(image: str) -> Sandbox:
    return ApptainerSandbox(image)


def _find_apptainer() -> str:
    if program := shutil.which("apptainer") or shutil.which("singularity"):
        _require_options(program)
        return program
    raise MachineError(
        "The sandbox needs the program apptainer, which is not installed.",
        "On a cluster: `module load apptainer`, or ask its administrators. Elsewhere: "
        "https://apptainer.org/docs/admin/latest/installation.html",
    )


@functools.cache
def _require_options(program: str) -> None:
    """Raise MachineError if it lacks one of `NEWEST_OPTIONS`. It would only warn of an unknown mount."""
    help_text = _ask_program(program, "exec", "--help")
    missing = [option for option in NEWEST_OPTIONS if option not in help_text]
    if help_text and missing:
        version = _ask_program(program, "--version")
        raise MachineError(
            f"{version} is too old: it does not have {' and '.join(missing)}.", NEWER_APPTAINER
        )


def _ask_program(*argv: str) -> str:
    return subprocess.run(argv, capture_output=True, text=True, check=False).stdout.strip()


def _choose_user(enclosure: Enclosure) -> SandboxUser:
    if os.geteuid() == 0:
        return sandbox_user.choose_user(enclosure.role)
    return SandboxUser(os.geteuid(), dropped=False)


def _make_user_flags(user: SandboxUser) -> tuple[str, ...]:
    return (f"--security=uid:{user.uid}", f"--security=gid:{user.uid}:{user.uid}") if user.dropped else ()


def _make_root(staged: StagedContainer) -> Path:
    """Create the directory that becomes the container's root, and return it."""
    staged.folder.chmod(0o755)
    for name in ROOT_DIRECTORIES:
        (staged.folder / name).mkdir()
        (staged.folder / name).chmod(0o755)
    for name, target in list_root_links():
        (staged.folder / name).symlink_to(target)
    staged.view.make_mount_points(staged.folder)
    return staged.folder


def _end_apptainer(process: "subprocess.Popen[bytes]", staged: StagedContainer) -> None:
    """Kill the first process inside and with it its pid namespace, then all that is left of Apptainer."""
    deadline = time.monotonic() + SECONDS_TO_DIE
    while left := _list_left(process.pid, staged):
        for each in left:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(each.pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            raise MachineError(
                f"The container's process {left[0].pid} cannot be killed.", "Look at the output of `dmesg`."
            )
        time.sleep(PAUSE_SECONDS)
    process.kill()
    process.wait()


def _list_left(started: int, staged: StagedContainer) -> list[Process]:
    first = staged.ready.find_first()
    roots = {started} | ({first.pid} if first else set())
    return [
        *([first] if first else ()),
        *resource_limits.find_descendants(roots, resource_limits.list_processes()),
    ]


SANDBOX: Sandbox = ApptainerSandbox()
