"""The lock of a run, held while a harness works on it. The file contains the harness's last heartbeat.

The time is written into the file, because copying the run directory would change the file's own time.

A lock of the first byte is the harness's. A lock of the second byte is its heartbeat process's: on a busy
machine that process may note the harness's death only after another harness has the first one.

Readers never take the lock, not even briefly, because that could block a harness that starts at that moment.
"""

import math
import os
import struct
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Self

from agent2rl.core.errors import MachineError, UserError
from agent2rl.record import heartbeat
from agent2rl.record.files import require_no_link
from agent2rl.record.heartbeat import HEARTBEAT_SECONDS
from agent2rl.system.unix import O_CLOEXEC, O_NONBLOCK, fcntl

FLOCK_FORMAT = "hhqqi0q"
"""The kernel's struct flock: type, whence, start, length, process."""
HARNESS_LOCK_BYTE, HEARTBEAT_LOCK_BYTE = 0, 1
DIE_SECONDS = 5.0
LAST_HEARTBEAT_SECONDS = 30.0
"""How long to wait until the heartbeat process of a dead harness has noted the death."""
POLL_SECONDS = 0.01
HEARTBEAT_BYTES = 100
ALIVE_SECONDS = 60.0
"""A heartbeat of the last minute counts as alive; clocks of two machines may differ."""


class Heartbeat(NamedTuple):
    time: float
    monotonic: float | None
    """None if an older version wrote it."""


class RunLock:
    """Takes the lock, or raises if it is held. The kernel releases it when the process ends."""

    def __init__(self, path: Path) -> None:
        self._path = path
        require_no_link(path)
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise UserError(
                f"The lock of {path.parent.name} cannot be opened: {error.strerror}.",
                "Resume a run as the user who started it, on a machine where its directory is writable.",
            ) from error
        self._released = threading.Event()
        self._thread: threading.Thread | None = None
        self._heartbeat_process: subprocess.Popen[bytes] | None = None
        try:
            # A lock of the open file. A process's own would be lost as soon as it closes the file
            # anywhere.
            fcntl.fcntl(self._file, fcntl.F_OFD_SETLK, _pack_flock(HARNESS_LOCK_BYTE))
        except BlockingIOError:
            os.close(self._file)
            raise UserError(
                f"A harness is at work on {path.parent.name}.", "`agent2rl show` says how far it is."
            ) from None
        self.last_heartbeat = self._read_last_heartbeat()
        """When the previous harness was last alive; None if unknown."""

    def start_heartbeat(self) -> None:
        """Start recording this harness's heartbeat."""
        os.pwrite(self._file, heartbeat.format_heartbeat(), 0)
        with suppress(OSError):
            self._heartbeat_process = self._start_heartbeat_process()
        self._thread = threading.Thread(target=self._record_heartbeats, name="heartbeat", daemon=True)
        self._thread.start()

    def close(self) -> None:
        if self._released.is_set():
            return
        self._released.set()
        if self._thread:
            self._thread.join()
        if self._heartbeat_process:
            with suppress(OSError, subprocess.TimeoutExpired):
                self._heartbeat_process.communicate(timeout=DIE_SECONDS)
        os.close(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start_heartbeat_process(self) -> subprocess.Popen[bytes]:
        """Start the heartbeat process. It inherits its lock, so it holds it before it runs."""
        # Opened again: a lock belongs to an open file, and this one must not be the harness's.
        file = os.open(self._path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            with suppress(OSError):  # without the lock it still records
                fcntl.fcntl(file, fcntl.F_OFD_SETLK, _pack_flock(HEARTBEAT_LOCK_BYTE))
            command = [sys.executable, "-I", "-S", heartbeat.__file__, str(file)]
            return subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True, pass_fds=[file])
        finally:
            os.close(file)

    def _record_heartbeats(self) -> None:
        """Record here too: the heartbeat process may be killed, stopped, or get no CPU time."""
        while not self._released.wait(HEARTBEAT_SECONDS):
            with suppress(OSError):
                os.pwrite(self._file, heartbeat.format_heartbeat(), 0)

    def _read_last_heartbeat(self) -> Heartbeat | None:
        """Return the previous harness's last heartbeat, once its heartbeat process has noted its death."""
        now, deadline = Heartbeat(time.time(), time.monotonic()), time.monotonic() + LAST_HEARTBEAT_SECONDS
        waited = False
        while _is_locked(self._file, HEARTBEAT_LOCK_BYTE) and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
            waited = True
        last = _parse_heartbeat(os.pread(self._file, HEARTBEAT_BYTES, 0))
        # The time of the dead harness ends no later than that of this one begins.
        if waited and last and last.monotonic and now.monotonic and last.monotonic > now.monotonic:
            return now
        return last


def _parse_heartbeat(text: bytes) -> Heartbeat | None:
    try:
        at, *monotonic = (float(each) for each in text.split())
    except ValueError:
        return None
    if not all(map(math.isfinite, (at, *monotonic))):
        return None
    return Heartbeat(at, monotonic[0] if monotonic else None)


def is_held(path: Path) -> bool:
    """Return whether a harness holds the lock; without such locks, whether its heartbeat is recent."""
    try:
        file = os.open(path, os.O_RDONLY | O_CLOEXEC | O_NONBLOCK)  # do not block if it is a pipe
    except OSError:  # missing, or not accessible
        return False
    try:
        return _is_locked(file, HARNESS_LOCK_BYTE)
    except OSError:  # not a file that can be locked
        return False
    except (AttributeError, MachineError):  # not Linux
        return _has_fresh_heartbeat(file)
    finally:
        os.close(file)


def _is_locked(file: int, byte: int) -> bool:
    """Return whether somebody else holds the lock of a byte."""
    reply = fcntl.fcntl(file, fcntl.F_OFD_GETLK, _pack_flock(byte))
    kind: int = struct.unpack(FLOCK_FORMAT, reply)[0]
    return kind != fcntl.F_UNLCK


def _has_fresh_heartbeat(file: int) -> bool:
    with suppress(OSError):
        last = _parse_heartbeat(os.read(file, HEARTBEAT_BYTES))
        return last is not None and abs(time.time() - last.time) < ALIVE_SECONDS
    return False


def _pack_flock(byte: int) -> bytes:
    return struct.pack(FLOCK_FORMAT, fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0)
