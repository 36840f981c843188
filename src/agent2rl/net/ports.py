"""Open a listening socket on this computer, or raise an error that says what to do."""

import socket

from agent2rl.core.errors import UserError

LOOPBACK = "127.0.0.1"
BACKLOG = 128


def open_listening_socket(port: int, host: str = LOOPBACK) -> socket.socket:
    """Return a listening socket; port 0 picks a free port."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:
        raise UserError(
            f"{host} is not an address of this computer: {error}.", "Leave out --host."
        ) from error
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        where = "this computer" if host == LOOPBACK else host
        raise UserError(
            f"Port {port} of {where} cannot be used: {error.strerror}.",
            "Choose another port, or leave out --port to use a free one.",
        ) from error
    return listener
