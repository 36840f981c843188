"""Select a submission's files by name, and copy and hash them out of the agent's reach.

    taken      weights, their index, and the small files that describe the model
               (of a LoRA adapter: its own weights and settings)
    refused    a pickled model, and a directory without weights
    left out   other files that a trainer writes next to a model; named in the reply and never opened

The agent is hostile and still running, and the harness may be root. So files are opened relative to
directory file descriptors and never by path, links are not followed, only regular files without hard
links are opened, and reads are bounded. The hash covers the copied bytes, so the manifest describes what
is graded. A change during the copy is refused, because a mix of two checkpoints is never intended. A
write too quick to change the time stamps goes unnoticed and harms only the agent. `checks` examines the
content of the files.
"""

import errno
import hashlib
import logging
import os
import shlex
import shutil
import stat
import tempfile
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from pydantic import ValidationError

from agent2rl.core.engine import CHAT_FORMAT_FILE
from agent2rl.core.errors import GradingError, MachineError, Refusal
from agent2rl.core.grading_records import FileHash, Manifest
from agent2rl.core.units import format_size
from agent2rl.grading.file_hashes import FileHashCache, copy_and_hash, share_blocks
from agent2rl.grading.untrusted_model_files import INDEX, SAVE_HINT, SINGLE
from agent2rl.record.files import sha256_file, sync_directory
from agent2rl.record.paths import SubmissionPaths
from agent2rl.system.unix import O_CLOEXEC, O_DIRECTORY, O_NOCTTY, O_NOFOLLOW, O_NONBLOCK

logger = logging.getLogger(__name__)

# Selection of files by name. Everything else stays where it is.

CONFIG = "config.json"
TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
VOCABULARY_FILES = ("vocab.json", "merges.txt", "vocab.txt", "tokenizer.model")
"""Other formats of the vocabulary in `tokenizer.json`."""
TEMPLATE, TEMPLATE_JSON = "chat_template.jinja", "chat_template.json"
WEIGHTS = "*.safetensors"
TAKEN = (
    *(CONFIG, WEIGHTS, INDEX, TOKENIZER, TOKENIZER_CONFIG, *VOCABULARY_FILES),
    *(TEMPLATE, TEMPLATE_JSON, CHAT_FORMAT_FILE),
)
UNUSED = ("generation_config.json", "special_tokens_map.json", "added_tokens.json")
"""Files that save_pretrained writes and that have no effect here, so the reply does not name them."""
ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
ADAPTERS = (ADAPTER_CONFIG, "adapter_model.*")
PICKLED_MODELS = (
    *("pytorch_model*", "consolidated*.pth", "*.ckpt"),
    *(f"model*.{ending}" for ending in ("bin", "pt", "pth", "pkl", "pickle")),
)


@dataclass(frozen=True)
class SelectedFiles:
    taken: tuple[str, ...]
    left_out: tuple[str, ...]
    """Ignored entries, named in the reply."""


def select_files(names: Collection[str]) -> SelectedFiles:
    """Select entries of a submitted directory by name, or refuse the directory."""
    taken = _matching(names, TAKEN)
    rest = sorted(set(names) - {*taken, *UNUSED})
    has_weights = bool(_matching(taken, (WEIGHTS, INDEX)))
    pickled = _matching(rest, PICKLED_MODELS)
    if pickled:
        raise Refusal(
            f"A pickled model can run code and is never opened: {', '.join(pickled)}.",
            f"{SAVE_HINT} Then: rm -- {' '.join(map(shlex.quote, pickled))}",
        )
    adapters = _matching(names, ADAPTERS)
    if adapters and not (INDEX in taken or SINGLE in taken):
        return _select_adapter(names)
    if not has_weights:
        content = f" It contains: {', '.join(sorted(names)[:10])}." if names else " It is empty."
        raise Refusal(
            f"This directory has no weights: neither {SINGLE} nor {INDEX}.{content}",
            f"Submit the checkpoint directory itself. {SAVE_HINT}",
        )
    taken = tuple(sorted(set(taken) - set(adapters)))
    return SelectedFiles(taken, tuple(sorted({*rest, *adapters})))


def _select_adapter(names: Collection[str]) -> SelectedFiles:
    if missing := sorted({ADAPTER_CONFIG, ADAPTER_WEIGHTS} - set(names)):
        raise Refusal(
            f"This looks like a LoRA adapter, but there is no {missing[0]}.",
            "Save it with peft's model.save_pretrained(path). A pickled one can run code: it is not opened.",
        )
    beside = set(_matching(names, TAKEN)) - set(_matching(names, (WEIGHTS, INDEX)))
    taken = {ADAPTER_CONFIG, ADAPTER_WEIGHTS, *beside}
    return SelectedFiles(tuple(sorted(taken)), tuple(sorted(set(names) - {*taken, *UNUSED})))


def matches_name(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _matching(names: Collection[str], patterns: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted(name for name in names if matches_name(name, patterns)))


# Copying.

LARGE_BYTES = 8 * 2**20
"""Files from this size on are copied side by side, after all others."""
MOST_COPIERS = 8
PATH_LENGTH = 4096
DIRECTORY = os.O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC
# Without O_NONBLOCK, opening a pipe, or a file under a lease, would wait for the agent.
FILE = os.O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC
FOLDER_MODE = 0o755
"""Set despite the umask: the grading child may be another user. The run directory keeps all others out."""

DELETE_HINT = (
    "Delete files that you no longer need, such as old checkpoints and optimizer states, then submit again. "
    "What you submitted before was copied, so you can delete it."
)


class NoDiskSpace(Refusal):
    """The disk has no room for the copy of a submission."""


@dataclass(frozen=True)
class FreezeLimits:
    """Size limits of one submission."""

    entries: int = 1000
    """Entries of the submitted directory, including ignored ones."""
    bytes: int = 64 * 2**30
    """Total apparent size of the selected files; holes count like data."""
    name_length: int = 255
    """Bytes of one name."""
    spare_bytes: int = 0
    """Disk space that must be left after the copy."""


class _FileState(NamedTuple):
    """Metadata that changes when a file or directory changes."""

    mode: int
    inode: int
    links: int
    size: int
    # A process can set the modification time of a file, but not its change time.
    mtime_ns: int
    ctime_ns: int


@dataclass(frozen=True)
class FrozenSubmission:
    manifest: Manifest
    left_out: tuple[str, ...]
    """Entries that are not part of a model. They were not opened."""


def freeze_submission(
    workspace: Path,
    relative: PurePosixPath,
    destination: Path,
    limits: FreezeLimits,
    select: Callable[[Collection[str]], SelectedFiles] = select_files,
) -> FrozenSubmission:
    """Copy the model in `workspace / relative` to `destination`, which must not exist."""
    source = _open_directory(workspace, relative, limits)
    try:
        _make_directory(destination)
        try:
            copy = _SubmissionCopy(relative, limits)
            left_out = copy.copy_files(source, destination, select)
        except BaseException:
            shutil.rmtree(destination, ignore_errors=True)
            raise
    finally:
        os.close(source)
    sync_directory(destination)
    size = sum(file.size for file in copy.files)
    logger.debug(
        "Copied %d files of %s: %s; left out: %d", len(copy.files), relative, format_size(size), len(left_out)
    )
    return FrozenSubmission(_build_manifest(copy.files), left_out)


def compute_manifest(directory: Path, hashes: FileHashCache | None = None) -> Manifest:
    """Return the manifest of a directory that does not change: a base model or a frozen submission."""
    hash_file = hashes.hash_file if hashes else sha256_file
    paths = [
        Path(folder, name) for folder, _, names in os.walk(directory, onerror=_raise_error) for name in names
    ]

    def describe(path: Path) -> FileHash:
        size = path.stat().st_size
        return FileHash(path=path.relative_to(directory).as_posix(), size=size, sha256=hash_file(path))

    large = {path for path in paths if path.stat().st_size >= LARGE_BYTES}
    with ThreadPoolExecutor(MOST_COPIERS, "hashing") as pool:
        described = pool.map(describe, large)
        small = [describe(path) for path in paths if path not in large]
        return _build_manifest([*small, *described])


def require_intact_copy(where: SubmissionPaths, digest: str | None) -> None:
    """Raise unless a copy from before a crash matches its manifest, and the manifest its recorded hash."""
    try:
        manifest = Manifest.model_validate_json(where.manifest.read_bytes())
        intact = sha256_file(where.manifest) == digest and compute_manifest(where.model) == manifest
    except (OSError, ValidationError):
        intact = False
    if not intact:
        raise GradingError("The frozen copy was damaged when the harness crashed.", "Submit it again.")


def _build_manifest(files: Iterable[FileHash]) -> Manifest:
    entries = tuple(sorted(files, key=lambda file: file.path))
    lines = sorted(f"{file.sha256}  {file.size}  {file.path}\n" for file in entries)
    return Manifest(files=entries, sha256=hashlib.sha256("".join(lines).encode()).hexdigest())


def _raise_error(error: OSError) -> None:
    raise error


class _SubmissionCopy:
    """Copy one submitted directory."""

    def __init__(self, root: PurePosixPath, limits: FreezeLimits) -> None:
        self.files: list[FileHash] = []
        self._root = root
        self._limits = limits
        self._cancelled = threading.Event()

    def copy_files(
        self, source: int, destination: Path, select: Callable[[Collection[str]], SelectedFiles]
    ) -> tuple[str, ...]:
        """Copy the selected files and return the names of the others."""
        selected = select(self._list_names(source))
        before = self._read_states(source, selected.taken)
        self._check_limits(before)
        self._require_disk_space(source, before, destination)
        self._copy_all(source, before, destination)
        if (
            select(self._list_names(source)).taken != selected.taken
            or self._read_states(source, before) != before
        ):
            raise _change_refusal(self._root)
        return selected.left_out

    def _copy_all(self, source: int, states: dict[str, _FileState], destination: Path) -> None:
        large = [name for name, state in states.items() if state.size >= LARGE_BYTES]
        for name in (name for name in states if name not in large):
            self._copy_selected(source, self._root / name, states[name], destination / name)
        with ThreadPoolExecutor(MOST_COPIERS, "freeze") as pool:
            copies = [
                pool.submit(self._copy_selected, source, self._root / name, states[name], destination / name)
                for name in large
            ]
            try:
                for copy in as_completed(copies):
                    copy.result()
            except BaseException:
                # Else the other copies would go on for gigabytes after one of them was refused.
                self._cancelled.set()
                pool.shutdown(cancel_futures=True)
                raise

    def _list_names(self, source: int) -> list[str]:
        with _explain_read_errors(self._root), os.scandir(source) as entries:
            # stop early: the directory may have millions of entries
            names = sorted(entry.name for entry in islice(entries, self._limits.entries + 1))
        if len(names) > self._limits.entries:
            raise Refusal(
                f"The submission has more than {self._limits.entries} files and directories.",
                "Leave only the model's own files in it.",
            )
        for name in names:
            _check_name(name, self._limits)
        return names

    def _read_states(self, source: int, names: Iterable[str]) -> dict[str, _FileState]:
        states = {}
        for name in names:
            with _explain_read_errors(self._root / name):
                states[name] = _read_state(os.stat(name, dir_fd=source, follow_symlinks=False))
        return states

    def _check_limits(self, states: dict[str, _FileState]) -> None:
        """Refuse wrong kinds and sizes of files before anything is copied."""
        for name, state in states.items():
            _check_kind(self._root / name, state)
        size = sum(state.size for state in states.values())
        if size > self._limits.bytes:
            raise Refusal(
                f"The submission has {size:,} bytes; the limit is {self._limits.bytes:,}.",
                "Leave only the model's own files in it, in the base model's precision.",
            )

    def _require_disk_space(self, source: int, states: dict[str, _FileState], destination: Path) -> None:
        size, spare = sum(state.size for state in states.values()), self._limits.spare_bytes
        free = shutil.disk_usage(destination).free
        largest = max(states, key=lambda name: states[name].size)
        if free < size + spare and not self._can_share_blocks(source, largest, destination):
            raise NoDiskSpace(
                f"The submission has {format_size(size)} and does not fit on the disk: {format_size(free)} "
                f"are free, and {format_size(size + spare)} are needed to copy it.",
                DELETE_HINT,
            )

    def _can_share_blocks(self, directory: int, name: str, destination: Path) -> bool:
        """Return whether a copy on this file system takes no space."""
        with _explain_read_errors(self._root / name):
            source = os.open(name, FILE, dir_fd=directory)
        try:
            with tempfile.TemporaryFile(dir=destination) as probe:
                return stat.S_ISREG(os.fstat(source).st_mode) and share_blocks(source, probe.fileno())
        except OSError:
            return False
        finally:
            os.close(source)

    def _copy_selected(self, directory: int, path: PurePosixPath, state: _FileState, target: Path) -> None:
        with _explain_read_errors(path):
            source = os.open(path.name, FILE, dir_fd=directory)
        try:
            # The name may lead to another file by now, so what was opened is compared with what was
            # checked.
            if _read_state(os.fstat(source)) != state:
                raise _change_refusal(path)
            with _explain_write_errors(target):
                digest = copy_and_hash(source, target, state.size, self._cancelled)
            if digest is None or _read_state(os.fstat(source)) != state:
                raise _change_refusal(path)
        finally:
            os.close(source)
        name = str(path.relative_to(self._root))
        self.files.append(FileHash(path=name, size=state.size, sha256=digest))


def _make_directory(directory: Path) -> None:
    with _explain_write_errors(directory):
        directory.mkdir()
        directory.chmod(FOLDER_MODE)


def _open_directory(workspace: Path, relative: PurePosixPath, limits: FreezeLimits) -> int:
    """Open the submission's directory without following links, and return its descriptor."""
    if relative.is_absolute() or not relative.parts or ".." in relative.parts:
        raise Refusal(
            f"{str(relative)[:80]!r} does not name a directory below the workspace.",
            "Save the model in its own directory, for example output/model, and submit that.",
        )
    for part in relative.parts:
        _check_name(part, limits)
    if len(os.fsencode(relative)) > PATH_LENGTH:
        raise Refusal(f"The submission's path is longer than {PATH_LENGTH} bytes.", "Use a shorter one.")
    try:
        directory = os.open(workspace, DIRECTORY)
    except OSError as error:
        raise MachineError(f"Cannot open the workspace {workspace}: {error.strerror}.") from error
    # One part at a time, each relative to an open directory: a parent that is swapped for a link in
    # between does not lead outside.
    for depth, part in enumerate(relative.parts, start=1):
        try:
            with _explain_read_errors(PurePosixPath(*relative.parts[:depth])):
                child = os.open(part, DIRECTORY, dir_fd=directory)
        finally:
            os.close(directory)
        directory = child
    return directory


def _read_state(status: os.stat_result) -> _FileState:
    return _FileState(
        status.st_mode,
        status.st_ino,
        status.st_nlink,
        status.st_size,
        status.st_mtime_ns,
        status.st_ctime_ns,
    )


def _check_name(name: str, limits: FreezeLimits) -> None:
    if not name.isprintable():
        raise Refusal(
            f"The name {name[:255]!r} contains control characters or is not UTF-8.", "Use a plain file name."
        )
    if len(name.encode()) > limits.name_length:
        raise Refusal(
            f"The name {name[:40]!r}... has {len(name.encode())} bytes; the limit is {limits.name_length}.",
            "Use a shorter file name.",
        )


def _check_kind(path: PurePosixPath, state: _FileState) -> None:
    if stat.S_ISLNK(state.mode):
        raise Refusal(f"{path} is a symbolic link.", "Copy the files themselves: cp -rL FROM TO.")
    if not stat.S_ISREG(state.mode):
        raise Refusal(f"{path} is not a plain file.", f"Remove it: rm -r -- {shlex.quote(str(path))}")
    # The other name may be of a file that the agent cannot read, but a harness that is root can.
    if state.links != 1:
        raise Refusal(
            f"{path} is a hard link: it has {state.links} names.", "Copy the file itself: cp FROM TO."
        )


def _change_refusal(path: PurePosixPath) -> Refusal:
    return Refusal(
        f"{path} changed while it was copied.",
        "Wait until the training process has finished writing, then submit again.",
    )


@contextmanager
def _explain_read_errors(path: PurePosixPath) -> Iterator[None]:
    """Turn read errors into refusals if the agent caused them, else into errors of the machine."""
    try:
        yield
    except FileNotFoundError as error:
        raise Refusal(
            f"{path} does not exist in the workspace.", "Save the model, then submit again."
        ) from error
    except BlockingIOError as error:
        raise _change_refusal(path) from error  # a process holds a write lease on it
    except PermissionError as error:
        raise Refusal(f"{path} cannot be read.", "chmod -R u+rwX,go+rX DIRECTORY") from error
    except OSError as error:
        # ENXIO and ENODEV: sockets, and devices that nothing drives.
        if error.errno in (errno.ENOTDIR, errno.ELOOP, errno.ENXIO, errno.ENODEV, errno.ENAMETOOLONG):
            raise Refusal(
                f"{path} is a link or not a plain file. A submission must be a directory of plain files.",
                "Copy the files themselves: cp -rL FROM TO.",
            ) from error
        raise MachineError(f"Cannot read {path} in the workspace: {error.strerror}.") from error


@contextmanager
def _explain_write_errors(target: Path) -> Iterator[None]:
    """Turn errors while writing the copy into errors of the machine; a full disk, into a refusal."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise NoDiskSpace("The disk became full while the submission was copied.", DELETE_HINT) from error
        raise MachineError(
            f"Cannot copy the submission to {target}: {error.strerror}.", "Free some disk space."
        ) from error
