"""One request in flight: its body, its client's connection, and the exchange that is recorded for it."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Mapping, MutableMapping
from typing import Any

from agent2rl.core.llm import LlmExchange, Outcome, TokenCounts, Wire
from agent2rl.gateway.errors import RequestRefused, UpstreamFailure
from agent2rl.gateway.keys import Key
from agent2rl.gateway.meter import BYTES_PER_TOKEN, FAILED_OUTCOMES
from agent2rl.gateway.prices import Prices
from agent2rl.gateway.request_parsing import ParsedRequest, RouteMatch
from agent2rl.gateway.token_counting import TokenCounter
from agent2rl.gateway.upstream import UpstreamResponse

# ASGI helpers: read a request body within memory limits, and respond while the client is connected.


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


MAX_NAME_CHARACTERS, MAX_MESSAGE_CHARACTERS = 200, 500
"""Maximum characters of recorded names and messages."""
MAX_REMEMBERED = 256
CLIENT_CLOSED_STATUS = 499
JSON_HEADERS = {"content-type": "application/json"}


class FailedRequestLog:
    """Remembers failed requests by a hash of their content, to recognize retries."""

    def __init__(self) -> None:
        self._failed: OrderedDict[int, tuple[int, float]] = OrderedDict()

    def find_failures(self, mark: int) -> tuple[int, float | None]:
        """Return how many times it failed, and when it last failed."""
        return self._failed.get(mark, (0, None))

    def record_outcome(self, mark: int, times: int, since: float | None) -> None:
        """Record an attempt; `since` is None if it was answered."""
        self._failed.pop(mark, None)
        if since is not None:
            self._failed[mark] = (times, since)
            if len(self._failed) > MAX_REMEMBERED:
                self._failed.popitem(last=False)


class InFlightRequest:
    """The state of one request.

    Its outcome is set before the agent gets the end of the answer, because the agent may retry at once.
    """

    def __init__(self, path: str, tongue: Wire, key: Key | None, repeats: FailedRequestLog) -> None:
        self.at, self.began = time.time(), time.monotonic()
        self.tongue = tongue
        """The client's wire format, for answers of the gateway itself."""
        self.wire: Wire | None = None
        self.model = ""
        self.sent = b""
        """The body, as received."""
        self.went_up = False
        """Whether the provider may have seen it."""
        self.status = CLIENT_CLOSED_STATUS
        self.outcome: Outcome = "abandoned"
        """The default, until another outcome is known."""
        self.headers: Mapping[str, str] = JSON_HEADERS
        self.begun = False
        """Whether the provider's answer has started."""
        self.message = ""
        self.count: TokenCounter | None = None
        self.most = TokenCounts()
        """Maximum tokens that it may use."""
        self._path, self._key, self._repeats = path, key, repeats
        self._stream = self._replayed = False
        self._first: float | None = None
        self._mark: int | None = None
        """Hash by which a retry is recognized."""
        self._retries = 0
        self._since: float | None = None
        """When the previous attempt failed."""

    # In flight

    def set_route(self, route: RouteMatch) -> None:
        self.tongue = route.wire
        self.wire = route.wire if route.kind == "generate" else None
        self._stream = route.stream

    def set_request(self, route: RouteMatch, request: ParsedRequest, sent: bytes) -> None:
        self.sent, self._stream = sent, request.stream
        self.most = TokenCounts(input=len(request.body) // BYTES_PER_TOKEN, output=request.most_output)
        self._mark = hash((route.wire, route.kind, request.model, sent))
        self._retries, self._since = self._repeats.find_failures(self._mark)

    def begin_answer(self, answer: UpstreamResponse, replayed: bool) -> None:
        self.begun, self.status, self.headers = True, answer.status, answer.headers
        self.message, self._replayed = answer.note, replayed

    def mark_first_byte(self) -> None:
        if self._first is None:
            self._first = time.monotonic() - self.began

    def set_outcome(self, outcome: Outcome, status: int | None = None, message: str = "") -> None:
        self.outcome = outcome
        if self._mark is not None and outcome != "refused":
            failed_at = time.monotonic() if outcome in FAILED_OUTCOMES else None
            self._repeats.record_outcome(self._mark, self._retries + 1, failed_at)
        self.status = self.status if status is None else status
        self.message = "; ".join(filter(None, (self.message, message)))

    def finish_answer(self) -> None:
        """Set the outcome of an answer that was forwarded completely."""
        if self.count and self.count.error:
            self.set_outcome("provider-error", message=self.count.error)
        elif self.wire and self.count and not self.count.ended:
            self.set_outcome("cut", message="The provider's answer ended early.")
        else:
            self.set_outcome("answered")

    def record_refusal(self, error: RequestRefused) -> None:
        self.set_outcome("refused", error.status, str(error))

    def record_failure(self, error: UpstreamFailure) -> None:
        self.set_outcome(error.outcome, None if self.begun else error.status, str(error))

    @property
    def reported_tokens(self) -> TokenCounts | None:
        """Tokens of a generation that the provider has reported so far."""
        return self.count.tokens if self.count and self.wire else None

    # Afterwards

    def build_exchange(self, prices: Prices) -> tuple[LlmExchange, tuple[float, float] | None]:
        """Return the exchange to record, and the interval of lost time."""
        seconds = time.monotonic() - self.began
        lost = self._find_lost_time(self.began + seconds)
        tokens = self.reported_tokens
        exchange = LlmExchange(
            at=self.at,
            wire=self.wire,
            model=self._clean_text(self.model, MAX_NAME_CHARACTERS),
            path=self._clean_text(self._path, MAX_NAME_CHARACTERS),
            stream=self._stream,
            status=self.status,
            outcome=self.outcome,
            seconds=seconds,
            first_seconds=self._first,
            stalled_seconds=lost[1] - lost[0] if lost else 0.0,
            retries=self._retries,
            tokens=tokens,
            guessed=self._estimate_tokens(tokens),
            usd=prices.usd(self.model, tokens) if tokens else None,
            replayed=self._replayed,
            message=self._clean_text(self.message, MAX_MESSAGE_CHARACTERS),
        )
        return exchange, lost

    def _find_lost_time(self, now: float) -> tuple[float, float] | None:
        if self.outcome == "abandoned" and self._mark is not None:
            waited = self.began if self._first is None else None  # the agent gave up waiting
            self._repeats.record_outcome(self._mark, self._retries + 1, waited)
        begin = self.began if self._since is None else self._since
        if self.outcome in FAILED_OUTCOMES:
            return begin, now
        return None if self._since is None else (begin, self.began)

    def _estimate_tokens(self, reported: TokenCounts | None) -> TokenCounts | None:
        """Estimate tokens of an answer that started and was not counted to its end, or was abandoned."""
        incomplete = self.outcome in ("cut", "stalled", "abandoned") or (
            self.outcome == "answered" and not reported
        )
        if not (self.wire and self.went_up and incomplete and (self.begun or self.outcome == "abandoned")):
            return None
        input_tokens = 0 if reported and reported.input else len(self.sent) // BYTES_PER_TOKEN
        output_tokens = (self.count.answer_characters if self.count else 0) // BYTES_PER_TOKEN
        uncounted = max(0, output_tokens - (reported.output if reported else 0))
        guessed = TokenCounts(input=input_tokens, output=uncounted)
        return guessed if guessed.total else None

    def _clean_text(self, text: str, most: int) -> str:
        """Return text that is safe to record: encodable, short and without the key."""
        text = text.encode("utf-8", "replace").decode()[:most]
        return self._key.redact_text(text) if self._key else text
