"""The two ends of a proxied request: the client in the sandbox, and the host, whose bytes are counted.

Below them: the name in the first message of a TLS connection.
"""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass

import h11

from agent2rl.network_proxy.host_dialing import READ_BYTES
from agent2rl.network_proxy.host_rules import PolicyRefusal
from agent2rl.network_proxy.request_log import NetworkRequestLog, ProxiedRequest

ACCESS_DENIED_ALERT = bytes.fromhex("15030100020231")
LINGER_SECONDS = 1.0


class ClientConnection:
    """The sandbox's end of a connection."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, log: NetworkRequestLog
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._limits = log.limits
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=self._limits.head_bytes)
        self._early = b""
        """Bytes of the tunnel that came with the head of CONNECT."""
        self._tunnel = False

    async def read_head(self) -> h11.Request | None:
        """Read the request line and the headers; None if the client closed the connection instead."""
        try:
            async with asyncio.timeout(self._limits.head_seconds):
                event = self._http.next_event()
                while event is h11.NEED_DATA:
                    # In small pieces, because h11 compares what it has with the limit only between
                    # them.
                    self._http.receive_data(await self._reader.read(READ_BYTES // 8))
                    event = self._http.next_event()
        except TimeoutError:
            seconds = self._limits.head_seconds
            raise PolicyRefusal(f"The request was not complete after {seconds:g} s.", 408) from None
        except h11.RemoteProtocolError as error:
            raise PolicyRefusal(f"Invalid HTTP: {error}.", error.error_status_hint) from None
        return event if isinstance(event, h11.Request) else None

    async def read_body(self) -> AsyncIterator[h11.Event]:
        """Yield the body's parts and its end."""
        if self._http.they_are_waiting_for_100_continue:
            await self.send_event(h11.InformationalResponse(status_code=100, headers=[]))
        while True:
            event = self._http.next_event()
            if event is h11.NEED_DATA:
                self._http.receive_data(await self._reader.read(READ_BYTES))
            elif isinstance(event, h11.Data):
                yield h11.Data(data=event.data)
            elif isinstance(event, h11.EndOfMessage):
                yield h11.EndOfMessage()
                return
            else:
                raise h11.RemoteProtocolError("the body is not complete")

    async def send_event(self, event: h11.Event) -> None:
        await self.send(self._http.send(event) or b"")

    async def accept_tunnel(self) -> None:
        await self.send(b"HTTP/1.1 200 Connection established\r\n\r\n")
        self._tunnel = True
        self._early = self._http.trailing_data[0]

    async def read_client_hello(self, host: str, needs_name: bool) -> bytes:
        """Return the beginning of a TLS connection to this host."""
        data = b""
        try:
            async with asyncio.timeout(self._limits.head_seconds):
                while (hello := parse_client_hello(data)) is None:
                    more = await self.read()
                    if not more or len(data) > LARGEST_HELLO:
                        raise PolicyRefusal("The tunnel ended without a TLS handshake.")
                    data += more
        except TimeoutError:
            raise PolicyRefusal("The tunnel did not begin with a TLS handshake.") from None
        except NotClientHello as error:
            raise PolicyRefusal(f"Only TLS may be used in a tunnel: {error}.") from None
        if hello.encrypted:
            raise PolicyRefusal("The TLS handshake hides its server name (Encrypted Client Hello).")
        if hello.server_name is None and needs_name:
            raise PolicyRefusal("The TLS handshake has no server name (SNI).")
        if hello.server_name not in (None, host):
            raise PolicyRefusal(
                "The TLS handshake names another host than CONNECT.",
                detail=f"Its SNI is {hello.server_name}.",
            )
        return data

    async def read(self) -> bytes:
        """Read bytes of the tunnel."""
        if self._early:
            early, self._early = self._early, b""
            return early
        return await self._reader.read(READ_BYTES)

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    def end(self) -> None:
        with suppress(OSError):
            self._writer.write_eof()

    async def refuse(self, refusal: PolicyRefusal) -> None:
        """Say why the request is refused, as far as the client can still be told."""
        with suppress(OSError, TimeoutError, h11.LocalProtocolError):
            # In a tunnel the client understands nothing but TLS, so it gets an alert.
            if self._tunnel:
                self._writer.write(ACCESS_DENIED_ALERT)
            elif self._http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                self._write_refusal(refusal)
            self._writer.write_eof()
            # What the client still sends is read, or it would lose the answer with a reset connection.
            async with asyncio.timeout(LINGER_SECONDS):
                while await self._reader.read(READ_BYTES):
                    pass

    def _write_refusal(self, refusal: PolicyRefusal) -> None:
        body = f"agent2rl: {refusal.reason}\n".encode()
        headers = [
            ("Content-Type", "text/plain; charset=utf-8"),
            ("Content-Length", str(len(body))),
            ("Connection", "close"),
        ]
        # The text may hold a host's name with letters that no status line may have.
        reason = re.sub(r"[^ -~]", "?", refusal.reason)[:200].encode()
        response = h11.Response(status_code=refusal.status, headers=headers, reason=reason)
        for event in (response, h11.Data(data=body), h11.EndOfMessage()):
            self._writer.write(self._http.send(event) or b"")


class HostConnection:
    """The connection to a host. Its bytes are counted."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        request: ProxiedRequest,
        log: NetworkRequestLog,
    ) -> None:
        self.request = request
        self._reader = reader
        self._writer = writer
        self._log = log
        self._idle: tuple[asyncio.Timeout, float] | None = None

    def watch_progress(self, idle: asyncio.Timeout, seconds: float) -> None:
        """Move this deadline whenever a byte passes."""
        self._idle = idle, seconds

    async def read(self) -> bytes:
        data = await self._reader.read(READ_BYTES)
        self._log.count_received(self.request, len(data))
        self._note_progress()
        return data

    async def send(self, data: bytes) -> None:
        # Counted first, so that nothing beyond the limit leaves.
        allowed = self._log.count_sent(self.request, len(data))
        self._writer.write(data[:allowed])
        await self._writer.drain()
        self._note_progress()
        if allowed < len(data):
            raise self._log.refuse_upload()

    def _note_progress(self) -> None:
        if self._idle:
            idle, seconds = self._idle
            idle.reschedule(asyncio.get_running_loop().time() + seconds)

    def end(self) -> None:
        with suppress(OSError):
            self._writer.write_eof()

    def close(self) -> None:
        self._writer.close()


# Read the server name out of the first message of a TLS connection, the ClientHello (RFC 8446, 6066).


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
        # The highest of three bytes of a length: no ClientHello has 64 KiB.
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
