"""The first program of the confined sandbox. It confines a child, and kills everything that the child leaves.

    harness  ->  guard (the harness's user)  ->  child: drops its user, becomes inside.py  ->  command

It is started by path as `python -I -S confined_guard.py N`, where N is a descriptor with its settings:

    harness     pid of the harness
    uid         the command's user; null: the harness's own
    ruleset     descriptor of the Landlock ruleset
    ports       whether the ruleset restricts TCP ports
    filter      the system-call filter, in hexadecimal
    broker      whether the filter passes TCP sockets on to a broker (`loopback_sockets`)

The child gets its plan on stdin, as in the other sandboxes, and applies the ruleset and the filter once it
knows the ports of its service sockets. The guard adopts every process that loses its parent, so none is lost.
It kills them all when the child ends, on SIGTERM and when the harness dies. With a user of its own the
command cannot signal the guard, and one kill(-1) as that user reaches every process at once.
"""

import contextlib
import ctypes
import json
import os
import signal
import struct
import sys
import time

# By path, because -I leaves this package out. All imports are done before anything is confined.
sys.path.insert(0, __file__.rsplit("/", 3)[0])

from agent2rl.sandboxes import inside, landlock, loopback_sockets

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from typing import Any

SET_PARENT_DEATH_SIGNAL, DROP_BOUND, SET_SUBREAPER = 1, 24, 36
CAPABILITY_VERSION = 0x20080522
CAPABILITIES = 64
PAUSE_SECONDS = 0.002
KILLED = 128 + signal.SIGKILL
WAITED_SIGNALS = {signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP}

_libc = ctypes.CDLL(None, use_errno=True)


def main() -> int:
    with open(int(sys.argv[1]), encoding="ascii") as file:
        settings = json.load(file)
    signal.pthread_sigmask(signal.SIG_BLOCK, WAITED_SIGNALS)
    inside.call_prctl(SET_SUBREAPER, 1)
    inside.call_prctl(SET_PARENT_DEATH_SIGNAL, signal.SIGTERM)
    if os.getppid() != settings["harness"]:  # it died before the line above
        return inside.HARNESS_GONE
    link = loopback_sockets.start_broker(settings["uid"]) if settings["broker"] else None
    child = os.fork()
    if child == 0:
        _run_child(settings, link)
    _close_descriptors(link)
    code = _wait_for_end(child)
    if link:
        link.close()
    _kill_everything(settings["uid"])
    return code


def _close_descriptors(link: "socket.socket | None") -> None:
    """Leave the pipes to the child; only its messages about errors go to the log."""
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    kept = link.fileno() if link else 2
    os.closerange(3, kept)
    os.closerange(kept + 1, 1 << 16)


def _wait_for_end(child: int) -> int:
    """Wait until the child ends or the harness wants the end. Return the child's exit code."""
    while True:
        number = signal.sigwait(WAITED_SIGNALS)
        if number == signal.SIGTERM:
            return KILLED
        # One SIGCHLD may stand for several children.
        while (ended := _reap_one(os.WNOHANG)) is not None and ended[0]:
            if ended[0] == child:
                code = os.waitstatus_to_exitcode(ended[1])
                return code if code >= 0 else 128 - code


def _reap_one(flags: int) -> "tuple[int, int] | None":
    """Return the pid (0: all still run) and the status of an ended child; None if there is no child."""
    try:
        return os.waitpid(-1, flags)
    except ChildProcessError:
        return None


def _kill_everything(uid: int | None) -> None:
    """Kill all processes below this one, and wait until all are gone."""
    # More than once, because a process may fork while the others are killed.
    while True:
        if uid is None:
            _kill_descendants()
        else:
            _kill_user(uid)
        while (ended := _reap_one(os.WNOHANG)) is not None and ended[0]:
            pass
        if ended is None:
            return
        time.sleep(PAUSE_SECONDS)


def _kill_user(uid: int) -> None:
    """Kill all processes of a user: as this user, so that nothing else can be hit."""
    killer = os.fork()
    if killer == 0:
        with contextlib.suppress(OSError):
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            os.kill(-1, signal.SIGKILL)
        os._exit(0)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(killer, 0)


def _kill_descendants() -> None:
    parents = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 (pathlib is slow to import)
        with contextlib.suppress(OSError):
            if name.isdigit():
                # The name before the fields may hold brackets, too.
                with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                    parents[int(name)] = int(file.read().rpartition(")")[2].split()[1])
    below, grew = {os.getpid()}, True
    while grew:
        new = {pid for pid, parent in parents.items() if parent in below} - below
        below, grew = below | new, bool(new)
    for pid in below - {os.getpid()}:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)


def _run_child(settings: "dict[str, Any]", link: "socket.socket | None") -> None:
    """Drop the privileges and become the program that starts the command. Never returns."""
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        inside.mark_process()  # later, its files in /proc may belong to root
        if settings["uid"] is not None:
            _become_user(settings["uid"])
        code = inside.main(lambda ports: _confine(settings, ports, link))
    except BaseException as error:
        os.write(2, f"{type(error).__name__}: {error}\n".encode())
        code = inside.NOT_STARTED
    os._exit(code)


def _become_user(uid: int) -> None:
    """Become another user, without groups and without any way to capabilities."""
    for number in range(CAPABILITIES):
        with contextlib.suppress(OSError):  # the kernel has fewer, or they cannot be dropped
            inside.call_prctl(DROP_BOUND, number)
    # The groups come first: without root's id nobody may change them.
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    header, none = struct.pack("=Ii", CAPABILITY_VERSION, 0), bytes(24)
    if _libc.capset(header, none) < 0:
        raise OSError(ctypes.get_errno(), "the capabilities cannot be dropped")


def _confine(settings: "dict[str, Any]", ports: "list[int]", link: "socket.socket | None") -> None:
    # The kernel wants this from a process without privileges, for Landlock and for the filter.
    inside.call_prctl(inside.SET_NO_NEW_PRIVILEGES, 1)
    if settings["ports"]:
        for port in ports:
            landlock.allow_connections(settings["ruleset"], port)
    landlock.restrict_thread(settings["ruleset"])
    os.close(settings["ruleset"])
    code = bytes.fromhex(settings["filter"])
    if link is None:
        inside.install_filter(code)
        return
    loopback_sockets.hand_listener(link, loopback_sockets.install_with_listener(code))
    link.close()


if __name__ == "__main__":
    os._exit(main())
