"""Record each second that a harness is alive, and finally when it died.

    heartbeat.py DESCRIPTOR < PIPE

This is a separate process, because a thread cannot write while another one holds the interpreter or while the
harness is stopped, and the agent's time continues meanwhile. The harness holds the other end of the pipe. The
open file is the run's lock, with a lock of its own that ends with this process (`run_lock.py`). This file is
run by its path and uses only the standard library.

A line has the time and the monotonic clock, so that two lines can be compared even if the system time was
changed in between.
"""

import os
import select
import signal
import sys
import time
from contextlib import suppress

HEARTBEAT_SECONDS = 1.0


def format_heartbeat() -> bytes:
    # All lines have one length, so that none leaves the end of a longer one behind it.
    return f"{time.time():017.3f} {time.monotonic():017.3f}\n".encode()


def main(file: int) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # they go to all processes of the harness
    parent = os.getppid()
    closed_pipe: list[int] = []
    while not closed_pipe and os.getppid() == parent:
        with suppress(OSError):  # a full disk costs precision, not the run
            os.pwrite(file, format_heartbeat(), 0)
        closed_pipe = select.select([0], [], [], HEARTBEAT_SECONDS)[0]
    if closed_pipe:
        os.pwrite(file, format_heartbeat(), 0)


if __name__ == "__main__":
    main(int(sys.argv[1]))
