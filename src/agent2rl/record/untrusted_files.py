"""Read files and JSON that an agent wrote: links are not followed, and sizes and depths are bounded.

`replace_untrusted_file` writes a file where an agent may write too.

`find_fault` checks a run directory of somebody else before anything in it is opened.

A `JsonNode` is a value of unknown shape. Any key can be requested; missing values are empty.
"""

import json
import os
import secrets
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import BinaryIO, NoReturn

from pydantic import JsonValue

from agent2rl.record.files import open_regular_file
from agent2rl.record.paths import RunPaths
from agent2rl.system.unix import O_CLOEXEC, O_DIRECTORY, O_NOCTTY, O_NOFOLLOW, O_NONBLOCK, read_at

DIRECTORY = os.O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC
FILE = os.O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC
NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | O_NOFOLLOW | O_CLOEXEC


@contextmanager
def open_folder(root: Path, parts: Sequence[str | bytes]) -> Iterator[int]:
    """Yield a descriptor of the directory with this path."""
    directory = os.open(root, DIRECTORY)
    try:
        for part in parts:
            below = os.open(part, DIRECTORY, dir_fd=directory)
            os.close(directory)
            directory = below
        yield directory
    finally:
        os.close(directory)


@contextmanager
def open_plain_file(root: Path, name: str) -> Iterator[BinaryIO]:
    """Open a plain file below a directory; anything else is an OSError."""
    *folders, last = PurePosixPath(name).parts
    if os.open not in os.supports_dir_fd:  # Windows: checked first, so the agent must have ended
        descriptor = _open_by_path(root, (*folders, last))
    else:
        with open_folder(root, folders) as directory:
            descriptor = os.open(last, FILE, dir_fd=directory)
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(f"{name} is not a plain file")
        yield file


def _open_by_path(root: Path, parts: Sequence[str]) -> int:
    path = root
    for part in parts:
        path = path / part
        if part == ".." or Path(part).name != part or path.is_symlink():
            raise OSError(f"{path} leads elsewhere")
    return os.open(path, FILE)


def sanitize_line(text: str, most: int) -> str:
    """Return text of an agent as one shortened line without control characters."""
    cut = text if len(text) <= most else text[: most - 1] + "…"
    return "".join(each if each.isprintable() else " " if each.isspace() else "�" for each in cut)


def read_untrusted_file(root: Path, name: str, most_bytes: int) -> bytes | None:
    """Return the first bytes of a plain file, or None if there is none."""
    try:
        with open_plain_file(root, name) as file:
            return file.read(most_bytes)
    except OSError:
        return None


def read_untrusted_slice(root: Path, name: str, begin: int, end: int, most_bytes: int) -> bytes:
    """Return a part of a plain file; of a part over `most_bytes` only the beginning and the end."""
    try:
        with open_plain_file(root, name) as file:
            if end - begin <= most_bytes:
                return read_at(file.fileno(), max(0, end - begin), begin)
            half = most_bytes // 2
            tail = read_at(file.fileno(), half, end - half)
            return read_at(file.fileno(), half, begin) + b"\n" + tail
    except (OSError, ValueError):
        return b""


def replace_untrusted_file(folder: Path, name: str, content: bytes, mode: int) -> bool:
    """Put a file in the place of any file or link; return whether that was possible.

    Readers see the old file or the new one. A directory of that name stays.
    """
    # A name that the agent cannot guess, so it cannot put a link there before.
    temporary = f".{name}.{secrets.token_hex(8)}"
    try:
        with open_folder(folder, ()) as directory:
            try:
                with open(os.open(temporary, NEW_FILE, mode, dir_fd=directory), "wb") as file:
                    os.fchmod(file.fileno(), mode)
                    file.write(content)
                os.replace(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
            except OSError:
                with suppress(OSError):
                    os.unlink(temporary, dir_fd=directory)
                raise
    except OSError:
        return False
    return True


# Untrusted JSON: bounded, and no link is followed.

LONGEST_LINE = 8 << 20
LARGEST_FILE = 64 << 20
MOST_NAMES = 10_000
MOST_MATCHES = 500
"""Limit of the paths that match a pattern, and of the folders on the way to them."""
DEEPEST = 64
GREATEST = 1 << 53
LATEST = 253402300799
"""The last second that `datetime` can represent."""


@dataclass(frozen=True)
class JsonNode:
    value: JsonValue = None

    def __getitem__(self, key: str) -> "JsonNode":
        return JsonNode(self.value.get(key)) if isinstance(self.value, dict) else JsonNode()

    def __iter__(self) -> Iterator["JsonNode"]:
        return map(JsonNode, self.value if isinstance(self.value, list) else [])

    def __bool__(self) -> bool:
        return self.value is not None

    @property
    def entries(self) -> list[tuple[str, "JsonNode"]]:
        mapping = self.value if isinstance(self.value, dict) else {}
        return [(name, JsonNode(value)) for name, value in mapping.items()]

    @property
    def text(self) -> str:
        return self.value if isinstance(self.value, str) else ""

    @property
    def shown(self) -> str:
        """The value as text: a list of texts is joined, anything else is JSON."""
        if isinstance(self.value, list):
            return "\n".join(part["text"].text or part.shown for part in self)
        if self.value is None or isinstance(self.value, str):
            return self.text
        return json.dumps(self.value, ensure_ascii=False)

    @property
    def unpacked(self) -> "JsonNode":
        """The JSON inside a text, or the value itself if it is not such a text."""
        return parse_json(self.text.encode()) or self

    @property
    def count(self) -> int:
        value = self.value
        return (
            value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < GREATEST else 0
        )

    @property
    def seconds(self) -> float | None:
        """A time in seconds since 1970."""
        value = self.value
        return float(value) if isinstance(value, int | float) and 0 < value < LATEST else None

    @property
    def true(self) -> bool:
        return self.value is True

    @property
    def when(self) -> float | None:
        """A time in ISO 8601, or in milliseconds since 1970."""
        if not self.text:
            return JsonNode(self.count / 1000).seconds
        with suppress(ValueError, OverflowError):
            read = datetime.fromisoformat(self.text)
            return JsonNode((read if read.tzinfo else read.replace(tzinfo=UTC)).timestamp()).seconds
        return None


def parse_json(data: bytes) -> JsonNode | None:
    """Parse a JSON object or list; None if it is invalid or implausible."""
    if data[:1] not in (b"{", b"["):
        return None
    try:
        read = json.loads(data.decode(errors="replace"), parse_constant=_refuse_constant)
        return JsonNode(_clean_value(read, DEEPEST))
    except (ValueError, RecursionError):
        return None


def read_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines without line ends, in pieces if too long; nothing if the file does not exist."""
    with suppress(FileNotFoundError), open_regular_file(path) as file:
        while line := file.readline(LONGEST_LINE):
            yield line.rstrip(b"\r\n")


def read_document(root: Path, place: PurePosixPath) -> JsonNode | None:
    """Read a JSON file below an untrusted directory."""
    return parse_json(read_untrusted_file(root, str(place), LARGEST_FILE) or b"")


def list_names(root: Path, place: PurePosixPath) -> list[str]:
    """Return the sorted names in a folder below an untrusted directory."""
    with suppress(OSError), open_folder(root, place.parts) as directory, os.scandir(directory) as entries:
        return sorted(entry.name for entry in islice(entries, MOST_NAMES))
    return []


def find_files(root: Path, pattern: PurePosixPath) -> tuple[list[PurePosixPath], bool]:
    """Return the sorted paths below an untrusted directory that match, and whether they are complete."""
    places, complete = [PurePosixPath()], True
    for part in pattern.parts:
        if "*" in part:
            matches = (
                place / name
                for place in places
                for name in list_names(root, place)
                if fnmatchcase(name, part)
            )
            places = list(islice(matches, MOST_MATCHES))
            complete = complete and next(matches, None) is None
        else:
            places = [place / part for place in places]
    return places, complete


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _clean_value(value: JsonValue, depth: int) -> JsonValue:
    """Return the value with encodable text: lone surrogates are replaced."""
    if depth == 0:
        raise RecursionError
    if isinstance(value, str):
        return value if value.isascii() else value.encode(errors="replace").decode()
    if isinstance(value, dict):
        return {str(_clean_value(name, depth)): _clean_value(each, depth - 1) for name, each in value.items()}
    if isinstance(value, list):
        return [_clean_value(each, depth - 1) for each in value]
    return value


# Check that a run directory of somebody else is safe to read, before anything in it is opened.
#
# A symlink leads outside, reading a pipe blocks for ever, a sparse file fills the memory. So a run directory
# may hold only plain files and folders of its own, of limited size. The check reads no contents of files.


MOST_BYTES = 256 << 20
"""Size limit of a file that is read as a whole."""
MOST_EVENTS_BYTES = 1 << 30
"""Size limit of a file that is read in a separate process."""
MOST_LOG_BYTES = 16 << 30
"""Size limit of a file of which only a part is read."""


def find_fault(paths: RunPaths) -> str | None:
    """Return the first problem of a run directory, or None."""
    apart = {paths.events.name, paths.usage.name, paths.network.name}
    for folder in _iter_folders(paths):
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    if fault := _check_entry(entry, apart):
                        return fault
        except (FileNotFoundError, NotADirectoryError):
            continue  # missing, or a file in its place, which is reported where it is read
    return None


def _iter_folders(paths: RunPaths) -> Iterator[str]:
    """Yield every folder that is read, parents first."""
    code = str(paths.revisions)
    yield from map(str, (paths.root, paths.report, paths.baseline.root))
    yield from (code, f"{code}/objects", f"{code}/objects/info", f"{code}/objects/pack", f"{code}/refs/heads")
    for several in (paths.submissions, paths.ablations):
        yield str(several)
        try:
            with os.scandir(several) as entries:
                yield from [entry.path for entry in entries]
        except (FileNotFoundError, NotADirectoryError):
            continue


def _check_entry(entry: "os.DirEntry[str]", apart: set[str]) -> str | None:
    if entry.is_symlink():
        return f"contains a symlink, {entry.name!r}"
    if entry.is_dir():
        return None
    info = entry.stat(follow_symlinks=False)
    if not stat.S_ISREG(info.st_mode):
        return f"contains {entry.name!r}, which is neither a file nor a folder"
    if entry.name in ("alternates", "commondir"):
        return "stores its code outside of the run directory"
    most = MOST_LOG_BYTES if entry.name.endswith(".log") else MOST_BYTES
    if info.st_size > (MOST_EVENTS_BYTES if entry.name in apart else most):
        return f"contains a file that is too large, {entry.name!r}"
    return None
