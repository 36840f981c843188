"""Opens what an agent left below a directory that it could write: no link is followed, all is bounded."""

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


@contextmanager
def open_folder(root: Path, parts: Sequence[str | bytes]) -> Iterator[int]:
    """A descriptor of the directory that the parts lead to."""
    directory = os.open(root, DIRECTORY)
    try:
        for part in parts:
            below = os.open(part, DIRECTORY, dir_fd=directory)
            os.close(directory)
            directory = below
        yield directory
    finally:
        os.close(directory)


def sanitize_line(text: str, most: int) -> str:
    """What an agent wrote, as one line that steers nothing, and cut."""
    cut = text if len(text) <= most else text[: most - 1] + "…"
    return "".join(each if each.isprintable() else " " if each.isspace() else "�" for each in cut)


def read_untrusted_file(root: Path, name: str, most_bytes: int) -> bytes | None:
    """Its first bytes; None where there is no such plain file."""
    *folders, last = PurePosixPath(name).parts
    try:
        with (
            open_folder(root, folders) as directory,
            open(os.open(last, FILE, dir_fd=directory), "rb") as file,
        ):
            return file.read(most_bytes) if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else None
    except OSError:
        return None


def read_untrusted_slice(root: Path, name: str, begin: int, end: int, most_bytes: int) -> bytes:
    """A part of a plain file: its beginning and its end where it is more than so much."""
    *folders, last = PurePosixPath(name).parts
    try:
        with (
            open_folder(root, folders) as directory,
            open(os.open(last, FILE, dir_fd=directory), "rb") as file,
        ):
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return b""
            if end - begin <= most_bytes:
                return os.pread(file.fileno(), max(0, end - begin), begin)
            half = most_bytes // 2
            return os.pread(file.fileno(), half, begin) + b"\n" + os.pread(file.fileno(), half, end - half)
    except (OSError, ValueError):
        return b""
