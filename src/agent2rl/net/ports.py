"""A port of this computer to serve on, or an error that says what to do. Nothing of what is served there."""

import socket

from agent2rl.core.errors import UserError

LOOPBACK = "127.0.0.1"
WAITING = 128


def open_listening_socket(port: int, host: str = LOOPBACK) -> socket.socket:
    """A socket that listens there; port 0 is one that is free."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        line = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:
        raise UserError(f"{host} is no address of this computer: {error}.", "Leave out --host.") from error
    line.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        line.bind(address)
        line.listen(WAITING)
    except OSError as error:
        line.close()
        where = "this computer" if host == LOOPBACK else host
        raise UserError(
            f"Port {port} of {where} cannot be used: {error.strerror}.",
            "Name another, or leave out --port for one that is free.",
        ) from error
    return line
