"""No isolation at all: the command runs as you, sees what you see and reaches what you reach.

For machines without bubblewrap and for code you trust; the result records it. Limits, deadline, stop, doors
and the clean environment are as in the real sandbox. The end is best effort: processes are found by descent
and by a mark in their environment, so one that clears its environment and leaves its parents survives.
"""

import os
import secrets
import signal
import subprocess
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path, PurePosixPath

from agent2rl.core.errors import UserError
from agent2rl.core.records import Isolation
from agent2rl.core.sandbox import Command, Enclosure, Exit, Mount, Process, Sandbox
from agent2rl.sandboxes import resource_limits, supervise
from agent2rl.sandboxes.supervise import (
    SandboxStart,
    make_inside_command,
    make_inside_plan,
    supervise_sandbox,
)

MARK = "AGENT2RL_LOCAL_SANDBOX"
SECONDS_TO_DIE = 10.0


class LocalSandbox:
    def workspace(self, workspace: Path) -> PurePosixPath:
        return PurePosixPath(workspace.resolve())

    def check(self, hidden: tuple[Path, ...] = ()) -> Isolation:  # noqa: ARG002 (it hides nothing)
        return Isolation(sandbox="local", isolates=False)

    def run(self, command: Command, enclosure: Enclosure, stop: threading.Event) -> Exit:
        enclosure = supervise.resolve_enclosure(enclosure)
        for mount in supervise.collect_mounts(command, enclosure):
            _link_mount(mount, enclosure.workspace)
        home, temporary = (enclosure.scratch / name for name in ("home", "tmp"))
        for directory in (home, temporary):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        family = _ProcessFamily(secrets.token_hex(16))
        marked = replace(command, environment={**command.environment, MARK: family.mark})
        start = SandboxStart(
            argv=make_inside_command(enclosure.role),
            plan={
                **make_inside_plan(marked, str(home), str(temporary)),
                "doors": {door.variable: str(door.socket.resolve()) for door in enclosure.doors},
                "limits": {"RLIMIT_CORE": 0},  # the others count what else this user runs
            },
            members=family.list_members,
            end=family.kill_all,
            directory=enclosure.workspace,
        )
        return supervise_sandbox(start, enclosure, stop)


def _link_mount(mount: Mount, workspace: Path) -> None:
    """A link in the workspace stands for a mount below it; a mount elsewhere must be there already."""
    target, source = PurePosixPath(mount.target), mount.source.resolve()
    place = workspace / target
    if place.resolve() == source or (target.is_absolute() and place.exists()):
        return
    if target.is_absolute():
        raise UserError(
            f"The local sandbox cannot show {source} at {target}.",
            "Use --sandbox bubblewrap, or make that path yourself.",
        )
    with supervise.open_parent(workspace, target) as directory:
        try:
            os.symlink(source, target.name, dir_fd=directory)
        except FileExistsError:
            raise UserError(f"{place} is in the way of a link to {source}.", "Move it away.") from None


class _ProcessFamily:
    """The processes of one run: those below its first, those that carry its mark, and those below them."""

    def __init__(self, mark: str) -> None:
        self.mark = mark

    def list_members(self, first: int) -> list[Process]:
        everyone = resource_limits.list_processes()
        below = resource_limits.find_descendants({first}, everyone)
        known = {first} | {each.pid for each in below}
        astray = {pid for pid in everyone.keys() - known if self._is_marked(pid)}
        lost = resource_limits.find_descendants(astray, everyone)
        return [*below, *(everyone[pid] for pid in astray), *lost]

    def kill_all(self, process: "subprocess.Popen[bytes]") -> None:
        limit = time.monotonic() + SECONDS_TO_DIE
        process.kill()
        while (alive := self.list_members(process.pid)) and time.monotonic() < limit:
            for each in alive:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(each.pid, signal.SIGKILL)
            time.sleep(0.005)
        process.wait()

    def _is_marked(self, pid: int) -> bool:
        with suppress(OSError):
            return f"{MARK}={self.mark}\0".encode() in Path(f"/proc/{pid}/environ").read_bytes()
        return False


SANDBOX: Sandbox = LocalSandbox()
