"""Texts that took long to make, in a folder of the cache. What was not looked at for longest goes first."""

import hashlib
import os
from contextlib import suppress
from pathlib import Path

from agent2rl.store.files import write_atomically

MOST_CACHE_BYTES = 256 << 20


class PageCache:
    def __init__(self, folder: Path, most_bytes: int = MOST_CACHE_BYTES) -> None:
        self._folder, self._most = folder, most_bytes
        folder.mkdir(parents=True, exist_ok=True)

    def get(self, name: str) -> str | None:
        path = self._build_path(name)
        try:
            text = path.read_text(encoding="utf-8")
            os.utime(path)  # it was looked at now
        except (OSError, ValueError):
            return None
        return text

    def put(self, name: str, text: str) -> None:
        with suppress(OSError):  # a full disk: it is made again the next time
            write_atomically(self._build_path(name), text)
            self._evict_oldest()

    def _build_path(self, name: str) -> Path:
        return self._folder / f"{hashlib.sha256(name.encode()).hexdigest()[:32]}.html"

    def _evict_oldest(self) -> None:
        """Other servers clear the same folder, so that any of it may be gone."""
        found = []
        for path in self._folder.iterdir():
            with suppress(OSError):
                known = path.stat()
                found.append((known.st_mtime, known.st_size, path))
        room = self._most
        for _, size, path in sorted(found, reverse=True):
            room -= size
            if room < 0:
                path.unlink(missing_ok=True)
