"""The user of a sandbox's command, and what it owns. Shared by the sandboxes.

If the harness is root, the command gets a user id that nothing else uses and owns everything it may write.
Otherwise it stays the user of the harness, or a user of a namespace.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from agent2rl.core.errors import MachineError
from agent2rl.core.sandbox import Enclosure, Mount, Role
from agent2rl.sandboxes import supervise, view
from agent2rl.sandboxes.start_failures import find_program

DROP = ("--clear-groups", "--no-new-privs", "--inh-caps=-all", "--bounding-set=-all", "--")
ROLES = get_args(Role)


@dataclass(frozen=True)
class SandboxUser:
    """The command's user: its uid inside, and whether a root harness drops to it."""

    uid: int
    dropped: bool

    def make_drop_command(self) -> tuple[str, ...]:
        """Return the words before a command that make it this user without privileges; the first is setpriv,
        which must be visible where it runs. Empty if the command is this user anyway."""
        if not self.dropped:
            return ()
        return (find_program("setpriv"), f"--reuid={self.uid}", f"--regid={self.uid}", *DROP)


def choose_user(role: Role) -> SandboxUser:
    """Return the sandbox's user. For root, its uid is unique to this harness process and role, so that
    neither files nor process limits are shared."""
    if os.geteuid() != 0:
        return SandboxUser(1000, dropped=False)
    number, roles = ROLES.index(role), len(ROLES)
    # The second is for user namespaces of containers, which often have 65536 ids.
    uids = (0x70000000 + roles * os.getpid() + number, 20000 + roles * (os.getpid() % 13000) + number)
    return SandboxUser(choose_mapped_user(uids), dropped=True)


def choose_mapped_user(uids: Iterable[int]) -> int:
    """Return the first uid that this user namespace has."""
    for uid in uids:
        if _is_mapped("uid_map", uid) and _is_mapped("gid_map", uid):
            return uid
    raise MachineError(
        "The harness is root of a user namespace that has no free user id for the sandbox.",
        "Run it as an ordinary user, or map at least 65536 ids into the namespace.",
    )


def _is_mapped(table: str, number: int) -> bool:
    lines = Path("/proc/self", table).read_text(encoding="ascii").splitlines()
    ranges = [(int(first), int(count)) for first, _, count in map(str.split, lines)]
    return any(first <= number < first + count for first, count in ranges)


def prepare_mounts(enclosure: Enclosure, mounts: Iterable[Mount], user: SandboxUser) -> None:
    """Create mount sources and mount points, and make a dropped user the owner of all it may write."""
    writable = [enclosure.workspace, enclosure.scratch]
    for name in ("home", "tmp"):
        (enclosure.scratch / name).mkdir(mode=0o700, parents=True, exist_ok=True)
    for mount in mounts:
        target = view.WORKSPACE / mount.target
        in_workspace = target.is_relative_to(view.WORKSPACE)
        if in_workspace:
            supervise.make_mountpoint(enclosure.workspace, target.relative_to(view.WORKSPACE), mount.source)
        if mount.writable:
            writable.append(mount.source)
        elif user.dropped:
            require_readable(mount.source, view.resolve_existing(enclosure.hidden), recursive=in_workspace)
    if user.dropped:
        for path in writable:
            _change_owner(path, user.uid)
        for each in enclosure.sockets:
            os.lchown(each.socket, user.uid, user.uid)


def require_readable(source: Path, hidden: Iterable[Path], recursive: bool) -> None:
    """Check that other users can read a mount.

    Mounts in the workspace are checked recursively, except for hidden paths. Other mounts hold code: not all
    of it is read, and there may be secrets next to it.
    """
    hidden_below = [path for path in hidden if view.real_path(source) in path.parents]
    contents = [path for path in source.rglob("*") if path.exists()] if recursive else []
    for path in (source, *contents):
        if hidden_below and any(view.real_path(path).is_relative_to(other) for other in hidden_below):
            continue
        needed = 0o005 if path.is_dir() else 0o004
        if path.stat().st_mode & needed != needed:
            raise MachineError(
                f"The sandbox must read {path}, but only root can read it.",
                f"Run `chmod -R o+rX {source}`; its parent directories may stay closed.",
            )


def _change_owner(tree: Path, uid: int) -> None:
    # Not chown: an agent's link may lead anywhere.
    os.lchown(tree, uid, uid)
    for directory, folders, files in os.walk(tree):
        for name in (*folders, *files):
            os.lchown(Path(directory, name), uid, uid)


def make_rlimits(processes: int) -> dict[str, int]:
    return {"RLIMIT_NPROC": count_threads(processes), "RLIMIT_NOFILE": 65536, "RLIMIT_CORE": 0}


def count_threads(processes: int) -> int:
    """Return a generous number of threads: it only has to stop a fork bomb between two limit checks."""
    return 4 * processes + 512 * (os.cpu_count() or 1)
