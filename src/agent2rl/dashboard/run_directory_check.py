"""Whether a run directory holds only what pages may read: files and folders of its own, of a size that fits.

Whoever wrote a run directory may have meant harm: a link leads outside, a pipe makes its reader wait for
ever, a file with a hole fills the memory. Such a run is not shown. What is in its files is not looked at.
"""

import os
import stat
from collections.abc import Iterator

from agent2rl.store.paths import RunPaths

MOST_BYTES = 256 << 20
"""Of a file that is read as a whole."""
MOST_EVENTS_BYTES = 1 << 30
"""Of a file that is read in a process apart."""
MOST_LOG_BYTES = 16 << 30
"""Of a file that is read in part, and whose lines are counted."""


def find_fault(paths: RunPaths) -> str | None:
    """What is wrong with it, first thing; None where all is well."""
    apart = {paths.events.name, paths.usage.name}
    for folder in _iter_folders(paths):
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    if found := _check_entry(entry, apart):
                        return found
        except (FileNotFoundError, NotADirectoryError):
            continue  # not there yet, or a file in its place, which will be told of where it is read
    return None


def _iter_folders(paths: RunPaths) -> Iterator[str]:
    """All that something is read from, each after the one that it is in."""
    code = str(paths.revisions)
    yield from map(str, (paths.root, paths.report, paths.baseline.root))
    yield from (code, f"{code}/objects", f"{code}/objects/info", f"{code}/objects/pack", f"{code}/refs/heads")
    yield str(paths.submissions)
    try:
        with os.scandir(paths.submissions) as entries:
            yield from [entry.path for entry in entries]
    except (FileNotFoundError, NotADirectoryError):
        return


def _check_entry(entry: "os.DirEntry[str]", apart: set[str]) -> str | None:
    if entry.is_symlink():
        return f"has a link in it, {entry.name!r}"
    if entry.is_dir():
        return None
    found = entry.stat(follow_symlinks=False)
    if not stat.S_ISREG(found.st_mode):
        return f"has something in it that is neither a file nor a folder, {entry.name!r}"
    if entry.name in ("alternates", "commondir"):
        return "keeps its code in another place"
    most = MOST_LOG_BYTES if entry.name.endswith(".log") else MOST_BYTES
    if found.st_size > (MOST_EVENTS_BYTES if entry.name in apart else most):
        return f"has a file that is too large to be read, {entry.name!r}"
    return None
