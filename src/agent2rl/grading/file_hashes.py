"""Hash large files once: digests are cached by what identifies a file on its disk.

A cached digest is used only while device, inode, size, and both time stamps of every file are the same, and
blocks all over the files still have the same content. A file that changed within the last seconds is not
cached, because a second change could leave its time stamps as they are.
"""

import hashlib
import os
import stat
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from agent2rl.core.records import Record
from agent2rl.record.files import canonical_json, sha256_file, sha256_text, write_record

SMALL_BYTES = 1 << 20
"""Files below this size are always hashed again."""
BLOCK_BYTES, BLOCKS = 64 << 10, 64
"""Size and number of the blocks of each file that are compared before a cached digest is used."""
SETTLED_SECONDS = 2.0
"""The coarsest time stamps of a file system."""


class FileIdentity(Record):
    device: int
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int


class CachedDigest(Record):
    files: tuple[FileIdentity, ...]
    blocks_sha256: str
    """Digest of the blocks that are compared."""
    digest: str


@dataclass(frozen=True)
class FileHashCache:
    """Digests of large files: FOLDER/NAME.json has one digest of one or more files."""

    folder: Path
    settled_seconds: float = SETTLED_SECONDS
    """How long ago a file must have changed for its digest to be cached."""

    def hash_file(self, path: Path) -> str:
        """Return the sha256 of a file."""
        if path.stat().st_size < SMALL_BYTES:
            return sha256_file(path)
        return self.get_digest("sha256", [path], lambda: sha256_file(path))

    def get_digest(self, kind: str, paths: Sequence[Path], compute: Callable[[], str]) -> str:
        """Return the cached digest of this kind of the files, or compute and cache it."""
        began = time.time()
        before = tuple(_read_identity(path) for path in paths)
        entry = self._entry_path(kind, before)
        blocks = _hash_blocks(paths)
        cached = _load_entry(entry)
        if cached and (cached.files, cached.blocks_sha256) == (before, blocks):
            return cached.digest
        digest = compute()
        settled = all(file.ctime_ns < (began - self.settled_seconds) * 1e9 for file in before)
        if settled and tuple(_read_identity(path) for path in paths) == before:
            with suppress(OSError):  # an unwritable cache must not fail the run
                self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
                write_record(entry, CachedDigest(files=before, blocks_sha256=blocks, digest=digest))
        return digest

    def _entry_path(self, kind: str, files: tuple[FileIdentity, ...]) -> Path:
        places = [[file.device, file.inode] for file in files]
        return self.folder / f"{kind}-{sha256_text(canonical_json(places))[:32]}.json"


def _load_entry(path: Path) -> CachedDigest | None:
    """Return an entry that only this user can have written, or None."""
    with suppress(OSError, ValueError):
        status = path.lstat()
        own = status.st_uid == os.geteuid() and not status.st_mode & 0o022
        if own and stat.S_ISREG(status.st_mode):
            return CachedDigest.model_validate_json(path.read_bytes())
    return None


def _read_identity(path: Path) -> FileIdentity:
    status = path.stat()
    return FileIdentity(
        device=status.st_dev,
        inode=status.st_ino,
        size=status.st_size,
        mtime_ns=status.st_mtime_ns,
        ctime_ns=status.st_ctime_ns,
    )


def _hash_blocks(paths: Sequence[Path]) -> str:
    """Hash evenly spaced blocks of each file, with the first and the last one."""
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            last = max(0, os.fstat(file.fileno()).st_size - BLOCK_BYTES)
            for block in range(BLOCKS):
                file.seek(last * block // (BLOCKS - 1))
                digest.update(file.read(BLOCK_BYTES))
    return digest.hexdigest()
