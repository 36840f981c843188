"""Landlock: rules of the Linux kernel by which a process gives up access to files, TCP ports and processes.

It needs no privilege and no namespace. What it can forbid depends on the kernel, which numbers its abilities:

    1  (5.13)   reading, writing, executing and making files
    2  (5.19)   moving files between directories can be allowed
    3  (6.2)    truncating files
    4  (6.7)    TCP: binding and connecting to ports
    5  (6.10)   requests to device files (ioctl)
    6  (6.12)   signals to, and abstract unix sockets of, processes outside
    9  (7.1)    connecting to unix sockets that have a path and were made outside

Not used or not covered: names, sizes, modes and times of files; UDP; listening on a port that the kernel
chooses. Processes outside cannot be traced, and their memory cannot be read.

The harness builds a ruleset. `confined_guard.py` applies it, so this module uses the standard library only.
"""

import ctypes
import os
import struct

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
"""System calls; the numbers are the same on every architecture."""
RULE_PATH, RULE_PORT = 1, 2
GET_VERSION = 1

EXECUTE, WRITE_FILE, READ_FILE, READ_DIRECTORY = 1 << 0, 1 << 1, 1 << 2, 1 << 3
REMOVE_DIRECTORY, REMOVE_FILE = 1 << 4, 1 << 5
MAKE_DIRECTORY, MAKE_FILE, MAKE_SOCKET, MAKE_PIPE, MAKE_LINK = 1 << 7, 1 << 8, 1 << 9, 1 << 10, 1 << 12
MOVE, TRUNCATE, DEVICE_REQUEST, CONNECT_SOCKET = 1 << 13, 1 << 14, 1 << 15, 1 << 16
READ = EXECUTE | READ_FILE | READ_DIRECTORY
CHANGE = WRITE_FILE | REMOVE_DIRECTORY | REMOVE_FILE | MAKE_DIRECTORY | MAKE_FILE | MAKE_SOCKET | MAKE_PIPE
WRITE = READ | CHANGE | MAKE_LINK | MOVE | TRUNCATE
DEVICE = READ_FILE | WRITE_FILE | DEVICE_REQUEST | TRUNCATE
OF_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | DEVICE_REQUEST | CONNECT_SOCKET
"""The rights that a rule for a file may have; the others are of directories."""
BIND_TCP, CONNECT_TCP = 1 << 0, 1 << 1
ABSTRACT_SOCKETS, SIGNALS = 1 << 0, 1 << 1

MOVES_FROM, TRUNCATES_FROM, TCP_FROM, DEVICES_FROM, SCOPES_FROM, SOCKETS_FROM = 2, 3, 4, 5, 6, 9
"""Versions from which the kernel can forbid these."""

_libc = ctypes.CDLL(None, use_errno=True)


def _call_kernel(number: int, *arguments: int | bytes | None) -> int:
    words = [word if isinstance(word, (bytes, type(None))) else ctypes.c_ulong(word) for word in arguments]
    result = int(_libc.syscall(ctypes.c_long(number), *words))
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"landlock: {os.strerror(error)}")
    return result


def read_version() -> int:
    """Return the version of the kernel's Landlock; 0 if it has none or refuses it."""
    try:
        return _call_kernel(CREATE_RULESET, None, 0, GET_VERSION)
    except OSError:
        return 0


def _list_file_rights(version: int) -> int:
    rights = (1 << 13) - 1
    newer = (
        (MOVE, MOVES_FROM),
        (TRUNCATE, TRUNCATES_FROM),
        (DEVICE_REQUEST, DEVICES_FROM),
        (CONNECT_SOCKET, SOCKETS_FROM),
    )
    for right, first in newer:
        rights |= right if version >= first else 0
    return rights


class Ruleset:
    """Forbids everything that this kernel can forbid, except what is allowed here."""

    def __init__(self, version: int) -> None:
        self._rights = _list_file_rights(version)
        network = BIND_TCP | CONNECT_TCP if version >= TCP_FROM else 0
        scopes = ABSTRACT_SOCKETS | SIGNALS if version >= SCOPES_FROM else 0
        # Older kernels take a shorter structure.
        size = 24 if version >= SCOPES_FROM else 16 if version >= TCP_FROM else 8
        attributes = struct.pack("=QQQ", self._rights, network, scopes)
        self.descriptor = _call_kernel(CREATE_RULESET, attributes, size, 0)

    def allow_path(self, path: str, rights: int) -> None:
        """Allow rights on a file, or on a directory and everything below it. Links are followed."""
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            is_directory = os.path.isdir(path)  # noqa: PTH112 (pathlib is slow to import)
            rights &= self._rights if is_directory else self._rights & OF_FILES
            if not rights:  # of what is to be allowed here, this kernel forbids nothing
                return
            rule = struct.pack("=Qi", rights, place)
            _call_kernel(ADD_RULE, self.descriptor, RULE_PATH, rule, 0)
        finally:
            os.close(place)

    def close(self) -> None:
        os.close(self.descriptor)


def allow_connections(ruleset: int, port: int) -> None:
    """Allow TCP connections to a port, on whatever host."""
    _call_kernel(ADD_RULE, ruleset, RULE_PORT, struct.pack("=QQ", CONNECT_TCP, port), 0)


def restrict_thread(ruleset: int) -> None:
    """Apply a ruleset to this thread and everything that it starts. The process must have no_new_privs."""
    _call_kernel(RESTRICT_SELF, ruleset, 0)
