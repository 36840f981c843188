"""No isolation at all: the command runs as you, sees what you see and reaches what you reach.

For machines without bubblewrap and for code you trust; the result records that it was used. Limits, deadline,
stop, service sockets and the clean environment are as in the real sandbox. Killing is best effort: processes
are found by descent and by a variable in their environment, so a process that clears its environment and
leaves its parents survives.
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

from agent2rl.core.records import Isolation
from agent2rl.core.sandbox import Command, Enclosure, Exit, Process, Sandbox
from agent2rl.sandboxes import resource_limits, supervise
from agent2rl.sandboxes.supervise import (
    SandboxStart,
    make_inside_command,
    make_inside_plan,
    plan_sockets,
    supervise_sandbox,
)

MARK = "AGENT2RL_LOCAL_SANDBOX"
SECONDS_TO_DIE = 10.0


class LocalSandbox:
    def workspace(self, workspace: Path) -> PurePosixPath:
        return PurePosixPath(workspace.resolve())

    def check(self, hidden: tuple[Path, ...] = ()) -> Isolation:  # noqa: ARG002 (nothing is hidden)
        return Isolation(sandbox="local", isolates=False)

    def run(self, command: Command, enclosure: Enclosure, stop: threading.Event) -> Exit:
        enclosure = supervise.resolve_enclosure(enclosure)
        for mount in supervise.collect_mounts(command, enclosure):
            supervise.link_mount(mount, enclosure.workspace, "local")
        home, temporary = (enclosure.scratch / name for name in ("home", "tmp"))
        for directory in (home, temporary):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        family = _ProcessFamily(secrets.token_hex(16))
        marked = replace(command, environment={**command.environment, MARK: family.mark})
        start = SandboxStart(
            argv=make_inside_command(enclosure.role),
            plan={
                **make_inside_plan(marked, str(home), str(temporary), enclosure.python),
                "sockets": plan_sockets(enclosure.sockets),
                "limits": {"RLIMIT_CORE": 0},  # other limits would count this user's other processes too
            },
            members=family.list_members,
            end=family.kill_all,
            directory=enclosure.workspace,
        )
        return supervise_sandbox(start, enclosure, stop)


class _ProcessFamily:
    """The processes of one run: descendants of its first, marked ones, and descendants of those."""

    def __init__(self, mark: str) -> None:
        self.mark = mark

    def list_members(self, first: int) -> list[Process]:
        everyone = resource_limits.list_processes()
        descendants = resource_limits.find_descendants({first}, everyone)
        known = {first} | {process.pid for process in descendants}
        orphans = {pid for pid in everyone.keys() - known if self._is_marked(pid)}
        below_orphans = resource_limits.find_descendants(orphans, everyone)
        return [*descendants, *(everyone[pid] for pid in orphans), *below_orphans]

    def kill_all(self, process: "subprocess.Popen[bytes]") -> None:
        deadline = time.monotonic() + SECONDS_TO_DIE
        process.kill()
        while (alive := self.list_members(process.pid)) and time.monotonic() < deadline:
            for member in alive:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(member.pid, signal.SIGKILL)
            time.sleep(0.005)
        process.wait()

    def _is_marked(self, pid: int) -> bool:
        with suppress(OSError):
            return f"{MARK}={self.mark}\0".encode() in Path(f"/proc/{pid}/environ").read_bytes()
        return False


SANDBOX: Sandbox = LocalSandbox()
