"""Lets one more user pass through closed directories while a sandbox runs.

A sandbox without namespaces uses the host's paths. If its command has a user of its own, this user must be
able to enter every parent directory of what it may open, also those of mode 0700. It gets just that, by an
access control list (ACL): no right to list the directory, and no right for anybody else. The right is taken
away when the sandbox ends.
"""

import errno
import fcntl
import os
import struct
import threading
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from agent2rl.core.errors import MachineError

ACL = "system.posix_acl_access"
VERSION = 2
OWNER, USER, GROUP_OWNER, GROUP, MASK, OTHERS = 0x01, 0x02, 0x04, 0x08, 0x10, 0x20
NOBODY = 0xFFFFFFFF
PASS = 0o1

_lock = threading.Lock()
_uses: Counter[tuple[Path, int]] = Counter()
"""How many sandboxes of this process use a right: a path and a user."""


@dataclass(frozen=True, order=True)
class AclEntry:
    tag: int
    name: int
    """A user's or group's number; NOBODY for the other tags."""
    rights: int


@contextmanager
def let_user_pass(uid: int, paths: Collection[Path]) -> Iterator[None]:
    """Let a user enter all parent directories of these paths inside the context."""
    granted: list[Path] = []
    try:
        for directory in _list_parents(paths):
            if not directory.stat().st_mode & PASS:
                _add_use(directory, uid)
                granted.append(directory)
        yield
    finally:
        for directory in reversed(granted):
            _drop_use(directory, uid)


def _list_parents(paths: Collection[Path]) -> list[Path]:
    """Return every directory on the way to these paths, also where the way leads through links."""
    on_the_way = {Path(os.path.realpath(parent)) for path in paths for parent in path.absolute().parents}
    real = {Path(os.path.realpath(path)) for path in paths}
    return sorted(on_the_way | {parent for path in (*on_the_way, *real) for parent in path.parents})


def _add_use(directory: Path, uid: int) -> None:
    with _lock:
        if not _uses[directory, uid]:
            _change_rights(directory, uid, PASS)
        _uses[directory, uid] += 1


def _drop_use(directory: Path, uid: int) -> None:
    with _lock:
        _uses[directory, uid] -= 1
        if not _uses[directory, uid]:
            del _uses[directory, uid]
            with suppress(FileNotFoundError):
                _change_rights(directory, uid, None)


def _change_rights(directory: Path, uid: int, rights: int | None) -> None:
    """Set a user's rights on a directory, or remove them (None). Other processes may do so too."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        entries = [entry for entry in read_acl(descriptor) if (entry.tag, entry.name) != (USER, uid)]
        if rights is not None:
            entries.append(AclEntry(USER, uid, rights))
        _write_acl(descriptor, entries)
    except OSError as error:
        if error.errno not in (errno.ENOTSUP, errno.EPERM):
            raise
        raise MachineError(
            f"The sandbox's user must pass through {directory}, but its file system has no access control "
            "lists.",
            f"Run `chmod o+x {directory}`, or keep runs and the cache where everybody can enter.",
        ) from error
    finally:
        os.close(descriptor)


def read_acl(descriptor: int) -> list[AclEntry]:
    """Return the entries of a directory; those of its mode if it has no list."""
    try:
        content = os.getxattr(descriptor, ACL)
    except OSError as error:
        if error.errno != errno.ENODATA:
            raise
        mode = os.fstat(descriptor).st_mode
        tags = ((OWNER, 6), (GROUP_OWNER, 3), (OTHERS, 0))
        return [AclEntry(tag, NOBODY, mode >> shift & 0o7) for tag, shift in tags]
    return [AclEntry(tag, name, rights) for tag, rights, name in struct.iter_unpack("<HHI", content[4:])]


def _write_acl(descriptor: int, entries: list[AclEntry]) -> None:
    """Write the entries. The kernel turns a list without named users into the directory's mode.

    A list with named users must have a mask, which limits them. One that exists is kept, and lets users pass.
    """
    masks = [entry.rights | PASS for entry in entries if entry.tag == MASK]
    entries = [entry for entry in entries if entry.tag != MASK]
    if any(entry.tag in (USER, GROUP) for entry in entries):
        group = next(entry.rights for entry in entries if entry.tag == GROUP_OWNER)
        entries.append(AclEntry(MASK, NOBODY, masks[0] if masks else group | PASS))
    packed = (struct.pack("<HHI", entry.tag, entry.rights, entry.name) for entry in sorted(entries))
    os.setxattr(descriptor, ACL, struct.pack("<I", VERSION) + b"".join(packed))
