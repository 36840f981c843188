"""Gives a sandbox TCP sockets that are bound to the loopback device, where it has no network of its own.

Landlock restricts ports and knows no hosts. So the sandbox's system-call filter passes the creation of each
TCP socket to a broker outside (seccomp's user notification). The broker makes the socket, binds it to the
device `lo`, and puts it in the table of the process that asked. Only CAP_NET_RAW could undo that. Such a
socket reaches this machine only, whatever the address, and only this machine reaches it.

If the broker is gone, no TCP socket can be made. This module uses the standard library only.

    python -I -S loopback_sockets.py FILTER    ends with 0 if this works here: from Linux 5.14, unless the
                                               container's runtime passes on system calls itself
"""

import contextlib
import ctypes
import fcntl
import os
import platform
import select
import socket
import struct
import sys

SECCOMP = {"x86_64": 317, "aarch64": 277}
"""The system call seccomp(2)."""
SET_FILTER, NEW_LISTENER, WAIT_KILLABLE = 1, 1 << 3, 1 << 5
SET_NO_NEW_PRIVILEGES = 38
RECEIVE, ANSWER, ADD_DESCRIPTOR = 0xC0502100, 0xC0182101, 0x40182103
"""Requests to the listener (linux/seccomp.h)."""
AND_ANSWER = 1 << 1
REQUEST = struct.Struct("=QIIiIQ6Q")
"""Its id, pid and flags; the call's number, architecture, address and arguments."""
LOOPBACK = b"lo"

_libc = ctypes.CDLL(None, use_errno=True)


def install_with_listener(code: bytes) -> int:
    """Install a system-call filter for this thread; return the descriptor for what it passes on."""
    text = ctypes.create_string_buffer(code)
    program = struct.pack("@HP", len(code) // 8, ctypes.addressof(text))
    number = ctypes.c_long(SECCOMP[platform.machine()])
    for flags in (NEW_LISTENER | WAIT_KILLABLE, NEW_LISTENER):  # the second is for kernels before 5.19
        descriptor = int(_libc.syscall(number, SET_FILTER, flags, program))
        if descriptor >= 0:
            return descriptor
    error = ctypes.get_errno()
    raise OSError(error, f"seccomp: {os.strerror(error)}")


def start_broker(uid: int | None) -> socket.socket:
    """Fork a broker for sockets that belong to a user. Return where to send the listener.

    The broker ends when all copies of what is returned are closed, or no process has the filter any more.
    """
    link, far = socket.socketpair()
    if os.fork():
        far.close()
        return link
    try:
        link.close()
        _close_all_but(far.fileno())
        _, descriptors, _, _ = socket.recv_fds(far, 1, 1)
        for listener in descriptors:
            _answer_requests(listener, far, uid)
    finally:
        os._exit(0)


def _close_all_but(descriptor: int) -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(nothing, number)
    os.closerange(3, descriptor)
    os.closerange(descriptor + 1, 1 << 16)


def hand_listener(link: socket.socket, listener: int) -> None:
    """Pass the listener on, and close it here: whoever has it can answer."""
    socket.send_fds(link, [b"x"], [listener])
    os.close(listener)


def _answer_requests(listener: int, link: socket.socket, uid: int | None) -> None:
    waiting = select.poll()
    waiting.register(listener, select.POLLIN)
    # Nothing is read from it: its hang-up says that the sandbox is gone.
    waiting.register(link, 0)
    while waiting.poll() == [(listener, select.POLLIN)]:
        message = bytearray(REQUEST.size)
        try:
            fcntl.ioctl(listener, RECEIVE, message)
        except FileNotFoundError:  # the process that asked was killed
            continue
        identity, *_, family, kind, protocol, _, _, _ = REQUEST.unpack(message)
        try:
            with _open_socket(family, kind, protocol, uid) as made:
                flags = os.O_CLOEXEC if kind & socket.SOCK_CLOEXEC else 0
                # In one step. In two, a process that is interrupted in between would leak the
                # descriptor.
                addition = struct.pack("=QIIII", identity, AND_ANSWER, made.fileno(), 0, flags)
                fcntl.ioctl(listener, ADD_DESCRIPTOR, addition)
        except OSError as error:
            _refuse(listener, identity, error.errno or 0)


def _open_socket(family: int, kind: int, protocol: int, uid: int | None) -> socket.socket:
    # The kernel looks at the lower half of these arguments only.
    made = socket.socket(family & 0xFFFFFFFF, kind & 0xFFFFFFFF, protocol & 0xFFFFFFFF)
    try:
        made.setblocking(not kind & socket.SOCK_NONBLOCK)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, LOOPBACK)
        if uid is not None:
            os.fchown(made.fileno(), uid, uid)
    except BaseException:
        made.close()
        raise
    return made


def _refuse(listener: int, identity: int, error: int) -> None:
    with contextlib.suppress(OSError):  # the process that asked was killed
        fcntl.ioctl(listener, ANSWER, struct.pack("=QqiI", identity, 0, -error, 0))


def is_bound(made: socket.socket) -> bool:
    """Check whether a socket is bound to the loopback device."""
    return made.getsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, 16).rstrip(b"\0") == LOOPBACK


def _try_filter(code: bytes) -> bool:
    link = start_broker(None)
    _libc.prctl(SET_NO_NEW_PRIVILEGES, ctypes.c_ulong(1), 0, 0, 0)
    hand_listener(link, install_with_listener(code))
    with socket.socket() as made:
        return is_bound(made)


if __name__ == "__main__":
    sys.exit(not _try_filter(bytes.fromhex(sys.argv[1])))
