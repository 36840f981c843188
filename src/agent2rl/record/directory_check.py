"""Check that a run directory of somebody else is safe to read, before anything in it is opened.

A symlink leads outside, reading a pipe blocks for ever, a sparse file fills the memory. So a run directory
may hold only plain files and folders of its own, of limited size. The check reads no contents of files.
"""

import os
import stat
from collections.abc import Iterator

from agent2rl.record.paths import RunPaths

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
