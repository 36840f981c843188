"""The lock of a run: held while a harness works on it. In it stands when that harness was last alive.

The time is written and not left to the file's own, which a copy of the run directory would change.

Whoever looks takes no lock, not even for a moment: it would be in the way of a harness that begins then.
"""

import fcntl
import math
import os
import struct
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Self

from agent2rl.core.errors import UserError
from agent2rl.record import heartbeat
from agent2rl.record.heartbeat import BEAT_SECONDS

FLOCK_FORMAT = "hhqqi0q"
"""The kernel's struct flock: type, whence, start, length, process."""
DIE_SECONDS = 5.0


class Heartbeat(NamedTuple):
    time: float
    monotonic: float | None
    """None: noted by a version that did not."""


class RunLock:
    """Takes the lock, or says that somebody has it. Ends with the process, however that ends."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise UserError(
                f"The lock of {path.parent.name} cannot be opened: {error.strerror}.",
                "Only whoever began a run can go on with it, where it can be written.",
            ) from error
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._heart: subprocess.Popen[bytes] | None = None
        try:
            fcntl.fcntl(self._file, fcntl.F_OFD_SETLK, _pack_flock())
        except BlockingIOError:
            os.close(self._file)
            raise UserError(
                f"A harness is at work on {path.parent.name}.", "`agent2rl show` says how far it is."
            ) from None
        self.last_beat = self._read_heartbeat()
        """When the harness before was last alive; None where that is not known."""

    def start_heartbeat(self) -> None:
        """From here on it is this harness that is alive."""
        os.pwrite(self._file, heartbeat.format_heartbeat(), 0)
        command = [sys.executable, "-I", "-S", heartbeat.__file__, str(self._path)]
        with suppress(OSError):
            self._heart = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
        self._thread = threading.Thread(target=self._replace_heartbeat, name="heart", daemon=True)
        self._thread.start()

    def close(self) -> None:
        if self._over.is_set():
            return
        self._over.set()
        if self._thread:
            self._thread.join()
        if self._heart:
            with suppress(OSError, subprocess.TimeoutExpired):
                self._heart.communicate(timeout=DIE_SECONDS)
        os.close(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _replace_heartbeat(self) -> None:
        """For a heart that could not begin, or that somebody killed."""
        while not self._over.wait(BEAT_SECONDS):
            if self._heart is None or self._heart.poll() is not None:
                with suppress(OSError):
                    os.pwrite(self._file, heartbeat.format_heartbeat(), 0)

    def _read_heartbeat(self) -> Heartbeat | None:
        try:
            time, *monotonic = (float(each) for each in os.pread(self._file, 100, 0).split())
        except ValueError:
            return None
        if not all(map(math.isfinite, (time, *monotonic))):
            return None
        return Heartbeat(time, monotonic[0] if monotonic else None)


def is_held(path: Path) -> bool:
    """Whether a harness holds the lock."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe would wait for its writer
    except OSError:  # there is none, or it is not ours to open
        return False
    try:
        found = fcntl.fcntl(file, fcntl.F_OFD_GETLK, _pack_flock())
    except OSError:  # nothing that can be locked
        return False
    finally:
        os.close(file)
    kind: int = struct.unpack(FLOCK_FORMAT, found)[0]
    return kind != fcntl.F_UNLCK


def _pack_flock() -> bytes:
    return struct.pack(FLOCK_FORMAT, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
