"""The gateway between an agent, which has no key and no network, and its driver LLM.

    route      match the path                                        request_parsing
    read       read and validate the body                            asgi, request_parsing, request_limits
    admit      wait until the request fits within the caps           meter
    ask        send it to the provider, or look it up on a tape      upstream, tape
    forward    redact the key from each chunk, tape it, count it     keys, tape, token_counting
    settle     record one `LlmExchange`                              in_flight_request, meter

Every request gets an answer in the client's wire format and is recorded as one exchange. Close a gateway
while it is still being served: `with serve(gateway.application) as socket, closing(gateway): …`
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing

from agent2rl.core.errors import UserError
from agent2rl.core.llm import LlmExchange, LlmUsage
from agent2rl.gateway import errors, in_flight_request
from agent2rl.gateway.drivers import Driver
from agent2rl.gateway.errors import RequestRefused, UpstreamFailure
from agent2rl.gateway.in_flight_request import (
    JSON_HEADERS,
    Application,
    BodyMemoryBudget,
    ClientDisconnected,
    FailedRequestLog,
    InFlightRequest,
    Receive,
    RequestBody,
    Scope,
    Send,
)
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

logger = logging.getLogger(__name__)

__all__ = ["FailureStreak", "Gateway", "Tape", "UpstreamTimeouts", "UsageCaps"]

Tape = TapeRecording | TapeReplay
ERROR_BYTES = 1 << 20
"""Maximum size of a provider's error, which is read completely before it is forwarded."""
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
        """`also` are further models that the run may use; `on_exchange` is called in the server's thread."""
        if isinstance(tape, TapeReplay):
            tape.require_model(driver.model)
        elif key is None and driver.needs_key:
            names = " or ".join(driver.key_names)
            raise UserError(
                f"{driver.model} needs a key of {driver.provider}, and {names} is not set.",
                f"Set it: export {driver.key_names[0]}=YOUR_KEY. It never enters the sandbox.\n"
                "Without a key: a server of your own, MODEL@URL, or an agent without an LLM, --agent recipe.",
            )
        self._driver, self._key, self._tape, self._prices = driver, key, tape, prices
        self._rules = RequestRules((driver.model, *also), allow_server_tools)
        self._meter = UsageMeter(caps, prices, self._rules.models, on_exchange)
        self._patience = patience or UpstreamTimeouts()
        self._upstream = None if isinstance(tape, TapeReplay) else UpstreamClient(driver, key, self._patience)
        self._repeats, self._body_budget = FailedRequestLog(), BodyMemoryBudget()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    # Used by the run

    def restore_exchanges(self, exchanges: Sequence[LlmExchange]) -> None:
        """Count the run's earlier exchanges, which went through another gateway."""
        self._meter.restore_exchanges(exchanges)

    @property
    def exhausted(self) -> threading.Event:
        """Set once a cap is crossed and the answer that crossed it has been delivered."""
        return self._meter.exhausted

    @property
    def over(self) -> threading.Event:
        """Set once the driver can no longer be used: a cap was crossed and another request came, or the
        provider rejects the key."""
        return self._meter.over

    def describe_spending(self) -> str:
        """Return how much of the caps is used, for people."""
        return self._meter.describe_caps()

    def usage(self) -> LlmUsage:
        return self._meter.usage

    def get_failure_streak(self) -> FailureStreak | None:
        """Return the current streak of failed requests, if there is one."""
        return self._meter.trouble

    def close(self) -> None:
        """Cancel and record all requests in flight. Nothing is sent or recorded afterwards."""
        self._closed = True
        if self._loop and self._loop.is_running():
            # The run closes the gateway from a thread of its own; the requests belong to the
            # server's loop.
            asyncio.run_coroutine_threadsafe(self._cancel_requests(), self._loop).result(CLOSE_SECONDS)
        if isinstance(self._tape, TapeRecording):
            self._tape.close()

    async def _cancel_requests(self) -> None:
        tasks = list(self._tasks)
        if tasks:
            logger.debug("Cancelling %d requests in flight", len(tasks))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._upstream:
            await self._upstream.close()

    # Used by the server

    @property
    def application(self) -> Application:
        async def application(scope: Scope, receive: Receive, send: Send) -> None:
            await self._serve_scope(scope, receive, send)

        return application  # a function, because servers do not recognize a bound method as ASGI 3

    async def _serve_scope(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1003})
        elif self._closed:
            await in_flight_request.send_response(
                send, 503, JSON_HEADERS, errors.render_error_body("openai-chat", 503, "The run is over.")
            )
        else:
            self._loop = asyncio.get_running_loop()
            # A task of its own, which closing the gateway can cancel.
            task = asyncio.create_task(self._handle_request(scope, receive, send))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            # `wait` does not raise: a task that closing the gateway cancels is no error of the
            # server.
            await asyncio.wait({task})
            if not task.cancelled():
                task.result()

    async def _handle_request(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request, from its first byte to its recorded exchange."""
        headers = in_flight_request.parse_headers(scope)
        path = scope["raw_path"].decode("ascii", "replace")
        in_flight = InFlightRequest(
            path, guess_wire(path, "anthropic-version" in headers), self._key, self._repeats
        )
        body = RequestBody(self._body_budget, self._patience.body_seconds)
        try:
            route = route_request(scope["method"], path, scope["query_string"].decode("ascii", "replace"))
            in_flight.set_route(route)
            if route.kind == "list":
                await self._answer_model_list(in_flight, route, send)
            else:
                request = await self._read_request(in_flight, route, headers, body, receive)
                await in_flight_request.run_until_disconnect(
                    receive, self._forward_request(in_flight, route, request, headers, send)
                )
        except RequestRefused as error:
            in_flight.record_refusal(error)
            await in_flight_request.send_response(
                send,
                error.status,
                JSON_HEADERS,
                errors.render_error_body(in_flight.tongue, error.status, str(error)),
            )
        except (ClientDisconnected, asyncio.CancelledError):
            pass  # the outcome is "abandoned" until it is set to something else
        except Exception as error:
            in_flight.set_outcome("refused", 500, f"Internal gateway error ({type(error).__name__}).")
            raise
        finally:
            body.release_memory()
            exchange, lost = in_flight.build_exchange(self._prices)
            self._meter.settle_exchange(in_flight, exchange, in_flight.began, lost)

    async def _answer_model_list(self, in_flight: InFlightRequest, route: RouteMatch, send: Send) -> None:
        names = [name for name in self._rules.models if route.model in (None, name)]
        if not names:
            raise RequestRefused(
                404, f"This run has no model {route.model!r}.", f"It has {self._driver.model}."
            )
        in_flight.set_outcome("answered", 200)
        await in_flight_request.send_response(
            send,
            200,
            JSON_HEADERS,
            errors.render_model_list(in_flight.tongue, names, is_single=route.model is not None),
        )

    async def _read_request(
        self,
        in_flight: InFlightRequest,
        route: RouteMatch,
        headers: Mapping[str, str],
        body: RequestBody,
        receive: Receive,
    ) -> ParsedRequest:
        if headers.get("content-encoding", "identity").strip().casefold() != "identity":
            raise RequestRefused(415, "Compressed requests are not supported.", "Leave out Content-Encoding.")
        sent = await body.read(receive)
        parsed = parse_json_body(sent)
        in_flight.model = find_model_name(route, parsed)
        request = validate_request(route, sent, parsed, self._rules)
        in_flight.set_request(route, request, sent)
        return request

    async def _forward_request(
        self,
        in_flight: InFlightRequest,
        route: RouteMatch,
        request: ParsedRequest,
        headers: Mapping[str, str],
        send: Send,
    ) -> None:
        """Send the request and forward the answer; an answer that breaks off midway stays broken off."""
        url = build_provider_url(self._driver, route, request.model, request.stream)
        # Counting tokens costs nothing, so it waits for no cap.
        if route.kind == "generate":
            await self._meter.wait_for_admission(in_flight)
        recorder = (
            self._tape.begin_exchange(route, request, in_flight.sent)
            if isinstance(self._tape, TapeRecording)
            else None
        )
        in_flight.went_up = True
        try:
            async with self._open_source(route, request, url, headers) as answer:
                logger.debug("%s request for %.100r: status %d", route.wire, request.model, answer.status)
                in_flight.begin_answer(answer, replayed=isinstance(self._tape, TapeReplay))
                if answer.status >= 400:
                    await self._forward_error(in_flight, answer, recorder, send)
                else:
                    await self._forward_answer(in_flight, route, request, answer, recorder, send)
        except UpstreamFailure as failure:
            logger.debug("%s request failed: %s", route.wire, failure)
            in_flight.record_failure(failure)
            if not in_flight.begun:
                body = errors.render_error_body(route.wire, failure.status, str(failure))
                _record_chunk(recorder, body)
                await in_flight_request.send_response(send, failure.status, JSON_HEADERS, body)
        finally:
            if recorder:
                recorder.finish_exchange(
                    in_flight.status, dict(in_flight.headers), in_flight.outcome, in_flight.message, self._key
                )

    def _open_source(
        self, route: RouteMatch, request: ParsedRequest, url: str, headers: Mapping[str, str]
    ) -> AbstractAsyncContextManager[UpstreamResponse]:
        if isinstance(self._tape, TapeReplay):
            return self._tape.open_answer(route, request)
        assert self._upstream
        return self._upstream.open_response(route.wire, url, request.body, headers)

    async def _forward_error(
        self,
        in_flight: InFlightRequest,
        answer: UpstreamResponse,
        recorder: ExchangeRecorder | None,
        send: Send,
    ) -> None:
        """Forward a provider's error, with the key and account names redacted."""
        body = b""
        async with aclosing(answer.chunks) as chunks:
            async for chunk in chunks:
                body += chunk[: ERROR_BYTES - len(body)]
        # Redacted as a whole, because the name of an account may be split between chunks.
        body = redact_accounts(self._key.redact(body) if self._key else body)
        _record_chunk(recorder, body)
        in_flight.set_outcome(answer.outcome or "provider-error", message=extract_error_message(body))
        await in_flight_request.send_response(send, answer.status, answer.headers, body)

    async def _forward_answer(
        self,
        in_flight: InFlightRequest,
        route: RouteMatch,
        request: ParsedRequest,
        answer: UpstreamResponse,
        recorder: ExchangeRecorder | None,
        send: Send,
    ) -> None:
        count = in_flight.count = TokenCounter(route.wire, answer.streams)
        redactor = Redactor(self._key)
        drops_usage = request.unasked and answer.streams

        async def forward(clean: bytes, last: bool = False) -> None:
            _record_chunk(recorder, clean)
            events = count.feed(clean)
            # Before the agent gets the end of the answer, because it may retry at once.
            if last:
                events += count.finish()
                in_flight.finish_answer()
            await in_flight_request.send_chunk(
                send, _drop_usage_events(events) if drops_usage else clean, last=last
            )

        await in_flight_request.start_response(send, answer.status, answer.headers)
        async with aclosing(answer.chunks) as chunks:
            async for chunk in chunks:
                in_flight.mark_first_byte()
                await forward(redactor.feed(chunk))
        await forward(redactor.finish(), last=True)


def _record_chunk(recorder: ExchangeRecorder | None, chunk: bytes) -> None:
    if recorder:
        recorder.add_chunk(chunk)


def _drop_usage_events(events: list[ServerSentEvent]) -> bytes:
    """Drop usage events that the gateway requested and the client did not."""
    return b"".join(event.raw for event in events if not is_usage_only(event))
