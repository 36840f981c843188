"""Notes each second that a harness is alive, and at last when it died.

    heart.py FILE < PIPE

A process of its own: a thread of the harness notes nothing while another one holds the interpreter, or while
the harness is stopped, and the agent's time goes on meanwhile. The harness holds the other end of the pipe.
Run by its path, with the standard library alone.

A line has the time and the monotonic clock, by which two of them can be compared though somebody set the
time between them.
"""

import os
import select
import signal
import sys
import time
from contextlib import suppress

BEAT_SECONDS = 1.0


def format_heartbeat() -> bytes:
    return f"{time.time():017.3f} {time.monotonic():017.3f}\n".encode()


def main(path: str) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # to the harness and all its processes; it may go on for long
    file, parent = os.open(path, os.O_WRONLY | os.O_CLOEXEC), os.getppid()
    over: list[int] = []
    while not over and os.getppid() == parent:
        with suppress(OSError):  # a full disk costs precision, not the run
            os.pwrite(file, format_heartbeat(), 0)
        over = select.select([0], [], [], BEAT_SECONDS)[0]
    if over:
        os.pwrite(file, format_heartbeat(), 0)


if __name__ == "__main__":
    main(sys.argv[1])
