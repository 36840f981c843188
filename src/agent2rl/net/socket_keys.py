"""Keys of the harness's unix sockets: who only finds a socket's path gets no answer.

Where a sandbox has neither namespaces nor a user of its own, its command can connect to every unix socket of
the harness, also to those of other runs. But it can read no file that it was not given. So a server writes a
random key into a file beside its socket, and every connection begins with this key:

    http.sock    the socket
    http.key     its key

What follows the key is the protocol of the service. `key_gate` is the server's side. Clients are
`sandboxes/inside.py`, which gets the key in its plan, and the programs that see the file.
"""

import os
import secrets
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

KEY_BYTES = 32
"""Of the key as it is written and sent: 128 random bits in hexadecimal."""
SOCKET_NAME = "http.sock"


@contextmanager
def make_socket_directory() -> Iterator[Path]:
    """Yield the path of a socket to be made, in a directory of its own because such paths must be short.

    The directory can be mounted into a sandbox, where another user reads it. Its parent is private.
    """
    # Not in TMPDIR, which may be long: the path of a unix socket has 107 bytes at most.
    home = Path(tempfile.mkdtemp(prefix="agent2rl-", dir="/tmp"))
    shared = home / "s"
    try:
        shared.mkdir()
        shared.chmod(0o755)
        yield shared / SOCKET_NAME
    finally:
        shutil.rmtree(home, ignore_errors=True)


def write_key(path: Path) -> bytes:
    """Make a key for the socket at this path, write it beside the socket and return it."""
    key = secrets.token_hex(KEY_BYTES // 2).encode()
    file = os.open(_locate_key(path), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        os.fchmod(file, 0o644)  # whatever the umask
        os.write(file, key)
    finally:
        os.close(file)
    return key


def read_key(path: Path) -> bytes:
    """Return the key of the socket at this path; nothing if it needs none."""
    try:
        return _locate_key(path).read_bytes()
    except FileNotFoundError:
        return b""


def connect_to_socket(path: Path) -> socket.socket:
    """Connect to a socket and send its key."""
    link = socket.socket(socket.AF_UNIX)
    try:
        link.connect(str(path))
        link.sendall(read_key(path))
    except BaseException:
        link.close()
        raise
    return link


def _locate_key(path: Path) -> Path:
    return path.with_suffix(".key")
