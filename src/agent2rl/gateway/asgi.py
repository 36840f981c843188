"""Hearing a client and answering it: as much as there is room for, and as long as it is there."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, MutableMapping
from typing import Any

from agent2rl.gateway.errors import RequestRefused

BODY_BYTES = 32 << 20
HELD_BYTES = 128 << 20
"""Of all bodies together that a gateway holds at once."""

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Coroutine[Any, Any, None]]


class ClientDisconnected(Exception):
    """The client hung up."""


class BodyMemoryBudget:
    """How much more can be held."""

    def __init__(self, most: int = HELD_BYTES) -> None:
        self.left = most


class RequestBody:
    """A request's body; what it takes up is given back by `drop`."""

    def __init__(self, room: BodyMemoryBudget, seconds: float) -> None:
        self._room, self._seconds = room, seconds
        self._held = 0

    async def read(self, receive: Receive) -> bytes:
        try:
            async with asyncio.timeout(self._seconds):
                return await self._read_chunks(receive)
        except TimeoutError:
            raise RequestRefused(408, f"The request did not arrive within {self._seconds:g} s.") from None

    def release_memory(self) -> None:
        self._room.left += self._held
        self._held = 0

    async def _read_chunks(self, receive: Receive) -> bytes:
        chunks = []
        while True:
            message = await receive()
            if message["type"] != "http.request":
                raise ClientDisconnected
            chunk = message.get("body", b"")
            if self._held + len(chunk) > BODY_BYTES:
                raise RequestRefused(413, f"A request has at most {BODY_BYTES >> 20} MiB.")
            if len(chunk) > self._room.left:
                raise RequestRefused(
                    503, "Too much is being asked at once.", "Ask again when others are answered."
                )
            self._room.left -= len(chunk)
            self._held += len(chunk)
            chunks.append(chunk)
            if not message.get("more_body", False):
                return b"".join(chunks)


async def run_until_disconnect(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Do the work, but no longer than the client is there."""
    task, left = asyncio.create_task(work), asyncio.create_task(_wait_for_disconnect(receive))
    try:
        await asyncio.wait({task, left}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnected
    finally:
        left.cancel()
        task.cancel()
        await asyncio.gather(task, left, return_exceptions=True)
    task.result()


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def parse_headers(scope: Scope) -> dict[str, str]:
    """By their names in small letters; what is sent twice is one list."""
    found: dict[str, str] = {}
    for name, value in scope["headers"]:
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        found[key] = f"{found[key]},{text}" if key in found else text
    return found


async def start_response(send: Send, status: int, headers: Mapping[str, str]) -> None:
    listed = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": listed})


async def send_chunk(send: Send, body: bytes, last: bool = False) -> None:
    if body or last:
        await send({"type": "http.response.body", "body": body, "more_body": not last})


async def send_response(send: Send, status: int, headers: Mapping[str, str], body: bytes) -> None:
    await start_response(send, status, {**headers, "content-length": str(len(body))})
    await send_chunk(send, body, last=True)
