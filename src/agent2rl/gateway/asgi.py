"""ASGI helpers: read a request body within memory limits, and respond while the client is connected."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, MutableMapping
from typing import Any

from agent2rl.gateway.errors import RequestRefused

BODY_BYTES = 32 << 20
HELD_BYTES = 128 << 20
"""Total size of all bodies that a gateway holds at once."""

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Coroutine[Any, Any, None]]


class ClientDisconnected(Exception):
    """The client disconnected."""


class BodyMemoryBudget:
    """How many more bytes of request bodies fit into memory."""

    def __init__(self, limit: int = HELD_BYTES) -> None:
        self.bytes_left = limit


class RequestBody:
    """A request's body; `release_memory` returns its bytes to the budget."""

    def __init__(self, budget: BodyMemoryBudget, seconds: float) -> None:
        self._budget, self._seconds = budget, seconds
        self._held = 0

    async def read(self, receive: Receive) -> bytes:
        try:
            async with asyncio.timeout(self._seconds):
                return await self._read_chunks(receive)
        except TimeoutError:
            raise RequestRefused(408, f"The request did not arrive within {self._seconds:g} s.") from None

    def release_memory(self) -> None:
        self._budget.bytes_left += self._held
        self._held = 0

    async def _read_chunks(self, receive: Receive) -> bytes:
        chunks = []
        while True:
            message = await receive()
            if message["type"] != "http.request":
                raise ClientDisconnected
            chunk = message.get("body", b"")
            if self._held + len(chunk) > BODY_BYTES:
                raise RequestRefused(413, f"The request is larger than {BODY_BYTES >> 20} MiB.")
            if len(chunk) > self._budget.bytes_left:
                raise RequestRefused(
                    503, "Too many large requests at once.", "Retry when other requests are done."
                )
            self._budget.bytes_left -= len(chunk)
            self._held += len(chunk)
            chunks.append(chunk)
            if not message.get("more_body", False):
                return b"".join(chunks)


async def run_until_disconnect(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Do the work; cancel it and raise ClientDisconnected if the client disconnects."""
    task, disconnect = asyncio.create_task(work), asyncio.create_task(_wait_for_disconnect(receive))
    try:
        await asyncio.wait({task, disconnect}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnected
    finally:
        disconnect.cancel()
        task.cancel()
        await asyncio.gather(task, disconnect, return_exceptions=True)
    task.result()


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def parse_headers(scope: Scope) -> dict[str, str]:
    """Return the headers by lower-case name; repeated headers are joined with commas."""
    headers: dict[str, str] = {}
    for name, value in scope["headers"]:
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        headers[key] = f"{headers[key]},{text}" if key in headers else text
    return headers


async def start_response(send: Send, status: int, headers: Mapping[str, str]) -> None:
    pairs = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": pairs})


async def send_chunk(send: Send, body: bytes, last: bool = False) -> None:
    if body or last:
        await send({"type": "http.response.body", "body": body, "more_body": not last})


async def send_response(send: Send, status: int, headers: Mapping[str, str], body: bytes) -> None:
    await start_response(send, status, {**headers, "content-length": str(len(body))})
    await send_chunk(send, body, last=True)
