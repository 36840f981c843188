"""The two ends of a proxied request: the client in the sandbox, and the host, whose bytes are counted."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import suppress

import h11

from agent2rl.network_proxy.client_hello import LARGEST_HELLO, NotClientHello, parse_client_hello
from agent2rl.network_proxy.connecting import READ_BYTES
from agent2rl.network_proxy.host_rules import RequestRefused
from agent2rl.network_proxy.request_log import ProxiedRequest, RequestLog

ACCESS_DENIED_ALERT = bytes.fromhex("15030100020231")
LINGER_SECONDS = 1.0


class ClientConnection:
    """The sandbox's end of a connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, log: RequestLog) -> None:
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
                    self._http.receive_data(await self._reader.read(READ_BYTES // 8))
                    event = self._http.next_event()
        except TimeoutError:
            seconds = self._limits.head_seconds
            raise RequestRefused(f"The request was not complete after {seconds:g} s.", 408) from None
        except h11.RemoteProtocolError as error:
            raise RequestRefused(f"Invalid HTTP: {error}.", error.error_status_hint) from None
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
                        raise RequestRefused("The tunnel ended without a TLS handshake.")
                    data += more
        except TimeoutError:
            raise RequestRefused("The tunnel did not begin with a TLS handshake.") from None
        except NotClientHello as error:
            raise RequestRefused(f"Only TLS may be used in a tunnel: {error}.") from None
        if hello.encrypted:
            raise RequestRefused("The TLS handshake hides its server name (Encrypted Client Hello).")
        if hello.server_name is None and needs_name:
            raise RequestRefused("The TLS handshake has no server name (SNI).")
        if hello.server_name not in (None, host):
            raise RequestRefused(
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

    async def refuse(self, refusal: RequestRefused) -> None:
        """Say why the request is refused, as far as the client can still be told."""
        with suppress(OSError, TimeoutError, h11.LocalProtocolError):
            if self._tunnel:
                self._writer.write(ACCESS_DENIED_ALERT)
            elif self._http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                self._write_refusal(refusal)
            self._writer.write_eof()
            # What the client still sends is read, or it would lose the answer with a reset connection.
            async with asyncio.timeout(LINGER_SECONDS):
                while await self._reader.read(READ_BYTES):
                    pass

    def _write_refusal(self, refusal: RequestRefused) -> None:
        body = f"agent2rl: {refusal.reason}\n".encode()
        headers = [
            ("Content-Type", "text/plain; charset=utf-8"),
            ("Content-Length", str(len(body))),
            ("Connection", "close"),
        ]
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
        log: RequestLog,
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
        self._log.count_sent(self.request, len(data))
        self._writer.write(data)
        await self._writer.drain()
        self._note_progress()

    def _note_progress(self) -> None:
        if self._idle:
            idle, seconds = self._idle
            idle.reschedule(asyncio.get_running_loop().time() + seconds)

    def end(self) -> None:
        with suppress(OSError):
            self._writer.write_eof()

    def close(self) -> None:
        self._writer.close()
