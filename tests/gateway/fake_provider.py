"""A provider of LLMs on loopback, which says what a test tells it, chunk by chunk; and a gateway before it.

Each reply in `replies` is one answer, in turn; then every request is answered well, in its wire format.
"""

import asyncio
import json
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import httpx

from agent2rl.core.llm import LlmExchange, TokenCounts, Wire
from agent2rl.gateway import drivers
from agent2rl.gateway.gateway import Gateway, Tape, UpstreamTimeouts, UsageCaps
from agent2rl.gateway.keys import Key
from agent2rl.gateway.prices import load_prices
from agent2rl.grading.server import serve_on_socket
from agent2rl.net.keyed_transports import KeyedTransport
from tests.helpers.http_server import serve_app

REAL_KEY = "sk-real-Zq9_8v7w6X5y4-0123456789"
MODEL = "claude-opus-4-6"
WIRES: tuple[Wire, ...] = ("anthropic", "openai-responses", "openai-chat", "gemini")
TOKEN_COUNTS = TokenCounts(input=1500, cached=200, output=42, reasoning=7)
SSE_HEADERS = {"content-type": "text/event-stream; charset=utf-8"}
JSON_HEADERS = {"content-type": "application/json"}


@dataclass(frozen=True)
class ProviderRequest:
    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class ProviderReply:
    chunks: tuple[bytes, ...] = ()
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=lambda: JSON_HEADERS)
    pause_seconds: float = 0.0
    """Before each chunk."""
    may_send: threading.Semaphore | None = None
    """Each chunk takes one, if there is such a semaphore."""
    end: Literal["ends", "breaks off", "falls silent", "hangs up"] = "ends"


class FakeProvider:
    def __init__(self) -> None:
        self.url = ""
        self.heard: list[ProviderRequest] = []
        self.clients: set[Any] = set()
        """The connections they came by."""
        self.replies: deque[ProviderReply] = deque()
        self.answer: Callable[[ProviderRequest], ProviderReply] = answer_in_wire_format
        self.in_flight = self.most_in_flight = 0
        self.answering = threading.Event()
        """Until it is set, everybody waits."""
        self.answering.set()
        self.left = threading.Event()
        """Somebody hung up before the end of an answer."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        query = scope["query_string"].decode()
        self.clients.add(tuple(scope["client"]))
        self.heard.append(ProviderRequest(scope["method"], scope["raw_path"].decode(), query, headers, body))
        reply = self.replies.popleft() if self.replies else self.answer(self.heard[-1])
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        watching = asyncio.create_task(self._watch(receive))
        try:
            while not self.answering.is_set():
                await asyncio.sleep(0.01)
            await _send_reply(reply, send)
        finally:
            self.in_flight -= 1
            watching.cancel()

    async def _watch(self, receive: Any) -> None:
        if (await receive())["type"] == "http.disconnect":
            self.left.set()


async def _send_reply(reply: ProviderReply, send: Any) -> None:
    if reply.end == "hangs up":
        send.__self__.transport.abort()
        return
    if reply.end == "falls silent" and not reply.chunks:
        await asyncio.sleep(20)
    fields = [(name.encode(), value.encode()) for name, value in reply.headers.items()]
    await send({"type": "http.response.start", "status": reply.status, "headers": fields})
    for chunk in reply.chunks:
        await asyncio.sleep(reply.pause_seconds)
        while reply.may_send and not reply.may_send.acquire(blocking=False):
            await asyncio.sleep(0.01)
        await send({"type": "http.response.body", "body": chunk, "more_body": True})
    if reply.end == "falls silent":
        await asyncio.sleep(20)
    elif reply.end == "breaks off":
        send.__self__.transport.close()
    else:
        await send({"type": "http.response.body", "body": b""})


def format_event(value: Any, end: str = "\n") -> bytes:
    named = f"event: {value['type']}{end}" if isinstance(value, dict) and "type" in value else ""
    data = value if isinstance(value, str) else json.dumps(value)
    return f"{named}data: {data}{end}{end}".encode()


def format_usage(wire: Wire, tokens: TokenCounts = TOKEN_COUNTS) -> dict[str, Any]:
    """As the provider of that wire format tells it."""
    match wire:
        case "anthropic":
            return {
                "input_tokens": tokens.input - tokens.cached - tokens.written,
                "cache_read_input_tokens": tokens.cached,
                "cache_creation_input_tokens": tokens.written,
                "cache_creation": {"ephemeral_1h_input_tokens": tokens.written_hour},
                "output_tokens": tokens.output,
                "output_tokens_details": {"thinking_tokens": tokens.reasoning},
            }
        case "gemini":
            return {
                "promptTokenCount": tokens.input,
                "cachedContentTokenCount": tokens.cached,
                "candidatesTokenCount": tokens.output - tokens.reasoning,
                "thoughtsTokenCount": tokens.reasoning,
                "totalTokenCount": tokens.total,
            }
    read, written = ("prompt", "completion") if wire == "openai-chat" else ("input", "output")
    return {
        f"{read}_tokens": tokens.input,
        f"{written}_tokens": tokens.output,
        "total_tokens": tokens.total,
        f"{read}_tokens_details": {"cached_tokens": tokens.cached},
        f"{written}_tokens_details": {"reasoning_tokens": tokens.reasoning},
    }


def make_stream_events(
    wire: Wire, text: str = "Hello there.", tokens: TokenCounts = TOKEN_COUNTS, end: str = "\n"
) -> list[bytes]:
    """A whole stream, as the provider of that wire format sends it."""
    told = format_usage(wire, tokens)
    match wire:
        case "anthropic":
            begun = {**told, "output_tokens": 1}
            said: list[Any] = [
                {"type": "message_start", "message": {"role": "assistant", "content": [], "usage": begun}},
                {"type": "ping"},
                {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}},
                {
                    "type": "message_delta",
                    "delta": {"stop_reason": "end_turn"},
                    "usage": {"output_tokens": tokens.output},
                },
                {"type": "message_stop"},
            ]
        case "openai-responses":
            said = [
                {"type": "response.created", "response": {"id": "resp_1", "usage": None}},
                {"type": "response.output_text.delta", "delta": text},
                {"type": "response.completed", "response": {"id": "resp_1", "usage": told}},
            ]
        case "openai-chat":
            said = [
                {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}], "usage": None},
                {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "usage": None},
                {"choices": [], "usage": told},
                "[DONE]",
            ]
        case "gemini":
            part = {"content": {"role": "model", "parts": [{"text": text}]}}
            said = [
                {"candidates": [part], "usageMetadata": {**told, "candidatesTokenCount": 1}},
                {"candidates": [{**part, "finishReason": "STOP"}], "usageMetadata": told},
            ]
    return [format_event(one, end) for one in said]


def make_response_body(wire: Wire, text: str = "Hello there.", tokens: TokenCounts = TOKEN_COUNTS) -> bytes:
    """The same in one piece."""
    told = format_usage(wire, tokens)
    match wire:
        case "anthropic":
            said: dict[str, Any] = {
                "type": "message",
                "content": [{"type": "text", "text": text}],
                "usage": told,
            }
        case "openai-responses":
            said = {"id": "resp_1", "status": "completed", "error": None, "output": [text], "usage": told}
        case "openai-chat":
            said = {"choices": [{"message": {"content": text}, "finish_reason": "stop"}], "usage": told}
        case "gemini":
            said = {"candidates": [{"content": {"parts": [{"text": text}]}}], "usageMetadata": told}
    return json.dumps(said).encode()


def make_stream_reply(
    wire: Wire, text: str = "Hello there.", tokens: TokenCounts = TOKEN_COUNTS, **more: Any
) -> ProviderReply:
    return ProviderReply(tuple(make_stream_events(wire, text, tokens)), headers=SSE_HEADERS, **more)


def make_plain_reply(
    wire: Wire, text: str = "Hello there.", tokens: TokenCounts = TOKEN_COUNTS, **more: Any
) -> ProviderReply:
    return ProviderReply((make_response_body(wire, text, tokens),), **more)


def make_error_reply(status: int, message: str = "no", **headers: str) -> ProviderReply:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    body = json.dumps({"type": "error", "error": {"type": "x", "message": message}}).encode()
    return ProviderReply((body,), status, {**JSON_HEADERS, **named})


def answer_in_wire_format(heard: ProviderRequest) -> ProviderReply:
    if heard.path.endswith("/count_tokens"):
        return ProviderReply((b'{"input_tokens": 12}',))
    if heard.path.endswith(":countTokens"):
        return ProviderReply((b'{"totalTokens": 12}',))
    paths = {"/messages": "anthropic", "/responses": "openai-responses", "/completions": "openai-chat"}
    wire: Any = next((wire for end, wire in paths.items() if heard.path.endswith(end)), "gemini")
    streams = heard.json.get("stream") or "streamGenerate" in heard.path
    return make_stream_reply(wire) if streams else make_plain_reply(wire)


def get_request_path(wire: Wire, stream: bool = False, model: str = MODEL) -> str:
    """Where an agent asks."""
    method = "streamGenerateContent?alt=sse" if stream else "generateContent"
    return {
        "anthropic": "/v1/messages",
        "openai-responses": "/v1/responses",
        "openai-chat": "/v1/chat/completions",
        "gemini": f"/v1beta/models/{model}:{method}",
    }[wire]


def make_request(wire: Wire, stream: bool = False, text: str = "Hi.", model: str = MODEL) -> dict[str, Any]:
    """What an agent asks."""
    if wire == "gemini":
        return {"contents": [{"role": "user", "parts": [{"text": text}]}]}
    asked: dict[str, Any] = {"model": model, "stream": stream, "max_tokens": 100}
    return asked | (
        {"input": text} if wire == "openai-responses" else {"messages": [_make_user_message(text)]}
    )


def _make_user_message(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


@contextmanager
def serve_provider(keep_alive_seconds: int = 5) -> Iterator[FakeProvider]:
    provider = FakeProvider()
    with serve_app(provider, timeout_keep_alive=keep_alive_seconds) as provider.url:
        yield provider


@dataclass
class GatewayClient:
    """Whoever stands before the gateway."""

    gateway: Gateway
    client: httpx.Client
    socket: Path
    exchanges: list[LlmExchange]

    def ask(self, wire: Wire = "anthropic", stream: bool = False, **more: Any) -> httpx.Response:
        """One request, with anything in it besides."""
        return self.client.post(get_request_path(wire, stream), json={**make_request(wire, stream), **more})

    def last(self, count: int = 1) -> LlmExchange:
        """The record of the last request: it is written after the agent has its answer."""
        pause = threading.Event()
        for _ in range(6000):
            if len(self.exchanges) >= count:
                return self.exchanges[-1]
            pause.wait(0.01)
        raise AssertionError(f"{len(self.exchanges)} exchanges, not {count}")


@contextmanager
def serve_gateway(
    provider: FakeProvider,
    key: str | None = REAL_KEY,
    caps: UsageCaps | None = None,
    tape: Tape | None = None,
    driver: str | None = None,
    patience: UpstreamTimeouts | None = None,
    connections: int = 64,
    **more: Any,
) -> Iterator[GatewayClient]:
    """A gateway before the provider, served as a run does it."""
    exchanges: list[LlmExchange] = []
    gateway = Gateway(
        drivers.parse_driver(driver or f"{MODEL}@{provider.url}"),
        Key(key) if key else None,
        caps or UsageCaps(),
        load_prices(),
        exchanges.append,
        tape,
        patience or UpstreamTimeouts(connect_seconds=2, pause_seconds=0.01, stall_seconds=5),
        **more,
    )
    with serve_on_socket(gateway.application, connections) as socket, closing(gateway):
        transport = KeyedTransport(socket, httpx.Limits(max_connections=None))
        with httpx.Client(transport=transport, base_url="http://gateway", timeout=120) as client:
            yield GatewayClient(gateway, client, socket, exchanges)
