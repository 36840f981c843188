"""Write files and folders atomically and durably, and hash them."""

import errno
import hashlib
import io
import json
import os
import shutil
import stat
import subprocess
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from agent2rl.core.errors import UserError
from agent2rl.system.unix import O_DIRECTORY, O_NOCTTY, O_NONBLOCK

MOST_RECORD_BYTES = 1 << 30
"""Largest file that is read into memory as a whole."""


def canonical_json(value: Any) -> str:
    """Return the canonical JSON of a value: the same bytes on every machine."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def canonical_json_line(record: BaseModel) -> str:
    """Return a record as one line of canonical JSON."""
    return canonical_json(record.model_dump()) + "\n"


def sha256_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def open_regular_file(path: Path) -> io.BufferedReader:
    """Open a regular file for reading; anything else is an OSError.

    A run directory may be somebody else's. A pipe in it would block its reader, and a device has no end.
    """
    file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | O_NONBLOCK | O_NOCTTY))  # noqa: SIM115
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return file


def require_no_link(*paths: Path) -> None:
    """Raise UserError if something that is to be written in a run directory is a link, a pipe or a device.

    The run may be somebody else's, and the link may lead to a file of the user's.
    """
    for path in paths:
        with suppress(FileNotFoundError, NotADirectoryError):
            mode = path.lstat().st_mode
            if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
                raise UserError(
                    f"{path} is neither a file nor a folder, so nothing is written there.",
                    "agent2rl does not create such files. Remove it if you know where it comes from.",
                )


def read_regular_file(path: Path) -> bytes:
    """Read a regular file; anything else, and a file that is too large for memory, is an OSError."""
    with open_regular_file(path) as file:
        content = file.read(MOST_RECORD_BYTES + 1)
    if len(content) > MOST_RECORD_BYTES:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
    return content


def sha256_file(path: Path) -> str:
    with open_regular_file(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_beginning(path: Path, size: int, most_after: int) -> tuple[str, bytes]:
    """Return the sha256 of the first `size` bytes of a file, and at most so many bytes that follow."""
    digest = hashlib.sha256()
    with open_regular_file(path) as file:
        while size > 0 and (block := file.read(min(size, 1 << 20))):
            digest.update(block)
            size -= len(block)
        return digest.hexdigest(), file.read(most_after)


def write_atomically(path: Path, text: str) -> None:
    """Write a file durably and atomically; nothing is left if that fails or is interrupted."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def append_whole_line(path: Path, line: str) -> None:
    """Append a line; if the disk is full, an OSError is raised and nothing of the line is in the file."""
    with path.open("ab", buffering=0) as file:
        end, rest = file.seek(0, os.SEEK_END), line.encode()
        try:
            while rest:
                rest = rest[file.write(rest) :]
        except OSError:
            file.truncate(end)
            raise


def move_into(made: Path, target: Path) -> None:
    """Move the files of a folder over another's; subfolders first, because other files refer to them."""
    for path in sorted(made.rglob("*"), key=lambda one: (-len(one.parts), one)):
        place = target / path.relative_to(made)
        if path.is_file():
            place.parent.mkdir(parents=True, exist_ok=True)
            path.replace(place)


def write_record(path: Path, record: BaseModel) -> str:
    """Write a record as indented JSON and return the sha256 of the bytes."""
    text = record.model_dump_json(indent=2) + "\n"
    write_atomically(path, text)
    return sha256_text(text)


def write_json_lines(path: Path, records: Iterable[BaseModel]) -> str:
    """Write one record per line and return the sha256 of the bytes."""
    text = "".join(record.model_dump_json() + "\n" for record in records)
    write_atomically(path, text)
    return sha256_text(text)


def cut_torn_line(path: Path) -> bool:
    """Remove a last line without a line end, which a crash left; return whether there was one."""
    if not path.exists():
        return False
    with path.open("r+b") as file:
        raw = file.read()
        whole = raw.rfind(b"\n") + 1
        if whole == len(raw):
            return False
        file.truncate(whole)
        os.fsync(file.fileno())
    return True


def remove_tree(path: Path) -> None:
    """Delete a sandbox's files even without permissions. No process may be alive in it."""
    for command in (["chmod", "-R", "u+rwx", "--"], ["rm", "-rf", "--"]):  # any depth, any path length
        subprocess.run([*command, path], check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def sync_directory(directory: Path) -> None:
    """Make the names in a directory durable, where the system can open directories."""
    if not O_DIRECTORY:
        return
    descriptor = os.open(directory, os.O_RDONLY | O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# Write a folder as a whole: it appears when it is complete, and not at all after an error.


@contextmanager
def create_folder(target: Path) -> Iterator[Path]:
    """Yield a directory to fill, which becomes `target` at the end. Only an empty folder is replaced."""
    target = target.absolute()
    if os.path.lexists(target) and (target.is_symlink() or not target.is_dir() or any(target.iterdir())):
        raise UserError(f"{target} already exists.", "Choose a folder that does not exist yet: -o FOLDER.")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    except OSError as error:
        raise UserError(f"Cannot write to {target.parent}: {error.strerror}.") from error
    try:
        yield draft
        # Temporary directories are closed to others.
        draft.chmod(0o755)
        draft.replace(target)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def extract_archive(
    archive: tarfile.TarFile, directory: Path, members: Iterable[tarfile.TarInfo] | None = None
) -> None:
    """Extract all members, or these, with their links; raise tarfile.TarError if one would land outside.

    Python's own filters are there from 3.11.4 only, and Debian 12 has 3.11.2.
    """
    checked = _check_members(archive if members is None else members, Path(os.path.realpath(directory)))
    if hasattr(tarfile, "tar_filter"):
        archive.extractall(directory, checked, filter="tar")
    else:
        archive.extractall(directory, checked)


def _check_members(members: Iterable[tarfile.TarInfo], directory: Path) -> Iterator[tarfile.TarInfo]:
    """Check each member when its turn comes, because an earlier one may be a link that leads elsewhere."""
    for member in members:
        for name in (member.name, member.linkname if member.islnk() else ""):
            if not Path(os.path.realpath(directory / name)).is_relative_to(directory):
                raise tarfile.ExtractError(f"{member.name!r} of the archive leads outside of it.")
        # No setuid bits, and nobody else may write.
        member.mode &= 0o755
        yield member
