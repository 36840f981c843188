"""Read the server name out of the first message of a TLS connection, the ClientHello (RFC 8446, 6066)."""

from dataclasses import dataclass

HANDSHAKE_RECORD, CLIENT_HELLO = 0x16, 0x01
SERVER_NAME, ENCRYPTED_CLIENT_HELLO = 0x0000, 0xFE0D
RECORD_BYTES = 1 << 14
LARGEST_HELLO = 1 << 16
MOST_RECORDS = 64
"""It is parsed again whenever bytes arrive, and thousands of tiny records would take much time."""


class NotClientHello(ValueError):
    """These bytes do not begin a TLS connection."""


@dataclass(frozen=True)
class ClientHello:
    server_name: str | None
    encrypted: bool
    """Whether another, encrypted ClientHello is in it, whose server name cannot be read."""


class _ByteCursor:
    """Takes fields off the front of a message."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def __bool__(self) -> bool:
        return bool(self._data)

    def take(self, count: int) -> bytes:
        if count > len(self._data):
            raise NotClientHello("a field is longer than its message")
        taken, self._data = self._data[:count], self._data[count:]
        return taken

    def take_number(self, size: int) -> int:
        return int.from_bytes(self.take(size))

    def take_vector(self, size: int) -> "_ByteCursor":
        """Take a field that begins with its length, which has `size` bytes."""
        return _ByteCursor(self.take(self.take_number(size)))

    def take_rest(self) -> bytes:
        return self.take(len(self._data))


def parse_client_hello(data: bytes) -> ClientHello | None:
    """Parse the beginning of a connection; None if more bytes are needed. It may span several records."""
    message, records = b"", 0
    while len(message) < 4 or len(message) < 4 + int.from_bytes(message[1:4]):
        if data[:1] not in (b"", bytes([HANDSHAKE_RECORD])):
            raise NotClientHello("the connection does not begin with a TLS handshake")
        if len(data) < 5:
            return None
        length = int.from_bytes(data[3:5])
        if data[1] != 3 or not 0 < length <= RECORD_BYTES:
            raise NotClientHello("the first TLS record is malformed")
        if len(data) < 5 + length:
            return None
        message, data, records = message + data[5 : 5 + length], data[5 + length :], records + 1
        if records > MOST_RECORDS:
            raise NotClientHello("it is split into too many records")
        if message[0] != CLIENT_HELLO or (len(message) >= 4 and message[1]):
            raise NotClientHello("the first TLS message is not a ClientHello")
    return _parse_message(message[4 : 4 + int.from_bytes(message[1:4])])


def _parse_message(message: bytes) -> ClientHello:
    cursor = _ByteCursor(message)
    cursor.take(2 + 32)  # version and random
    cursor.take_vector(1)  # session
    cursor.take_vector(2)  # cipher suites
    cursor.take_vector(1)  # compression
    extensions = cursor.take_vector(2) if cursor else _ByteCursor(b"")
    if cursor:
        raise NotClientHello("there are bytes after the ClientHello's extensions")
    found: dict[int, _ByteCursor] = {}
    while extensions:
        kind, body = extensions.take_number(2), extensions.take_vector(2)
        if kind in found:
            raise NotClientHello("an extension is there twice")
        found[kind] = body
    name = _parse_server_name(found[SERVER_NAME]) if SERVER_NAME in found else None
    return ClientHello(name, ENCRYPTED_CLIENT_HELLO in found)


def _parse_server_name(body: _ByteCursor) -> str:
    names = body.take_vector(2)
    if names.take_number(1) != 0:
        raise NotClientHello("the server name is not a host name")
    name = names.take_vector(2).take_rest()
    if names or body:
        raise NotClientHello("there is more than one server name")
    try:
        return name.decode("ascii").lower()
    except UnicodeDecodeError as error:
        raise NotClientHello("the server name is not ASCII") from error
