"""Sends a planned reply over HTTP, as slowly and as far as the script says, and logs one line per request.

The gateway's own token counts are compared with this log.
"""

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

from pydantic import JsonValue
from starlette.types import Receive, Scope, Send

from agent2rl.core.errors import UserError
from agent2rl.core.llm import TokenCounts, Wire
from agent2rl.core.records import Record
from agent2rl.fake_llm.messages import (
    LlmRequest,
    ResponseChunk,
    WireFormat,
    dump_json,
    render_sse_event,
)
from agent2rl.fake_llm.script_player import PlannedReply

# The request log

Kind = Literal["main", "side", "count", "models", "unknown"]
"""A step of the script; a side request; a token count; a model list; an unknown path."""
Outcome = Literal["answered", "failed", "cut", "silent", "abandoned"]
"""Answered completely; an error; cut off or never started by the script; the client disconnected."""


class RequestLogLine(Record):
    at: float
    """Unix time of the request."""
    seconds: float
    kind: Kind
    wire: Wire | None
    model: str
    path: str
    stream: bool
    status: int | None
    """None: no answer was started."""
    outcome: Outcome
    tokens: TokenCounts | None
    """Reported tokens, as far as they were sent; None: none."""
    conversation: int | None = None
    step: int | None = None
    """From 1."""
    label: str | None = None
    attempt: int = 1
    """Number of the request for this step."""
    tools: tuple[str, ...] = ()
    """Offered tools."""
    result: str = ""
    """Results that the agent sent back."""
    text: str = ""
    """Text of the planned reply."""
    think: str = ""
    calls: tuple[dict[str, JsonValue], ...] = ()


class RequestLog:
    """Writes JSON lines to a file, if a path is given."""

    def __init__(self, path: Path | None) -> None:
        self._file: IO[str] | None = None
        if path:
            try:
                self._file = path.open("a", encoding="ascii")
            except OSError as error:
                raise UserError(f"Cannot write the record to {path}: {error.strerror}.") from error

    def add_line(self, line: RequestLogLine) -> None:
        if self._file:
            self._file.write(json.dumps(line.model_dump()) + "\n")
            self._file.flush()

    def close(self) -> None:
        if self._file:
            self._file.close()


@dataclass
class ScriptedResponse:
    """An ASGI application that sends one planned reply."""

    request: LlmRequest
    play: PlannedReply
    wired: WireFormat
    path: str
    began: float
    note: Callable[[RequestLogLine], None]
    """Called once, before the last byte is sent."""

    async def __call__(self, _: Scope, receive: Receive, send: Send) -> None:
        gone = asyncio.create_task(_wait_for_disconnect(receive))
        self._noted, self._begun = False, False
        self._tokens: TokenCounts | None = None
        try:
            await self._send_response(send, gone)
        finally:
            gone.cancel()
            self._log_outcome("silent" if self.play.fault == "hang" else "abandoned")

    async def _send_response(self, send: Send, gone: asyncio.Task[None]) -> None:
        if self.play.fault == "hang":
            await gone
        if await _sleep_or_disconnect(self.play.wait_seconds, gone):
            return
        kind, chunks = self._render_chunks()
        middle = len(chunks) // 2
        await send(
            {
                "type": "http.response.start",
                "status": self._status,
                "headers": self._build_headers(kind, chunks),
            }
        )
        self._begun = True
        for number, chunk in enumerate(chunks):
            if number == middle and await _sleep_or_disconnect(self.play.pause_seconds, gone):
                return
            if number == middle and self.play.fault == "cut":
                self._log_outcome("cut")  # the server breaks off an answer that does not end
                return
            if gone.done():
                return
            self._tokens = chunk.tokens
            if number == len(chunks) - 1:
                self._log_outcome("failed" if self.play.trouble else "answered")
            await send({"type": "http.response.body", "body": chunk.data, "more_body": True})
        await send({"type": "http.response.body"})

    @property
    def _midway(self) -> bool:
        return self.play.fault == "midway" and self.request.stream

    @property
    def _status(self) -> int:
        trouble = None if self._midway else self.play.trouble
        return self.wired.fail(trouble)[0] if trouble else 200

    def _render_chunks(self) -> tuple[str, list[ResponseChunk]]:
        """Return the content type and the chunks to send."""
        trouble = self.play.trouble
        body = self.wired.fail(trouble)[1] if trouble else {}
        if trouble and not self._midway:
            return "application/json", [ResponseChunk(dump_json(body), None)]
        kind, chunks = self.wired.write(self.request, self.play.reply)
        if trouble:
            chunks = chunks[: len(chunks) // 2]
            tokens = chunks[-1].tokens if chunks else None
            chunks.append(ResponseChunk(_render_stream_error(self.request.wire, body), tokens))
        return kind, chunks

    def _build_headers(self, kind: str, chunks: list[ResponseChunk]) -> list[tuple[bytes, bytes]]:
        headers = {"content-type": kind, "cache-control": "no-cache"}
        headers |= dict.fromkeys(("request-id", "x-request-id"), self.play.reply.id)
        if self.play.trouble and self.play.trouble.retry_after is not None:
            headers["retry-after"] = str(self.play.trouble.retry_after)
        if not self.request.stream:
            headers["content-length"] = str(sum(len(chunk.data) for chunk in chunks))
        return [(name.encode(), value.encode()) for name, value in headers.items()]

    def _log_outcome(self, outcome: Outcome) -> None:
        if not self._noted:
            self._noted = True
            self.note(self._build_log_line(self._status if self._begun else None, outcome, self._tokens))

    def _build_log_line(
        self, status: int | None, outcome: Outcome, tokens: TokenCounts | None
    ) -> RequestLogLine:
        play, reply = self.play, self.play.reply
        return RequestLogLine(
            at=self.began,
            seconds=round(time.time() - self.began, 6),
            kind=play.kind,
            wire=self.request.wire,
            model=self.request.model,
            path=self.path,
            stream=self.request.stream,
            status=status,
            outcome=outcome,
            tokens=tokens,
            conversation=play.conversation,
            step=play.step,
            label=play.label,
            attempt=play.attempt,
            tools=tuple(tool.name for tool in self.request.tools),
            result=self.request.result,
            text=reply.text,
            think=reply.think,
            calls=tuple({"name": call.name, "arguments": call.arguments} for call in reply.calls),
        )


def _render_stream_error(wire: Wire, body: dict[str, Any]) -> bytes:
    """Render an error in the middle of a stream."""
    if wire == "openai-responses":
        return render_sse_event({"type": "error", "sequence_number": 0, **body["error"]}, "error")
    return render_sse_event(body, "error" if wire == "anthropic" else None)


async def _wait_for_disconnect(receive: Receive) -> None:
    """Return when the client disconnects."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _sleep_or_disconnect(seconds: float, gone: asyncio.Task[None]) -> bool:
    """Sleep; return whether the client disconnected meanwhile."""
    if seconds:
        await asyncio.wait({gone}, timeout=seconds)
    return gone.done()
