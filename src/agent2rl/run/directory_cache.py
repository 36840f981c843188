"""Cache directories atomically, and never use a damaged one.

A directory is filled beside its place and then moved there. If the process is killed meanwhile, the next one
that needs the directory removes what is left and starts again.

models/abacus/                    quick to write: written each time and compared
models/smollm2-135m-…/            slow to build: built once, then checked against its record
models/smollm2-135m-….json        the record: every file with its sha256
"""

import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pydantic import ValidationError
from safetensors import SafetensorError

from agent2rl.core.errors import MachineError
from agent2rl.core.grading_records import Manifest
from agent2rl.grading.file_hashes import FileHashCache
from agent2rl.grading.freeze import compute_manifest
from agent2rl.record.files import remove_tree, write_record
from agent2rl.system.unix import fcntl

ABANDONED_SECONDS = 86400.0
Write = Callable[[Path], None]
"""Function that fills an empty directory."""


def write_if_changed(target: Path, write: Write) -> Path:
    """Write the directory, and replace the old one if they differ."""
    try:
        _make_private_directory(target.parent)
        with _make_staging_directory(target, ABANDONED_SECONDS) as partial:
            write(partial)
            _make_world_readable(partial)
            if not target.is_dir() or compute_manifest(target) != compute_manifest(partial):
                shutil.rmtree(target, ignore_errors=True)
                partial.rename(target)
    except (OSError, SafetensorError) as error:
        if not target.is_dir():  # a read-only cache is enough if the directory exists
            raise _make_cache_error(target, error) from error
    return target


def store_by_content(folder: Path, name: str, write: Write) -> tuple[Path, str]:
    """Write the directory under its name and hash, and return it with the full hash."""
    with tempfile.TemporaryDirectory(prefix="agent2rl-") as place:
        write(Path(place))
        sha256 = compute_manifest(Path(place)).sha256
        target = folder / f"{name}-{sha256[:16]}"
        if not _has_content(target, sha256):
            try:
                _store_tree(Path(place), target, sha256)
            except OSError as error:
                raise _make_cache_error(target, error) from error
    return target, sha256


def _store_tree(place: Path, target: Path, sha256: str) -> None:
    with lock_directory(target):
        # Looked at again, because another process may have made it while this one waited.
        if not _has_content(target, sha256):
            with _make_staging_directory(target) as partial:
                shutil.copytree(place, partial, dirs_exist_ok=True)
                _make_world_readable(partial)
                shutil.rmtree(target, ignore_errors=True)
                partial.rename(target)


def _has_content(target: Path, sha256: str) -> bool:
    return target.is_dir() and compute_manifest(target).sha256 == sha256


def build_once(target: Path, make: Write, hashes: FileHashCache | None = None) -> Path:
    """Build the directory unless an intact one exists. Concurrent callers wait."""
    record = target.with_name(f"{target.name}.json")
    if _matches_record(target, record, hashes):
        return target
    try:
        with lock_directory(target):
            # Looked at again, because another process may have made it while this one waited.
            if not _matches_record(target, record, hashes):
                _build_and_record(target, record, make)
    except (OSError, SafetensorError) as error:
        raise _make_cache_error(target, error) from error
    return target


def _build_and_record(target: Path, record: Path, make: Write) -> None:
    with _make_staging_directory(target) as partial:
        make(partial)
        _make_world_readable(partial)
        # A directory without its record does not count, so a crash from here on leaves nothing that
        # is used.
        record.unlink(missing_ok=True)
        shutil.rmtree(target, ignore_errors=True)
        partial.rename(target)
        write_record(record, compute_manifest(target))


def _matches_record(target: Path, record: Path, hashes: FileHashCache | None) -> bool:
    with suppress(OSError, ValidationError):
        return Manifest.model_validate_json(record.read_bytes()) == compute_manifest(target, hashes)
    return False


@contextmanager
def _make_staging_directory(target: Path, abandoned_seconds: float = 0.0) -> Iterator[Path]:
    """Yield an empty directory next to the target; it is deleted afterwards unless it was moved.

    Others for the same target that are older than `abandoned_seconds` are deleted first: processes that were
    killed left them. Who holds the target's lock need not wait.
    """
    prefix = f".preparing-{target.name}-"
    ours = re.compile(re.escape(prefix) + "[a-z0-9_]+")  # no hyphen: not those of a longer name
    for path in filter(lambda path: ours.fullmatch(path.name), target.parent.iterdir()):
        with suppress(OSError):  # it was moved into place meanwhile
            if time.time() - path.stat().st_mtime >= abandoned_seconds:
                remove_tree(path)
    partial = Path(tempfile.mkdtemp(prefix=prefix, dir=target.parent))
    try:
        yield partial
    finally:
        shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def lock_directory(target: Path) -> Iterator[None]:
    """Hold the lock of a directory; concurrent callers wait."""
    _make_private_directory(target.parent)
    with target.with_name(f".{target.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _make_private_directory(folder: Path) -> None:
    """Create the folder and its parents as private: evaluation examples are hidden from other users."""
    for each in reversed((folder, *folder.parents)):
        if not each.is_dir():
            each.mkdir(mode=0o700, exist_ok=True)


def _make_world_readable(directory: Path) -> None:
    """Make the directory readable for sandboxes, which run as another user."""
    for path in (directory, *directory.rglob("*")):
        mode = 0o755 if path.is_dir() else 0o644
        if path.stat().st_mode & 0o777 != mode:
            path.chmod(mode)


def _make_cache_error(target: Path, error: Exception) -> MachineError:
    return MachineError(
        f"{target} cannot be prepared: {error}.",
        "Free some space, or name another directory in AGENT2RL_CACHE.",
    )
