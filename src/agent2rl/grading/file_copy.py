"""Copy one open file and hash it in the same pass, with shared blocks where the file system can.

A file is hashed while its last chunk is written, and the disk begins to write while the rest is copied.
"""

import ctypes
import hashlib
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from agent2rl.core.unix import O_CLOEXEC, O_NOFOLLOW, fcntl

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
            if written:
                written.result()
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
