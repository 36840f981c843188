"""The lock of a run: held while a harness works on it. In it stands when that harness was last alive.

The time is written and not left to the file's own, which a copy of the run directory would change.
"""

import fcntl
import os
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Self

from agent2rl.core.errors import UserError

BEAT_SECONDS = 1.0


class Hold:
    """Takes the lock, or says that somebody has it. Ends with the process, however that ends."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._file)
            raise UserError(
                f"A harness is at work on {path.parent.name}.", "`agent2rl show` says how far it is."
            ) from None
        self.last_beat = self._read()
        """When the harness before was last alive; None where that is not known."""

    def beat(self) -> None:
        """From here on it is this harness that is alive."""
        self._write()
        self._thread = threading.Thread(target=self._beat, name="heart", daemon=True)
        self._thread.start()

    def close(self) -> None:
        if self._over.is_set():
            return
        self._over.set()
        if self._thread:
            self._thread.join()
        os.close(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _beat(self) -> None:
        while not self._over.wait(BEAT_SECONDS):
            with suppress(OSError):  # a full disk costs precision, not the run
                self._write()

    def _write(self) -> None:
        os.pwrite(self._file, f"{time.time():017.3f}\n".encode(), 0)

    def _read(self) -> float | None:
        try:
            return float(os.pread(self._file, 100, 0))
        except ValueError:
            return None
