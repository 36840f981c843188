"""Becomes another program that does not outlive its parent.

    launch.py PARENT CORES [NAME=VALUE]... -- PROGRAM...

Run by its path, with the standard library alone. CORES is `all`, or numbers with commas between them.
"""

import ctypes
import os
import signal
import sys

PDEATHSIG = 1


def main(arguments: list[str]) -> None:
    parent, cores, *rest = arguments
    split = rest.index("--")
    if ctypes.CDLL(None, use_errno=True).prctl(PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")
    if os.getppid() != int(parent):  # it was gone before this could be asked for
        sys.exit(1)
    if cores != "all":
        os.sched_setaffinity(0, {int(core) for core in cores.split(",")})
    for name, _, value in (each.partition("=") for each in rest[:split]):
        os.environ[name] = value
    os.execvp(rest[split + 1], rest[split + 1 :])


if __name__ == "__main__":
    main(sys.argv[1:])
