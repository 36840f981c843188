"""Execute a program that is killed when its parent dies.

    launch.py PARENT CORES [NAME=VALUE]... -- PROGRAM...

Started by its path, with only the standard library. CORES is `all` or comma-separated numbers.
"""

import ctypes
import os
import signal
import sys

PDEATHSIG = 1


def main(arguments: list[str]) -> None:
    parent, cores, *rest = arguments
    split = rest.index("--")
    # The kernel sends it when the thread that started us ends, not the process. That thread waits
    # for us.
    if ctypes.CDLL(None, use_errno=True).prctl(PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")
    if os.getppid() != int(parent):  # the parent died before prctl took effect
        sys.exit(1)
    if cores != "all":
        os.sched_setaffinity(0, {int(core) for core in cores.split(",")})
    for name, _, value in (variable.partition("=") for variable in rest[:split]):
        os.environ[name] = value
    os.execvp(rest[split + 1], rest[split + 1 :])


if __name__ == "__main__":
    main(sys.argv[1:])
