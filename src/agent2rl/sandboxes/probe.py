"""Runs in a sandbox and tries to break each of its promises; prints its findings as one line of JSON.

A finding is what breaks the promise, in a few words, and empty if nothing does. The probe uses the standard
library only. Its one argument is a JSON object with the set-up of the test:

    secret         a directory outside that must not be seen; the file `key` in it must not be read
    shared         a directory of the host that must be seen
    hidden         directories and files of the host, in it and elsewhere, that must not: path, device, inode
    read_only      a directory inside that must not be writable
    given          another one, which is a part of the workspace
    port           a TCP port of the host that must not be reached
    other_service  the socket of another service of the harness, which must not answer
    socket         a unix socket of the host that must not be reached
    abstract       the name of an abstract unix socket of the host that must not be reached
    process        a process of the host, with which nothing must be possible
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
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

CLONE_NEWUSER = 0x10000000
PTRACE_TRACEME = 0
AF_VSOCK = 40
SIOCGIFFLAGS = 0x8913
IFF_UP = 1
MOST_NAMES = 3
KERNEL_SETTINGS = ("/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger")
# In a range that is never assigned (RFC 5737), so that a broken sandbox contacts no real host.
SOMEWHERE = ("192.0.2.1", 80)


def main() -> None:
    setup = json.loads(sys.argv[1])
    writable = _select(_is_writable, (setup["read_only"], "/", "/usr", "/etc", "/run"))
    secret, key, process = setup["secret"], f"{setup['secret']}/key", setup["process"]
    memory = [f"/proc/{process}/{name}" for name in ("environ", "mem", "cwd", "fd/0")]
    findings = {
        "no-root": _find_root(),
        "no-capabilities": _find_capabilities(),
        "workspace": _find_closed((str(Path.cwd()), str(Path.home()), os.environ["TMPDIR"])),
        "read-only": _say("can be written to", [*writable, *_select(_is_writable, ("/dev",))]),
        "read-only-files": _say("can be written to", writable),
        "files": _say("exists", _select(os.path.exists, (secret,))),
        "hidden": _find_shown(setup["shared"], setup["hidden"]),
        "environment": _say("is set", sorted(set(os.environ) - set(setup["variables"]))),
        "kernel-settings": _say("can be opened", _select(_can_open, KERNEL_SETTINGS)),
        "processes": _find_other_processes(),
        "service": _find_wrong_answer(os.environ["SERVICE_URL"], setup["word"]),
        "network": _find_network(setup["port"])
        or _say("answers", _select(_is_answered, (setup["other_service"],))),
        "vsock": "a socket can be made" if _has_socket(AF_VSOCK) else "",
        "namespaces": "unshare works" if _call_succeeds("unshare", CLONE_NEWUSER) else "",
        "tracing": "ptrace works" if _call_succeeds("ptrace", PTRACE_TRACEME, 0, 0, 0) else "",
        "content": _say("can be read", _select(_can_read, (secret, key))),
        "hidden-content": _say(
            "can be read", _select(_can_read, (f"{path}/key" for path, *_ in setup["hidden"]))
        ),
        "given-files": _say("can be written to", _select(_is_writable, (setup["given"],)))
        or _say("can be renamed", _select(_can_rename, (setup["given"],))),
        "attributes": _say("can be changed", _select(_can_touch, (key,))),
        "memory": _say("can be read", _select(_can_read, memory)),
        "signals": f"process {process} can be signalled" if _can_signal(process) else "",
        "unix-sockets": _say("answers", _select(_can_connect_to_socket, (setup["socket"],))),
        "abstract-sockets": _say("answers", _select(_can_connect_to_socket, (f"\0{setup['abstract']}",))),
    }
    _leave_daemon()
    print(json.dumps(findings), flush=True)


def _select(test: "Callable[[str], bool]", names: "Iterable[str]") -> list[str]:
    return [name for name in names if test(name)]


def _say(verb: str, names: list[str]) -> str:
    """Return which names break a promise; empty if there are none."""
    more = f" (and {len(names) - MOST_NAMES} more)" if len(names) > MOST_NAMES else ""
    shown = ", ".join(name.replace("\0", "@") for name in names[:MOST_NAMES])
    return f"{shown}{more} {verb}" if names else ""


def _find_root() -> str:
    groups = os.getgroups()
    if 0 not in (os.getuid(), os.geteuid(), *groups):
        return ""
    return f"its uid is {os.getuid()}, its effective uid {os.geteuid()}, its groups {groups}"


def _find_capabilities() -> str:
    """Return the sets that hold any. The bounding set matters only if privileges can be gained."""
    text = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    fields = dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)
    unused = {"CapBnd"} if fields["NoNewPrivs"] == "1" else set()
    sets = {name: value for name, value in fields.items() if name.startswith("Cap") and name not in unused}
    return ", ".join(f"{name} is {value.strip()}" for name, value in sets.items() if int(value, 16))


def _find_closed(directories: "Iterable[str]") -> str:
    errors = ((directory, _find_write_error(directory)) for directory in directories)
    return ", ".join(f"{directory}: {error}" for directory, error in errors if error)


def _is_writable(directory: str) -> bool:
    return not _find_write_error(directory)


def _find_write_error(directory: str) -> str:
    mark = Path(directory, f".agent2rl-{os.getpid()}")
    try:
        mark.write_text("", encoding="ascii")
    except OSError as error:
        return error.strerror or str(error)
    mark.unlink()
    return ""


def _find_shown(shared: str, hidden: "Iterable[tuple[str, int, int]]") -> str:
    if not Path(shared).is_dir():
        return f"{shared}, which must be seen, is missing"
    return _say("can be seen", [place[0] for place in hidden if _is_shown(*place)])


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


def _can_read(path: str) -> bool:
    """Check whether a file can be read or a directory listed, by its path or through a link of our own."""
    link = Path(f"link-{os.getpid()}")
    link.symlink_to(path)
    try:
        return any(_can_open_for_reading(name) for name in (path, str(link)))
    finally:
        link.unlink()


def _can_open_for_reading(path: str) -> bool:
    try:
        os.close(os.open(path, os.O_RDONLY))
    except OSError:
        return False
    return True


def _can_touch(path: str) -> bool:
    try:
        os.utime(path)
    except OSError:
        return False
    return True


def _can_rename(path: str) -> bool:
    with suppress(OSError):
        Path(path).rename(f"{path}-moved")
        Path(f"{path}-moved").rename(path)
        return True
    return False


def _can_signal(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True


def _find_other_processes() -> str:
    pids = {int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()}
    return _say("can be seen", [f"process {pid}" for pid in sorted(pids - {1, os.getppid(), os.getpid()})])


def _find_wrong_answer(url: str, word: str) -> str:
    address = urlsplit(url)
    try:
        with socket.create_connection((address.hostname, address.port), timeout=5) as link:
            link.sendall(b"GET / HTTP/1.0\r\n\r\n")
            answer = link.makefile("rb").read()
    except OSError as error:
        return f"{url}: {error.strerror or error}"
    return "" if answer.rpartition(b"\r\n\r\n")[2] == word.encode() else f"{url} answers {answer[:200]!r}"


def _is_answered(path: str) -> bool:
    """Check whether a service answers that is not ours, also with its key if that can be read."""
    keys = [b""]
    with suppress(OSError):
        keys.append(Path(path).with_suffix(".key").read_bytes())
    # Longer than a key, so that the service need not wait for the rest of one.
    request = b"GET / HTTP/1.0\r\nHost: another-service-of-the-harness\r\n\r\n"
    return any(_ask_socket(path, key + request) for key in keys)


def _ask_socket(path: str, request: bytes) -> bytes:
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
            link.settimeout(5)
            link.connect(path)
            link.sendall(request)
            return link.recv(1)
    except OSError:
        return b""


def _interfaces_up() -> set[str]:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as any_socket:
        names = [name for _, name in socket.if_nameindex()]
        answers = [
            fcntl.ioctl(any_socket, SIOCGIFFLAGS, struct.pack("16sh14x", name.encode(), 0)) for name in names
        ]
    flags = [struct.unpack("16sh14x", answer)[1] for answer in answers]
    return {name for name, flag in zip(names, flags, strict=True) if flag & IFF_UP}


def _find_network(port: int) -> str:
    """Return an address that answers; empty if there is none.

    A sandbox with its own loopback may have its service socket at the port at which the host listens. Both
    cannot be in one network, so that is no connection to the host. Where the host's interfaces are visible, a
    rule must refuse all, and the sockets must be the loopback's: the rule knows only ports.
    """
    here = ("127.0.0.1", port)
    interfaces = _interfaces_up()
    if interfaces == {"lo"}:
        has_own_port = port == urlsplit(os.environ["SERVICE_URL"]).port
        addresses = (SOMEWHERE,) if has_own_port else (SOMEWHERE, here)
        return _say(
            "answers", [f"{host}:{number}" for host, number in addresses if _can_connect((host, number))]
        )
    seen = f"the interfaces {', '.join(sorted(interfaces)) or 'none'} are up"
    for address in (SOMEWHERE, here):
        if not _is_refused(address):
            return f"{seen}, and no rule refuses connections to {address[0]}:{address[1]}"
    families = (socket.AF_INET, socket.AF_INET6)
    if any(_has_socket(family, socket.SOCK_DGRAM) for family in families):
        return f"{seen}, and datagrams can be sent"
    bound = all(_is_bound_to_loopback(family) for family in families)
    return "" if bound else f"{seen}, and its sockets are not bound to the loopback's"


def _can_connect(address: tuple[str, int] | str, family: int = socket.AF_INET) -> bool:
    """Check whether it answers. Only an immediate error means no: a timeout may be a firewall."""
    try:
        with socket.socket(family, socket.SOCK_STREAM) as link:
            link.settimeout(1)
            link.connect(address)
            # Where nobody listens, a socket that gets the same port connects to itself.
            return bool(link.getsockname() != link.getpeername())
    except TimeoutError:
        return True
    except OSError:
        return False


def _can_connect_to_socket(path: str) -> bool:
    return _can_connect(path, socket.AF_UNIX)


def _is_refused(address: tuple[str, int]) -> bool:
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as link:
            link.settimeout(1)
            link.connect(address)
    except PermissionError:
        return True
    except OSError:
        return False
    return False


def _is_bound_to_loopback(family: int) -> bool:
    """Check it, after an attempt to undo it; a family that this kernel lacks reaches nothing."""
    if not _has_socket(family):
        return True
    with socket.socket(family, socket.SOCK_STREAM) as made:
        for device in (b"", b"eth0"):
            with suppress(OSError):
                made.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, device)
        return made.getsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, 16).rstrip(b"\0") == b"lo"


def _has_socket(family: int, kind: int = socket.SOCK_STREAM) -> bool:
    try:
        socket.socket(family, kind).close()
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
