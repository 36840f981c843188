"""Cuts a stream into server-sent events, whatever way its bytes come and its lines end.

Comments, fields other than `data`, and a byte order mark are passed over. An event may be of any length; one
that is too long to be kept is given on in pieces and not read.
"""

import re
from dataclasses import dataclass

EVENT_BYTES = 32 << 20
LINE_END = re.compile(rb"\r\n|\n|\r(?!\n)")
BLANK = re.compile(rb"(?:\r\n|\n|\r(?!\n))(?:\r\n|\n|\r(?!\n))")
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class ServerSentEvent:
    raw: bytes
    """All its bytes, the blank line at its end included: all of them together are the stream."""
    data: bytes = b""


class EventStreamParser:
    def __init__(self, most: int = EVENT_BYTES) -> None:
        self.unread = 0
        """Events that were too long."""
        self._most = most
        self._buffer = bytearray()
        self._torn = False
        """The buffer begins inside an event whose beginning is gone."""
        self._seen = 0
        """So far the buffer has no end of an event."""

    def feed(self, chunk: bytes) -> list[ServerSentEvent]:
        self._buffer += chunk
        found = []
        # A carriage return at the very end may be half a line's end.
        until = len(self._buffer) - self._buffer.endswith(b"\r")
        while end := BLANK.search(self._buffer, self._seen, until):
            found.append(self._take_event(end.end()))
            until -= end.end()
            self._seen = 0
        self._seen = max(0, until - 3)
        if len(self._buffer) > self._most:
            found.append(self._take_oversized_piece())
        return found

    def finish(self) -> list[ServerSentEvent]:
        """What is left when the stream is over: an event without its blank line."""
        return [self._take_event(len(self._buffer))] if self._buffer else []

    def _take_event(self, size: int) -> ServerSentEvent:
        raw = bytes(self._buffer[:size])
        del self._buffer[:size]
        torn, self._torn = self._torn, False
        if torn or size > self._most:
            self.unread += not torn
            return ServerSentEvent(raw)
        return ServerSentEvent(raw, _extract_data(raw))

    def _take_oversized_piece(self) -> ServerSentEvent:
        raw = bytes(self._buffer[:-3])  # an end of the event may be half here
        del self._buffer[:-3]
        self.unread += not self._torn
        self._torn, self._seen = True, 0
        return ServerSentEvent(raw)


def _extract_data(raw: bytes) -> bytes:
    found = []
    for line in LINE_END.split(raw.removeprefix(BYTE_ORDER_MARK)):
        field, _, value = line.partition(b":")
        if field == b"data":
            found.append(value.removeprefix(b" "))
    return b"\n".join(found)
