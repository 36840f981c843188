"""Server-sent events: what changed, for however many are watching. One look serves all of them."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable

from fastapi import Request
from fastapi.responses import Response, StreamingResponse

LOOK_SECONDS = 0.5
BEAT_SECONDS = 15.0
"""A sign of life, so that nobody between takes the line for dead."""
LONGEST_SECONDS = 3600.0


class WatchedState:
    """Something that has a stamp, which differs whenever it has changed."""

    def __init__(self, stamp: Callable[[], str]) -> None:
        self._look, self._stamp, self._at = stamp, "", 0.0

    def read_stamp(self) -> str:
        now = time.monotonic()
        if now - self._at >= LOOK_SECONDS:
            self._at = now  # before the look, so that nobody looks beside it
            self._stamp = self._look()
        return self._stamp


def stream_changes(watched: WatchedState, request: Request) -> Response:
    return StreamingResponse(follow_changes(watched, request.is_disconnected), media_type="text/event-stream")


async def follow_changes(watched: WatchedState, gone: Callable[[], Awaitable[bool]]) -> AsyncIterator[str]:
    """A line for each change, from the first on, until the reader is gone."""
    last, beat, ends = watched.read_stamp(), time.monotonic(), time.monotonic() + LONGEST_SECONDS
    yield f"retry: 2000\ndata: {len(last)}\n\n"
    while time.monotonic() < ends and not await gone():
        stamp = await asyncio.to_thread(watched.read_stamp)
        if stamp != last:
            last, beat = stamp, time.monotonic()
            yield "event: changed\ndata: 1\n\n"
        elif time.monotonic() - beat > BEAT_SECONDS:
            beat = time.monotonic()
            yield ": still here\n\n"
        await asyncio.sleep(LOOK_SECONDS)
