"""The gateway: between an agent that has no key and no network, and the LLM that drives it.

    route      what the path asks for                               wires
    read       the body, and whether it may be passed on            asgi, asking, limits
    admit      a place within the caps                              meter
    ask        the provider, or a tape                              upstream, replay
    pass       each chunk: the key out of it, taped, counted, on    keys, tape, counting
    settle     one `LlmExchange` for the record                        visit, meter

Whatever is sent, there is an answer in the wire format of the asker, and one exchange on record. A gateway is
closed while it is still being served: `with serve(gateway.application) as socket, closing(gateway): …`
"""

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing

from agent2rl.core.errors import UserError
from agent2rl.core.llm import LlmExchange, LlmUsage
from agent2rl.gateway import asgi, errors
from agent2rl.gateway.asgi import (
    Application,
    BodyMemoryBudget,
    ClientDisconnected,
    Receive,
    RequestBody,
    Scope,
    Send,
)
from agent2rl.gateway.drivers import Driver
from agent2rl.gateway.errors import RequestRefused, UpstreamFailure
from agent2rl.gateway.in_flight_request import JSON_HEADERS, FailedRequestLog, InFlightRequest
from agent2rl.gateway.keys import Key, Redactor, redact_accounts
from agent2rl.gateway.meter import FailureStreak, UsageCaps, UsageMeter
from agent2rl.gateway.prices import Prices
from agent2rl.gateway.request_parsing import (
    ParsedRequest,
    RequestRules,
    RouteMatch,
    build_provider_url,
    find_model_name,
    guess_wire,
    parse_json_body,
    route_request,
    validate_request,
)
from agent2rl.gateway.tape import ExchangeRecorder, TapeRecording, TapeReplay
from agent2rl.gateway.token_counting import (
    ServerSentEvent,
    TokenCounter,
    extract_error_message,
    is_usage_only,
)
from agent2rl.gateway.upstream import UpstreamClient, UpstreamResponse, UpstreamTimeouts

__all__ = ["FailureStreak", "Gateway", "Tape", "UpstreamTimeouts", "UsageCaps"]

Tape = TapeRecording | TapeReplay
ERROR_BYTES = 1 << 20
"""Of a provider's error, which is read whole."""
CLOSE_SECONDS = 10.0


class Gateway:
    def __init__(
        self,
        driver: Driver,
        key: Key | None,
        caps: UsageCaps,
        prices: Prices,
        on_exchange: Callable[[LlmExchange], None],
        tape: Tape | None = None,
        patience: UpstreamTimeouts | None = None,
        also: tuple[str, ...] = (),
        allow_server_tools: bool = False,
    ) -> None:
        """`also` are further models that the run may ask; `on_exchange` is called by the server's thread."""
        if isinstance(tape, TapeReplay):
            tape.require_model(driver.model)
        elif key is None and driver.needs_key:
            raise UserError(
                f"{driver.model} needs a key of {driver.provider}.", f"Set {' or '.join(driver.key_names)}."
            )
        self._driver, self._key, self._tape, self._prices = driver, key, tape, prices
        self._rules = RequestRules((driver.model, *also), allow_server_tools)
        self._meter = UsageMeter(caps, prices, self._rules.models, on_exchange)
        self._patience = patience or UpstreamTimeouts()
        self._upstream = None if isinstance(tape, TapeReplay) else UpstreamClient(driver, key, self._patience)
        self._repeats, self._room = FailedRequestLog(), BodyMemoryBudget()
        self._visits: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    # For the run

    def restore_exchanges(self, exchanges: Sequence[LlmExchange]) -> None:
        """What the run asked before, through another gateway."""
        self._meter.restore_exchanges(exchanges)

    @property
    def exhausted(self) -> threading.Event:
        """Set when a cap was crossed and the answer that crossed it has been delivered."""
        return self._meter.exhausted

    @property
    def over(self) -> threading.Event:
        """Set when there is nothing left to think with: a cap was crossed and more was asked for, or the
        provider does not let the key in."""
        return self._meter.over

    def describe_spending(self) -> str:
        """What of the caps is used, for people."""
        return self._meter.describe_caps()

    def usage(self) -> LlmUsage:
        return self._meter.usage

    def get_failure_streak(self) -> FailureStreak | None:
        """How it stands with the provider, if the last requests failed."""
        return self._meter.trouble

    def close(self) -> None:
        """End what is under way, and record it. Nothing is asked or recorded afterwards."""
        self._closed = True
        if self._loop and self._loop.is_running():
            asyncio.run_coroutine_threadsafe(self._cancel_requests(), self._loop).result(CLOSE_SECONDS)
        if isinstance(self._tape, TapeRecording):
            self._tape.close()

    async def _cancel_requests(self) -> None:
        visits = list(self._visits)
        for visit in visits:
            visit.cancel()
        await asyncio.gather(*visits, return_exceptions=True)
        if self._upstream:
            await self._upstream.close()

    # For the server

    @property
    def application(self) -> Application:
        async def application(scope: Scope, receive: Receive, send: Send) -> None:
            await self._serve_scope(scope, receive, send)

        return application  # a function: a bound method is not known for what it is

    async def _serve_scope(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1003})
        elif self._closed:
            await asgi.send_response(
                send, 503, JSON_HEADERS, errors.render_error_body("openai-chat", 503, "The run is over.")
            )
        else:
            self._loop = asyncio.get_running_loop()
            visit = asyncio.create_task(self._handle_request(scope, receive, send))
            self._visits.add(visit)
            visit.add_done_callback(self._visits.discard)
            await asyncio.wait({visit})
            if not visit.cancelled():
                visit.result()

    async def _handle_request(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request, from its first byte to its line on record."""
        headers = asgi.parse_headers(scope)
        path = scope["raw_path"].decode("ascii", "replace")
        visit = InFlightRequest(
            path, guess_wire(path, "anthropic-version" in headers), self._key, self._repeats
        )
        body = RequestBody(self._room, self._patience.body_seconds)
        try:
            call = route_request(scope["method"], path, scope["query_string"].decode("ascii", "replace"))
            visit.set_route(call)
            if call.kind == "list":
                await self._answer_model_list(visit, call, send)
            else:
                asked = await self._read_request(visit, call, headers, body, receive)
                await asgi.run_until_disconnect(
                    receive, self._forward_request(visit, call, asked, headers, send)
                )
        except RequestRefused as error:
            visit.record_refusal(error)
            await asgi.send_response(
                send,
                error.status,
                JSON_HEADERS,
                errors.render_error_body(visit.tongue, error.status, str(error)),
            )
        except (ClientDisconnected, asyncio.CancelledError):
            pass  # a visit is abandoned until something else has come of it
        except Exception as error:
            visit.set_outcome("refused", 500, f"A fault of the gateway ({type(error).__name__}).")
            raise
        finally:
            body.release_memory()
            exchange, lost = visit.build_exchange(self._prices)
            self._meter.settle_exchange(visit, exchange, visit.began, lost)

    async def _answer_model_list(self, visit: InFlightRequest, call: RouteMatch, send: Send) -> None:
        names = [name for name in self._rules.models if call.model in (None, name)]
        if not names:
            raise RequestRefused(
                404, f"This run has no model {call.model!r}.", f"It has {self._driver.model}."
            )
        visit.set_outcome("answered", 200)
        await asgi.send_response(
            send, 200, JSON_HEADERS, errors.render_model_list(visit.tongue, names, one=call.model is not None)
        )

    async def _read_request(
        self,
        visit: InFlightRequest,
        call: RouteMatch,
        headers: Mapping[str, str],
        body: RequestBody,
        receive: Receive,
    ) -> ParsedRequest:
        if headers.get("content-encoding", "identity").strip().casefold() != "identity":
            raise RequestRefused(
                415, "Requests are read as they are, not packed.", "Leave out Content-Encoding."
            )
        sent = await body.read(receive)
        parsed = parse_json_body(sent)
        visit.model = find_model_name(call, parsed)
        asked = validate_request(call, sent, parsed, self._rules)
        visit.set_request(call, asked, sent)
        return asked

    async def _forward_request(
        self,
        visit: InFlightRequest,
        call: RouteMatch,
        asked: ParsedRequest,
        headers: Mapping[str, str],
        send: Send,
    ) -> None:
        """Ask, and hand on what comes; what breaks off after it began is left to break off."""
        url = build_provider_url(self._driver, call, asked.model, asked.stream)
        if call.kind == "generate":
            await self._meter.wait_for_admission(visit)
        take = (
            self._tape.begin_exchange(call, asked, visit.sent)
            if isinstance(self._tape, TapeRecording)
            else None
        )
        visit.went_up = True
        try:
            async with self._open_source(call, asked, url, headers) as answer:
                visit.begin_answer(answer, replayed=isinstance(self._tape, TapeReplay))
                if answer.status >= 400:
                    await self._forward_error(visit, answer, take, send)
                else:
                    await self._forward_answer(visit, call, asked, answer, take, send)
        except UpstreamFailure as lost:
            visit.record_failure(lost)
            if not visit.begun:
                body = errors.render_error_body(call.wire, lost.status, str(lost))
                _record_chunk(take, body)
                await asgi.send_response(send, lost.status, JSON_HEADERS, body)
        finally:
            if take:
                take.finish_exchange(
                    visit.status, dict(visit.headers), visit.outcome, visit.message, self._key
                )

    def _open_source(
        self, call: RouteMatch, asked: ParsedRequest, url: str, headers: Mapping[str, str]
    ) -> AbstractAsyncContextManager[UpstreamResponse]:
        if isinstance(self._tape, TapeReplay):
            return self._tape.open_answer(call, asked)
        assert self._upstream
        return self._upstream.open_response(call.wire, url, asked.body, headers)

    async def _forward_error(
        self, visit: InFlightRequest, answer: UpstreamResponse, take: ExchangeRecorder | None, send: Send
    ) -> None:
        """A provider's error, in its own words but for what it calls its customer."""
        body = b""
        async with aclosing(answer.chunks) as chunks:
            async for chunk in chunks:
                body += chunk[: ERROR_BYTES - len(body)]
        body = redact_accounts(self._key.redact(body) if self._key else body)
        _record_chunk(take, body)
        visit.set_outcome(answer.outcome or "provider-error", message=extract_error_message(body))
        await asgi.send_response(send, answer.status, answer.headers, body)

    async def _forward_answer(
        self,
        visit: InFlightRequest,
        call: RouteMatch,
        asked: ParsedRequest,
        answer: UpstreamResponse,
        take: ExchangeRecorder | None,
        send: Send,
    ) -> None:
        count = visit.count = TokenCounter(call.wire, answer.streams)
        redactor = Redactor(self._key)
        sifted = asked.unasked and answer.streams

        async def hand_on(clean: bytes, over: bool = False) -> None:
            _record_chunk(take, clean)
            events = count.feed(clean)
            if over:
                events += count.finish()
                visit.finish_answer()
            await asgi.send_chunk(send, _drop_usage_events(events) if sifted else clean, last=over)

        await asgi.start_response(send, answer.status, answer.headers)
        async with aclosing(answer.chunks) as chunks:
            async for chunk in chunks:
                visit.mark_first_byte()
                await hand_on(redactor.feed(chunk))
        await hand_on(redactor.finish(), over=True)


def _record_chunk(take: ExchangeRecorder | None, chunk: bytes) -> None:
    if take:
        take.add_chunk(chunk)


def _drop_usage_events(events: list[ServerSentEvent]) -> bytes:
    """Without the usage that the gateway asked for and the client did not."""
    return b"".join(event.raw for event in events if not is_usage_only(event))
