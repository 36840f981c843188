"""The files of a run directory: which are pinned when the run is closed, and which are not, and why.

Pinned in another way, and so left out here: the ledger and its head by the chain, the result by the record
`closed`, kept copies of submissions (which may be gigabytes) by their manifests.
"""

import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from agent2rl.core.records import FileHash, RunFiles
from agent2rl.store.paths import RunPaths


def uncovered_reasons(paths: RunPaths) -> dict[Path, str]:
    """Files and folders that nothing pins, and why."""
    return {
        paths.workspace: "it belongs to the agent; what counts of it is frozen with each submission",
        paths.report: "it is made from the record, and `agent2rl report` makes it anew",
        paths.scratch: "temporary files of the sandboxes, removed when the run ends",
        paths.lock: "it is written after the run is closed, and only says when the harness was last alive",
    }


def list_run_files(paths: RunPaths) -> Iterator[Path]:
    """Every file that is pinned when the run is closed, and whatever lies in between that is no folder."""
    elsewhere = {
        *uncovered_reasons(paths),
        *(paths.ledger, paths.ledger_head, paths.files, paths.result, paths.pending_result),
        *(folder / "model" for folder in paths.submissions.glob("*")),
    }
    folders = [paths.root]
    while folders:
        folder = folders.pop()
        try:
            with os.scandir(folder) as found:
                entries = sorted(found, key=lambda one: one.name)
        except FileNotFoundError:  # of a run that is going: git's folders come and go
            continue
        except OSError:
            yield folder
            continue
        for entry in entries:
            path = Path(entry.path)
            if path not in elsewhere and entry.is_dir(follow_symlinks=False):
                folders.append(path)
            elif path not in elsewhere:
                yield path


def hash_run_files(paths: RunPaths) -> RunFiles:
    """On the disk when this returns, so that a crash does not make an honest record look changed."""
    files = [_hash_durably(paths, path) for path in list_run_files(paths) if is_plain_file(path)]
    return RunFiles(files=tuple(sorted(files, key=lambda file: file.path)))


def is_plain_file(path: Path) -> bool:
    """Whether it is there and neither a link nor a pipe nor anything else that leads or holds its reader."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


def _hash_durably(paths: RunPaths, path: Path) -> FileHash:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        os.fsync(file.fileno())
        return FileHash(path=paths.relative_name(path), size=os.fstat(file.fileno()).st_size, sha256=digest)
