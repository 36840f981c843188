"""Runs in a sandbox and tries to break each of its promises; prints its findings as one line of JSON.

It uses the standard library only. Its one argument is a JSON object with the set-up of the test:

    secret         a file outside that must not be seen
    shared         a directory of the host that must be seen
    hidden         directories and files of the host, in it and elsewhere, that must not: path, device, inode
    read_only      a directory inside that must not be writable
    word           what the service at $SERVICE_URL answers
    variables      the names that the environment may hold
"""

import ctypes
import fcntl
import json
import os
import signal
import socket
import struct
import sys
from pathlib import Path
from urllib.parse import urlsplit

CLONE_NEWUSER = 0x10000000
PTRACE_TRACEME = 0
AF_VSOCK = 40
SIOCGIFFLAGS = 0x8913
IFF_UP = 1
# In a range that is never assigned (RFC 5737), so that a broken sandbox contacts no real host.
SOMEWHERE = ("192.0.2.1", 80)


def main() -> None:
    setup = json.loads(sys.argv[1])
    findings = {
        "no-root": os.getuid() != 0 and os.geteuid() != 0 and 0 not in os.getgroups(),
        "no-capabilities": not any(_read_capabilities()),
        "workspace": _is_writable(Path.cwd()) and _is_writable(Path.home()) and _is_writable(Path("/tmp")),
        "read-only": not any(
            _is_writable(Path(place)) for place in (setup["read_only"], "/", "/usr", "/etc", "/run")
        ),
        "files": not Path(setup["secret"]).exists(),
        "hidden": Path(setup["shared"]).is_dir() and not any(_is_shown(*place) for place in setup["hidden"]),
        "environment": set(os.environ) <= set(setup["variables"]),
        "kernel-settings": not _can_open("/proc/sys/kernel/core_pattern")
        and not _can_open("/proc/sysrq-trigger"),
        "processes": _list_visible_pids() <= {1, os.getppid(), os.getpid()},
        "service": _ask_service(os.environ["SERVICE_URL"]) == setup["word"],
        "network": _interfaces_up() == {"lo"} and not _can_connect(),
        "vsock": not _has_socket(AF_VSOCK),
        "namespaces": not _call_succeeds("unshare", CLONE_NEWUSER),
        "tracing": not _call_succeeds("ptrace", PTRACE_TRACEME, 0, 0, 0),
    }
    _leave_daemon()
    print(json.dumps(findings), flush=True)


def _read_capabilities() -> list[int]:
    lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
    return [int(line.split()[1], 16) for line in lines if line.startswith("Cap")]


def _is_writable(directory: Path) -> bool:
    mark = directory / f".agent2rl-{os.getpid()}"
    try:
        mark.write_text("", encoding="ascii")
    except OSError:
        return False
    mark.unlink()
    return True


def _is_shown(path: str, device: int, inode: int) -> bool:
    """Check whether this exact file is there; an empty directory in its place has another inode."""
    try:
        status = Path(path).stat()
    except OSError:
        return False
    return (status.st_dev, status.st_ino) == (device, inode)


def _can_open(path: str) -> bool:
    """Check whether it can be opened for writing; nothing is written."""
    try:
        os.close(os.open(path, os.O_WRONLY))
    except OSError:
        return False
    return True


def _list_visible_pids() -> set[int]:
    return {int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()}


def _ask_service(url: str) -> str:
    address = urlsplit(url)
    try:
        with socket.create_connection((address.hostname, address.port), timeout=5) as link:
            link.sendall(b"GET / HTTP/1.0\r\n\r\n")
            answer = link.makefile("rb").read()
    except OSError:
        return ""
    return answer.rpartition(b"\r\n\r\n")[2].decode()


def _interfaces_up() -> set[str]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        names = [name for _, name in socket.if_nameindex()]
        answers = [
            fcntl.ioctl(any_socket, SIOCGIFFLAGS, struct.pack("16sh14x", name.encode(), 0)) for name in names
        ]
    flags = [struct.unpack("16sh14x", answer)[1] for answer in answers]
    return {name for name, flag in zip(names, flags, strict=True) if flag & IFF_UP}


def _can_connect() -> bool:
    """Check whether there is a route out. Only an immediate error means no: a timeout may be a firewall."""
    try:
        socket.create_connection(SOMEWHERE, timeout=1).close()
    except TimeoutError:
        return True
    except OSError:
        return False
    return True


def _has_socket(family: int) -> bool:
    try:
        socket.socket(family, socket.SOCK_STREAM).close()
    except OSError:
        return False
    return True


def _call_succeeds(name: str, *arguments: int) -> bool:
    """Check whether a C library function returns 0; it runs in a child because it may change the process."""
    child = os.fork()
    if child == 0:
        os._exit(getattr(ctypes.CDLL(None), name)(*arguments) != 0)
    return os.waitpid(child, 0)[1] == 0


def _leave_daemon() -> None:
    """Start a daemon in its own session that holds a lock as long as it lives."""
    ready, ready_daemon = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            lock = os.open("daemon.lock", os.O_CREAT | os.O_RDWR, 0o600)
            fcntl.flock(lock, fcntl.LOCK_EX)
            os.write(ready_daemon, b"1")
            signal.pause()
        os._exit(0)
    os.wait()
    os.read(ready, 1)


if __name__ == "__main__":
    main()
