"""Hash large files once: in the same pass as copying them, or cached by what identifies a file on its disk.

A cached digest is used only while device, inode, size, and both time stamps of every file are the same, and
blocks all over the files still have the same content. A file that changed within the last seconds is not
cached, because a second change could leave its time stamps as they are.
"""

import ctypes
import hashlib
import os
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from agent2rl.core.records import Record
from agent2rl.record.files import canonical_json, sha256_file, sha256_text, write_record
from agent2rl.system.unix import O_CLOEXEC, O_NOFOLLOW, fcntl

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


class CachedFileHash(Record):
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
        # Looked at again: the digest of a file that changed while it was hashed means nothing.
        if settled and tuple(_read_identity(path) for path in paths) == before:
            with suppress(OSError):  # an unwritable cache must not fail the run
                self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
                write_record(entry, CachedFileHash(files=before, blocks_sha256=blocks, digest=digest))
        return digest

    def _entry_path(self, kind: str, files: tuple[FileIdentity, ...]) -> Path:
        # By place alone, so that the entry of a changed file replaces the one before.
        places = [[file.device, file.inode] for file in files]
        return self.folder / f"{kind}-{sha256_text(canonical_json(places))[:32]}.json"


def _load_entry(path: Path) -> CachedFileHash | None:
    """Return an entry that only this user can have written, or None."""
    with suppress(OSError, ValueError):
        status = path.lstat()
        own = status.st_uid == os.geteuid() and not status.st_mode & 0o022
        if own and stat.S_ISREG(status.st_mode):
            return CachedFileHash.model_validate_json(path.read_bytes())
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


# Copy one open file and hash it in the same pass, with shared blocks where the file system can.
#
# A file is hashed while its last chunk is written, and the disk begins to write while the rest is copied.


CHUNK = 4 * 2**20
FICLONE = 0x40049409
"""The ioctl that lets one file share the blocks of another, if the filesystem supports it."""
COPY = os.O_RDWR | os.O_CREAT | os.O_EXCL | O_NOFOLLOW | O_CLOEXEC
FILE_MODE = 0o644
"""Set despite the umask: the grading child may be another user. The run directory keeps all others out."""
SYNC_FILE_RANGE_WRITE = 2


class CopyCancelled(Exception):
    """Another file of the same submission could not be copied."""


def copy_and_hash(source: int, target: Path, size: int, cancelled: threading.Event) -> str | None:
    """Copy a file and return its sha256, or None if its size is not exactly `size` bytes."""
    copy = os.open(target, COPY)
    try:
        os.fchmod(copy, FILE_MODE)
        if share_blocks(source, copy):
            # The copy is hashed and not the source, which the agent may change in this moment.
            sha256 = _hash_chunks(_read_chunks(copy, size, cancelled), size, lambda _: None)
        else:
            sha256 = _hash_chunks(
                _read_chunks(source, size, cancelled), size, lambda chunk: _write_chunk(copy, chunk)
            )
        os.fsync(copy)  # the copy must survive a power loss before the submission is acknowledged
    finally:
        os.close(copy)
    return sha256


def share_blocks(source: int, target: int) -> bool:
    """Make the empty target share the source's blocks, and return whether the file system can do that."""
    try:
        fcntl.ioctl(target, FICLONE, source)
    except OSError:
        return False
    return True


def can_share_blocks(directory: Path) -> bool:
    """Return whether copies in a directory share blocks; False if nothing can be written there."""
    try:
        with tempfile.TemporaryFile(dir=directory) as source, tempfile.TemporaryFile(dir=directory) as copy:
            source.write(bytes(4096))
            source.flush()
            return share_blocks(source.fileno(), copy.fileno())
    except OSError:
        return False


def _read_chunks(source: int, size: int, cancelled: threading.Event) -> Iterator[bytes]:
    """Yield the file's content until it ends, or until there is more than `size` bytes."""
    count = 0
    while count <= size and (chunk := os.read(source, CHUNK)):
        if cancelled.is_set():
            raise CopyCancelled
        count += len(chunk)
        yield chunk


def _hash_chunks(chunks: Iterator[bytes], size: int, write: Callable[[bytes], None]) -> str | None:
    """Hash each chunk while it is written on another thread: both release the interpreter's lock."""
    digest, count = hashlib.sha256(), 0
    written: Future[None] | None = None
    with ThreadPoolExecutor(1, "freeze-writer") as writer:
        for chunk in chunks:
            # One write at a time keeps the order, and at most two chunks in memory.
            if written:
                written.result()
            # A file of one chunk has nothing to be hashed beside its writing.
            if size > CHUNK:
                written = writer.submit(write, chunk)
            else:
                write(chunk)
            digest.update(chunk)
            count += len(chunk)
        if written:
            written.result()
    return digest.hexdigest() if count == size else None


def _write_chunk(target: int, chunk: bytes) -> None:
    rest = memoryview(chunk)
    while rest:
        rest = rest[os.write(target, rest) :]
    _start_writeback(target, len(chunk))


def _start_writeback(target: int, size: int) -> None:
    """Let the disk begin with the last `size` bytes. Else fsync waits for everything at the end, because the
    kernel begins only when gigabytes are unwritten."""
    if _SYNC_FILE_RANGE:
        begin = os.lseek(target, 0, os.SEEK_CUR) - size
        _SYNC_FILE_RANGE(target, begin, size, SYNC_FILE_RANGE_WRITE)  # an error only costs time


_SYNC_FILE_RANGE = getattr(ctypes.CDLL(None), "sync_file_range", None) if os.name == "posix" else None
if _SYNC_FILE_RANGE:
    _SYNC_FILE_RANGE.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
