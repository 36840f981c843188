"""Read an agent's workspace safely: its code for snapshots, and weights, logs and metrics as they appear.

A snapshot has all of `code/`, scripts elsewhere, and the agent's own mounted files. Links are not followed,
pipes and sockets are not opened, and everything is bounded. Of large or binary files only the hash is kept.
`.git` folders are left out, because git cannot store them.

The search for weights, logs and metrics opens only folders. Folders near the top come first, and the number
of names per folder and in total is bounded, so a million files cost no more than thousands.
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

# Snapshots of the code.

CODE = "code"
LEFT_OUT = {"data", "models", "agent"}
"""Read-only folders of the workspace."""
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
"""Log files are not code."""
SKIPPED = {".git", "__pycache__", ".ipynb_checkpoints", "node_modules", ".venv"}
FILE_BYTES, HASHED_BYTES = 1 << 20, 64 << 20
"""Files up to the first size are kept, up to the second hashed; of larger ones only the size is kept."""
MOST_BYTES, TINY_BYTES = 64 << 20, 1024
"""Limit of all kept contents. Of further files, in the order of their names, only the hash is kept, except
for tiny ones."""
MOST_FILES, MOST_SEEN, MOST_DEPTH = 5_000, 50_000, 24
PLACEHOLDER = b"agent2rl: not kept: "
"""How the content of a file begins that was not kept."""


@dataclass(frozen=True)
class SnapshotFile:
    """A file or link, by its path below the workspace."""

    path: tuple[bytes, ...]
    mode: int
    """The mode in git: 100644, 100755 or 120000."""
    content: bytes


@dataclass
class WorkspaceReader:
    """Takes snapshots of a workspace; unchanged files are not read again."""

    root: Path
    given: frozenset[str] = frozenset()
    """Files in the top folder of the workspace that the harness wrote."""
    folders: tuple[tuple[bytes, ...], ...] = ()
    """Folders of the last snapshot."""
    brought: tuple[SnapshotFile, ...] = ()
    """The agent's own files that are mounted into the workspace."""
    everything: bool = False
    """Whether all files except hidden ones count as code."""
    _contents: dict[tuple[int, ...], bytes] = field(default_factory=dict)

    def take_snapshot(self) -> "CodeSnapshot":
        reading = CodeSnapshot()
        # Only what is still there is remembered, so the memory does not grow with the run.
        earlier, self._contents = self._contents, {}
        try:
            top = os.open(self.root, DIRECTORY)
        except OSError:
            return reading
        try:
            for file in self._read_folder(top, (), reading, earlier):
                reading.files.append(file)
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
        earlier: dict[tuple[int, ...], bytes],
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
                        yield from self._read_folder(below, where, reading, earlier)
                    finally:
                        os.close(below)
                elif self._keeps_file(name, path) and (
                    file := self._read_file(folder, name, about, where, reading, earlier)
                ):
                    yield file
            except OSError:  # it disappeared meanwhile
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
        earlier: dict[tuple[int, ...], bytes],
    ) -> SnapshotFile | None:
        if stat.S_ISLNK(about.st_mode):
            return SnapshotFile(path, 0o120000, os.fsencode(os.readlink(name, dir_fd=folder)))
        if not stat.S_ISREG(about.st_mode):
            return None
        # The change time cannot be set, so an edited file is never taken for the earlier one.
        key = (about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns)
        content = reading.bound_content(earlier[key] if key in earlier else _read_content(folder, name))
        self._contents[key] = content
        return SnapshotFile(path, 0o100755 if about.st_mode & 0o100 else 0o100644, content)


@dataclass
class CodeSnapshot:
    files: list[SnapshotFile] = field(default_factory=list)
    folders: list[tuple[bytes, ...]] = field(default_factory=list)
    whole: bool = True
    """False if the limits were exceeded."""
    seen: int = 0
    size: int = 0
    """Bytes of the kept contents."""

    def bound_content(self, content: bytes) -> bytes:
        """Return the content, or a placeholder if the limit is reached."""
        if self.size + len(content) > MOST_BYTES and len(content) > TINY_BYTES:
            content, self.whole = make_placeholder(content), False
        self.size += len(content)
        return content


def make_placeholder(content: bytes) -> bytes:
    """Return the placeholder that replaces a file's content."""
    return _format_placeholder(f"sha256 {hashlib.sha256(content).hexdigest()}", len(content))


def _format_placeholder(what: str, size: int) -> bytes:
    return PLACEHOLDER + f"{what}, {size} bytes\n".encode()


def read_brought_files(mounts: Iterable[tuple[Path, str]]) -> tuple[SnapshotFile, ...]:
    """Read the agent's own mounted files, at their paths in the workspace.

    Hidden files are left out, because they may contain keys.
    """
    brought: dict[tuple[bytes, ...], SnapshotFile] = {}
    for source, target in mounts:
        place = tuple(os.fsencode(part) for part in PurePosixPath(target).parts)
        if source.is_dir():
            files = WorkspaceReader(source, everything=True).take_snapshot().files
            brought |= {(*place, *one.path): replace(one, path=(*place, *one.path)) for one in files}
            continue
        with suppress(OSError), open_folder(source.parent, ()) as directory:
            mode = 0o100755 if source.stat().st_mode & 0o100 else 0o100644
            brought[place] = SnapshotFile(place, mode, _read_content(directory, source.name))
    return tuple(brought.values())


def _list_names(folder: int, reading: CodeSnapshot) -> list[str]:
    """Return the names in order, up to the remaining limit."""
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
    """Return the text of a file, or its placeholder."""
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
        description = f"sha256 {digest.hexdigest()}" if size <= HASHED_BYTES else "too large to be hashed"
        return _format_placeholder(description, os.fstat(file.fileno()).st_size)


# Weights, logs and metrics, found as they appear.

WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
WATCHED_LOGS = (".log", ".out", ".err", ".txt", "trainer_state.json")
TEXT_METRICS = re.compile(r"(log|metric|history).*\.jsonl$", re.IGNORECASE)
METRICS = re.compile(r"tfevents\.|\.wandb$|(progress|stats|scalars|curves?|rewards).*\.jsonl$", re.IGNORECASE)
"""Files that only hold metrics: TensorBoard's, W&B's, and JSON lines that no other rule calls a log."""
MOST_WATCHED, MOST_IN_FOLDER, MOST_WATCHED_DEPTH = 20_000, 2_000, 10
LONGEST_PATH = 1000

What = Literal["weights", "log", "metrics"]
Size = tuple[int, float]
"""Size in bytes and time of the last change."""


class WorkspaceWatcher:
    """Finds new and changed files; unchanged files are reported once."""

    def __init__(self, root: Path, noted: Iterable[FileSeen] = ()) -> None:
        """`noted`: files that were already reported before a crash."""
        self.root = root
        self.seen = 0
        """Number of names in the last search."""
        self._noted: dict[tuple[str, What], Size] = {
            (one.path, one.what): (one.bytes, one.changed) for one in noted
        }
        self._last: dict[tuple[str, What], Size] = {}

    def find_changes(self, last: bool = False) -> list[FileSeen]:
        """Return new files, and changed files that are stable by now; with `last`, all changed files."""
        sizes = self._scan_workspace()
        changes = []
        for key, size in sizes.items():
            rests = last or key not in self._noted or self._last.get(key) == size
            if self._noted.get(key) != size and rests:
                self._noted[key] = size
                changes.append(FileSeen(path=key[0], what=key[1], bytes=size[0], changed=size[1]))
        self._last = sizes
        self._noted = {key: self._noted[key] for key in sizes if key in self._noted}
        return changes

    def _scan_workspace(self) -> dict[tuple[str, What], Size]:
        self.seen = 0
        sizes: dict[tuple[str, What], Size] = {}
        waiting: deque[tuple[str, ...]] = deque([()])
        while waiting and self.seen < MOST_WATCHED:
            path = waiting.popleft()
            try:
                with untrusted_files.open_folder(self.root, path) as descriptor:
                    for name, what, size in self._scan_folder(descriptor, path, waiting):
                        # A checkpoint is a folder: its shards count as one.
                        where = path if what == "weights" else (*path, name)
                        key = (untrusted_files.sanitize_line("/".join(where) or ".", LONGEST_PATH), what)
                        before = sizes.get(key, (0, 0.0))
                        sizes[key] = (before[0] + size[0], max(before[1], size[1]))
            except OSError:  # it disappeared, became a link, or is not readable
                continue
        return sizes

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
    if name.endswith(WATCHED_LOGS) or TEXT_METRICS.search(name):
        return "log"
    return "metrics" if METRICS.search(name) else None


def _stat_file(entry: "os.DirEntry[str]") -> Size | None:
    try:
        about = entry.stat(follow_symlinks=False)
    except OSError:
        return None
    return (about.st_size, about.st_mtime) if stat.S_ISREG(about.st_mode) else None
