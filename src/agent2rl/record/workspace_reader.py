"""Reads an agent's workspace safely: its code for snapshots, and weights and logs as they appear.

All of `code/`, scripts elsewhere, and what the agent brought along. No link is followed, a pipe or a socket
is not opened, and every number has a bound. Of a file that is large or no text only the hash is kept. `.git`
folders are left out: git's own format has no place for them.

No link is followed and nothing is opened but folders. Those near the top come first, and of each folder and
of all together only so many names are looked at: a million files cost what thousands do.
"""

import hashlib
import os
import re
import stat
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Literal

from agent2rl.core.events import FileSeen
from agent2rl.record import untrusted_files
from agent2rl.record.untrusted_files import DIRECTORY, FILE, open_folder

# What of a workspace is code, as it lies there now, read so that nothing in it can lead or hold the
# reader.

CODE = "code"
LEFT_OUT = {"data", "models", "agent"}
"""Folders of the workspace that are given and cannot be written."""
SCRIPTS = (
    ".py",
    ".sh",
    ".ipynb",
    ".yaml",
    ".yml",
    ".toml",
    ".cfg",
    ".js",
    ".ts",
    ".c",
    ".cpp",
    ".cu",
)
LOGS = (".log", ".out", ".err")
"""What grows while a program runs is no code."""
SKIPPED = {".git", "__pycache__", ".ipynb_checkpoints", "node_modules", ".venv"}
FILE_BYTES, HASHED_BYTES = 1 << 20, 64 << 20
"""A file is kept up to the first, hashed up to the second; beyond that only its size is told."""
MOST_BYTES, TINY_BYTES = 64 << 20, 1024
"""That are kept of all files together; of the rest, in the order of their names, only the hash, but for files
that are tiny."""
MOST_FILES, MOST_SEEN, MOST_DEPTH = 5_000, 50_000, 24


@dataclass(frozen=True)
class SnapshotFile:
    """A file or link, by its path below the workspace."""

    path: tuple[bytes, ...]
    mode: int
    """As git has it: 100644, 100755 or 120000."""
    content: bytes


@dataclass
class WorkspaceReader:
    """Reads a workspace again and again; a file that has not changed is not read twice."""

    root: Path
    given: frozenset[str] = frozenset()
    """Files of the workspace's top folder that the harness laid there."""
    folders: tuple[tuple[bytes, ...], ...] = ()
    """Those that the last reading went through."""
    brought: tuple[SnapshotFile, ...] = ()
    """Files that the agent sees in the workspace, and that do not lie there."""
    everything: bool = False
    """All that is there is code, but for hidden files."""
    _kept: dict[tuple[int, ...], bytes] = field(default_factory=dict)

    def take_snapshot(self) -> "CodeSnapshot":
        reading = CodeSnapshot()
        kept, self._kept = self._kept, {}
        try:
            top = os.open(self.root, DIRECTORY)
        except OSError:
            return reading
        try:
            for found in self._read_folder(top, (), reading, kept):
                reading.files.append(found)
                if len(reading.files) >= MOST_FILES:
                    reading.whole = False
                    break
        finally:
            os.close(top)
        self.folders = tuple(reading.folders)
        reading.files += self.brought
        return reading

    def _read_folder(
        self,
        folder: int,
        path: tuple[bytes, ...],
        reading: "CodeSnapshot",
        kept: dict[tuple[int, ...], bytes],
    ) -> Iterator[SnapshotFile]:
        reading.folders.append(path)
        for name in _list_names(folder, reading):
            where = (*path, os.fsencode(name))
            try:
                about = os.stat(name, dir_fd=folder, follow_symlinks=False)
                if stat.S_ISDIR(about.st_mode):
                    if not self._enters_folder(name, path):
                        continue
                    if len(where) > MOST_DEPTH:
                        reading.whole = False
                        continue
                    below = os.open(name, DIRECTORY, dir_fd=folder)
                    try:
                        yield from self._read_folder(below, where, reading, kept)
                    finally:
                        os.close(below)
                elif self._keeps_file(name, path) and (
                    found := self._read_file(folder, name, about, where, reading, kept)
                ):
                    yield found
            except OSError:  # it went while it was looked at
                continue

    def _enters_folder(self, name: str, path: tuple[bytes, ...]) -> bool:
        if self.everything:
            return name not in SKIPPED and not name.startswith(".")
        return name not in SKIPPED and (bool(path) or name not in LEFT_OUT)

    def _keeps_file(self, name: str, path: tuple[bytes, ...]) -> bool:
        if self.everything:
            return not name.startswith(".")
        if path[:1] == (CODE.encode(),):
            return not name.endswith(LOGS)
        return name.endswith(SCRIPTS) and (bool(path) or name not in self.given)

    def _read_file(
        self,
        folder: int,
        name: str,
        about: os.stat_result,
        path: tuple[bytes, ...],
        reading: "CodeSnapshot",
        kept: dict[tuple[int, ...], bytes],
    ) -> SnapshotFile | None:
        if stat.S_ISLNK(about.st_mode):
            return SnapshotFile(path, 0o120000, os.fsencode(os.readlink(name, dir_fd=folder)))
        if not stat.S_ISREG(about.st_mode):
            return None
        key = (about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns)
        content = reading.bound_content(kept[key] if key in kept else _read_content(folder, name))
        self._kept[key] = content
        return SnapshotFile(path, 0o100755 if about.st_mode & 0o100 else 0o100644, content)


@dataclass
class CodeSnapshot:
    files: list[SnapshotFile] = field(default_factory=list)
    folders: list[tuple[bytes, ...]] = field(default_factory=list)
    whole: bool = True
    """False where there was more than is read."""
    seen: int = 0
    size: int = 0
    """Bytes of the contents that are kept."""

    def bound_content(self, content: bytes) -> bytes:
        """A content, or what stands for it where there is too much already."""
        if self.size + len(content) > MOST_BYTES and len(content) > TINY_BYTES:
            content, self.whole = make_placeholder(content), False
        self.size += len(content)
        return content


def make_placeholder(content: bytes) -> bytes:
    """What is kept of a file in its content's place."""
    return _format_placeholder(f"sha256 {hashlib.sha256(content).hexdigest()}", len(content))


def _format_placeholder(what: str, size: int) -> bytes:
    return f"agent2rl: not kept: {what}, {size} bytes\n".encode()


def read_brought_files(mounts: Iterable[tuple[Path, str]]) -> tuple[SnapshotFile, ...]:
    """What an agent brings along, at the places in the workspace where it sees them.

    Hidden files are left out: that is where keys are kept.
    """
    found: dict[tuple[bytes, ...], SnapshotFile] = {}
    for source, target in mounts:
        place = tuple(os.fsencode(part) for part in PurePosixPath(target).parts)
        if source.is_dir():
            files = WorkspaceReader(source, everything=True).take_snapshot().files
            found |= {(*place, *one.path): replace(one, path=(*place, *one.path)) for one in files}
            continue
        with suppress(OSError), open_folder(source.parent, ()) as directory:
            mode = 0o100755 if source.stat().st_mode & 0o100 else 0o100644
            found[place] = SnapshotFile(place, mode, _read_content(directory, source.name))
    return tuple(found.values())


def _list_names(folder: int, reading: CodeSnapshot) -> list[str]:
    """In order, as many as may still be looked at."""
    names = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if reading.seen >= MOST_SEEN:
                reading.whole = False
                break
            reading.seen += 1
            names.append(entry.name)
    return sorted(names)


def _read_content(folder: int, name: str) -> bytes:
    """The text, or what stands for it."""
    with open(os.open(name, FILE, dir_fd=folder), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError("no file any more")
        head = file.read(FILE_BYTES + 1)
        if len(head) <= FILE_BYTES and b"\0" not in head[:8192]:
            return head
        digest, size = hashlib.sha256(head), len(head)
        while (part := file.read(1 << 20)) and size <= HASHED_BYTES:
            digest.update(part)
            size += len(part)
        told = f"sha256 {digest.hexdigest()}" if size <= HASHED_BYTES else "too large to be hashed"
        return _format_placeholder(told, os.fstat(file.fileno()).st_size)


# Finds weights and logs in a workspace as they appear, without being led or held by what lies there.

WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
WATCHED_LOGS = (".log", ".out", ".err", ".txt", "trainer_state.json")
METRICS = re.compile(r"(log|metric|history).*\.jsonl$", re.IGNORECASE)
MOST_WATCHED, MOST_IN_FOLDER, MOST_WATCHED_DEPTH = 20_000, 2_000, 10
LONGEST_PATH = 1000

What = Literal["weights", "log"]
Size = tuple[int, float]
"""Bytes, and when the last of them was written."""


class WorkspaceWatcher:
    """Looks again and again; what has not changed is not told twice."""

    def __init__(self, root: Path, told: Iterable[FileSeen] = ()) -> None:
        """`told` is what somebody else has found and told already."""
        self.root = root
        self.seen = 0
        """Names that the last look met."""
        self._noted: dict[tuple[str, What], Size] = {
            (one.path, one.what): (one.bytes, one.changed) for one in told
        }
        self._last: dict[tuple[str, What], Size] = {}

    def find_changes(self, last: bool = False) -> list[FileSeen]:
        """What is new, and what has changed and come to rest; the last time, all that has changed."""
        found = self._scan_workspace()
        told = []
        for key, size in found.items():
            rests = last or key not in self._noted or self._last.get(key) == size
            if self._noted.get(key) != size and rests:
                self._noted[key] = size
                told.append(FileSeen(path=key[0], what=key[1], bytes=size[0], changed=size[1]))
        self._last = found
        self._noted = {key: self._noted[key] for key in found if key in self._noted}
        return told

    def _scan_workspace(self) -> dict[tuple[str, What], Size]:
        self.seen = 0
        found: dict[tuple[str, What], Size] = {}
        waiting: deque[tuple[str, ...]] = deque([()])
        while waiting and self.seen < MOST_WATCHED:
            path = waiting.popleft()
            try:
                with untrusted_files.open_folder(self.root, path) as descriptor:
                    for name, what, size in self._scan_folder(descriptor, path, waiting):
                        where = path if what == "weights" else (*path, name)
                        key = (untrusted_files.sanitize_line("/".join(where) or ".", LONGEST_PATH), what)
                        before = found.get(key, (0, 0.0))
                        found[key] = (before[0] + size[0], max(before[1], size[1]))
            except OSError:  # it went, or became a link, or may not be read
                continue
        return found

    def _scan_folder(
        self, descriptor: int, path: tuple[str, ...], waiting: deque[tuple[str, ...]]
    ) -> Iterator[tuple[str, What, Size]]:
        with os.scandir(descriptor) as entries:
            for number, entry in enumerate(entries):
                if number >= MOST_IN_FOLDER or self.seen >= MOST_WATCHED:
                    return
                self.seen += 1
                if entry.is_dir(follow_symlinks=False):
                    if _enters_folder(entry.name, path):
                        waiting.append((*path, entry.name))
                elif (what := _classify_file(entry.name)) and (size := _stat_file(entry)):
                    yield entry.name, what, size


def _enters_folder(name: str, path: tuple[str, ...]) -> bool:
    if name in SKIPPED or (not path and name in LEFT_OUT):
        return False
    return len(path) < MOST_WATCHED_DEPTH


def _classify_file(name: str) -> What | None:
    if name.endswith(WEIGHTS):
        return "weights"
    return "log" if name.endswith(WATCHED_LOGS) or METRICS.search(name) else None


def _stat_file(entry: "os.DirEntry[str]") -> Size | None:
    try:
        about = entry.stat(follow_symlinks=False)
    except OSError:
        return None
    return (about.st_size, about.st_mtime) if stat.S_ISREG(about.st_mode) else None
