"""Finds weights and logs in a workspace as they appear, without being led or held by what lies there.

No link is followed and nothing is opened but folders. Those near the top come first, and of each folder and
of all together only so many names are looked at: a million files cost what thousands do.
"""

import os
import re
import stat
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

from agent2rl.core.events import FileSeen
from agent2rl.store import untrusted_files
from agent2rl.store.code_snapshot import LEFT_OUT, SKIPPED

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
