"""A key of this user, kept in a cache: what it signs was written by this user, and not changed since."""

import os
import secrets
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

KEY_BYTES = 32


def ensure_signing_key(path: Path) -> bytes:
    """Return the key, and create it if there is none."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    return read_signing_key(path) or _make_signing_key(path)


def read_signing_key(path: Path) -> bytes | None:
    """Return the key, or None if it is missing, incomplete, not ours, or accessible to others."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with open(descriptor, "rb") as file:
        file_status = os.fstat(descriptor)
        private = stat.S_ISREG(file_status.st_mode) and not file_status.st_mode & 0o077
        key = file.read(KEY_BYTES + 1) if private and file_status.st_uid == os.geteuid() else b""
    return key if len(key) == KEY_BYTES else None


def _make_signing_key(path: Path) -> bytes:
    """Create a new key, unless another run has just created one."""
    descriptor, made = tempfile.mkstemp(prefix=".key-", dir=path.parent)  # readable only by its owner
    try:
        with open(descriptor, "wb") as file:
            file.write(secrets.token_bytes(KEY_BYTES))
            file.flush()
            os.fsync(descriptor)
        # A link appears complete, and not where there is one: two runs that start at once share one
        # key.
        with suppress(FileExistsError):
            os.link(made, path)
        # Whatever is there is not a key that this user alone knows, so it gives way.
        if (key := read_signing_key(path)) is None:
            Path(made).replace(path)
            key = read_signing_key(path)
    finally:
        Path(made).unlink(missing_ok=True)
    if key is None:
        raise OSError(f"{path} cannot be made private")
    return key
