"""Follows the last line of a file that another process writes, in a thread."""

import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

LOOKED_AT = 4096
"""Bytes at the end of the file; a line longer than that is cut."""


class LogTail:
    """Tells each new last line, at most once every few seconds. Lines in between are not told."""

    def __init__(self, path: Path, tell: Callable[[str], None], every_seconds: float) -> None:
        self._path, self._tell, self._every = path, tell, every_seconds
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._poll_last_line, daemon=True)

    def _poll_last_line(self) -> None:
        told = ""
        while not self._end.wait(self._every):
            line = read_last_line(self._path)
            if line and line != told:
                self._tell(line)
                told = line

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        self._thread.join()


def read_last_line(path: Path) -> str:
    """The last whole line that is not empty, or nothing."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - LOOKED_AT))
            whole = file.read().rpartition(b"\n")[0]
    except OSError:
        return ""
    lines = whole.decode(errors="replace").splitlines()
    return next((line.strip() for line in reversed(lines) if line.strip()), "")
