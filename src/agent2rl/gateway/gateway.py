"""The gateway: between an agent that has no key and no network, and the LLM that drives it.

    route      what the path asks for                               wires
    read       the body, and whether it may be passed on            asgi, asking, limits
    admit      a place within the caps                              meter
    ask        the provider, or a tape                              upstream, replay
    pass       each chunk: the key out of it, taped, counted, on    keys, tape, counting
    settle     one `Exchange` for the record                        visit, meter

Whatever is sent, there is an answer in the wire format of the asker, and one exchange on record. A gateway is
closed while it is still being served: `with serve(gateway.application) as socket, closing(gateway): …`
"""

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing

from agent2rl.core.errors import UserError
from agent2rl.core.llm import Exchange, Usage
from agent2rl.gateway import asgi, forms
from agent2rl.gateway.asgi import Application, Body, Gone, Receive, Room, Scope, Send
from agent2rl.gateway.asking import Asked, Rules, loads, named, read
from agent2rl.gateway.counting import Count, error_words, usage_alone
from agent2rl.gateway.drivers import Driver
from agent2rl.gateway.events import Event
from agent2rl.gateway.forms import Lost, Refused
from agent2rl.gateway.keys import Key, Redactor, without_accounts
from agent2rl.gateway.meter import Caps, Meter, Trouble
from agent2rl.gateway.prices import Prices
from agent2rl.gateway.replay import Replay
from agent2rl.gateway.tape import Recording, Take
from agent2rl.gateway.upstream import Answer, Patience, Upstream
from agent2rl.gateway.visit import JSON, Repeats, Visit
from agent2rl.gateway.wires import Call, address, route, tongue

__all__ = ["Caps", "Gateway", "Patience", "Tape", "Trouble"]

Tape = Recording | Replay
ERROR_BYTES = 1 << 20
"""Of a provider's error, which is read whole."""
CLOSE_SECONDS = 10.0


class Gateway:
    def __init__(
        self,
        driver: Driver,
        key: Key | None,
        caps: Caps,
        prices: Prices,
        on_exchange: Callable[[Exchange], None],
        tape: Tape | None = None,
        patience: Patience | None = None,
        also: tuple[str, ...] = (),
        allow_server_tools: bool = False,
    ) -> None:
        """`also` are further models that the run may ask; `on_exchange` is called by the server's thread."""
        if isinstance(tape, Replay):
            tape.require(driver.model)
        elif key is None and driver.needs_key:
            raise UserError(
                f"{driver.model} needs a key of {driver.provider}.", f"Set {' or '.join(driver.key_names)}."
            )
        self._driver, self._key, self._tape, self._prices = driver, key, tape, prices
        self._rules = Rules((driver.model, *also), allow_server_tools)
        self._meter = Meter(caps, prices, self._rules.models, on_exchange)
        self._patience = patience or Patience()
        self._upstream = None if isinstance(tape, Replay) else Upstream(driver, key, self._patience)
        self._repeats, self._room = Repeats(), Room()
        self._visits: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    # For the run

    def remember(self, exchanges: Sequence[Exchange]) -> None:
        """What the run asked before, through another gateway."""
        self._meter.remember(exchanges)

    @property
    def exhausted(self) -> threading.Event:
        """Set when a cap was crossed and the answer that crossed it has been delivered."""
        return self._meter.exhausted

    @property
    def over(self) -> threading.Event:
        """Set when there is nothing left to think with: a cap was crossed and more was asked for, or the
        provider does not let the key in."""
        return self._meter.over

    def spent(self) -> str:
        """What of the caps is used, for people."""
        return self._meter.caps_said()

    def usage(self) -> Usage:
        return self._meter.usage

    def trouble(self) -> Trouble | None:
        """How it stands with the provider, if the last requests failed."""
        return self._meter.trouble

    def close(self) -> None:
        """End what is under way, and record it. Nothing is asked or recorded afterwards."""
        self._closed = True
        if self._loop and self._loop.is_running():
            asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(CLOSE_SECONDS)
        if isinstance(self._tape, Recording):
            self._tape.close()

    async def _end(self) -> None:
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
            await self._serve(scope, receive, send)

        return application  # a function: a bound method is not known for what it is

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1003})
        elif self._closed:
            await asgi.answer(send, 503, JSON, forms.error("openai-chat", 503, "The run is over."))
        else:
            self._loop = asyncio.get_running_loop()
            visit = asyncio.create_task(self._visit(scope, receive, send))
            self._visits.add(visit)
            visit.add_done_callback(self._visits.discard)
            await asyncio.wait({visit})
            if not visit.cancelled():
                visit.result()

    async def _visit(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request, from its first byte to its line on record."""
        headers = asgi.headers_of(scope)
        path = scope["raw_path"].decode("ascii", "replace")
        visit = Visit(path, tongue(path, "anthropic-version" in headers), self._key, self._repeats)
        body = Body(self._room, self._patience.body_seconds)
        try:
            call = route(scope["method"], path, scope["query_string"].decode("ascii", "replace"))
            visit.routed(call)
            if call.kind == "list":
                await self._list(visit, call, send)
            else:
                asked = await self._read(visit, call, headers, body, receive)
                await asgi.unless_gone(receive, self._pass(visit, call, asked, headers, send))
        except Refused as error:
            visit.refused(error)
            await asgi.answer(send, error.status, JSON, forms.error(visit.tongue, error.status, str(error)))
        except (Gone, asyncio.CancelledError):
            pass  # a visit is abandoned until something else has come of it
        except Exception as error:
            visit.ended("refused", 500, f"A fault of the gateway ({type(error).__name__}).")
            raise
        finally:
            body.drop()
            exchange, lost = visit.exchange(self._prices)
            self._meter.settle(visit, exchange, visit.began, lost)

    async def _list(self, visit: Visit, call: Call, send: Send) -> None:
        names = [name for name in self._rules.models if call.model in (None, name)]
        if not names:
            raise Refused(404, f"This run has no model {call.model!r}.", f"It has {self._driver.model}.")
        visit.ended("answered", 200)
        await asgi.answer(send, 200, JSON, forms.models(visit.tongue, names, one=call.model is not None))

    async def _read(
        self, visit: Visit, call: Call, headers: Mapping[str, str], body: Body, receive: Receive
    ) -> Asked:
        if headers.get("content-encoding", "identity").strip().casefold() != "identity":
            raise Refused(415, "Requests are read as they are, not packed.", "Leave out Content-Encoding.")
        sent = await body.read(receive)
        parsed = loads(sent)
        visit.model = named(call, parsed)
        asked = read(call, sent, parsed, self._rules)
        visit.asked(call, asked, sent)
        return asked

    async def _pass(
        self, visit: Visit, call: Call, asked: Asked, headers: Mapping[str, str], send: Send
    ) -> None:
        """Ask, and hand on what comes; what breaks off after it began is left to break off."""
        url = address(self._driver, call, asked.model, asked.stream)
        if call.kind == "generate":
            await self._meter.admit(visit)
        take = self._tape.begin(call, asked, visit.sent) if isinstance(self._tape, Recording) else None
        visit.went_up = True
        try:
            async with self._source(call, asked, url, headers) as answer:
                visit.answering(answer, replayed=isinstance(self._tape, Replay))
                if answer.status >= 400:
                    await self._pass_error(visit, answer, take, send)
                else:
                    await self._pass_answer(visit, call, asked, answer, take, send)
        except Lost as lost:
            visit.lost(lost)
            if not visit.begun:
                body = forms.error(call.wire, lost.status, str(lost))
                _tape(take, body)
                await asgi.answer(send, lost.status, JSON, body)
        finally:
            if take:
                take.end(visit.status, dict(visit.headers), visit.outcome, visit.message, self._key)

    def _source(
        self, call: Call, asked: Asked, url: str, headers: Mapping[str, str]
    ) -> AbstractAsyncContextManager[Answer]:
        if isinstance(self._tape, Replay):
            return self._tape.ask(call, asked)
        assert self._upstream
        return self._upstream.ask(call.wire, url, asked.body, headers)

    async def _pass_error(self, visit: Visit, answer: Answer, take: Take | None, send: Send) -> None:
        """A provider's error, in its own words but for what it calls its customer."""
        body = b""
        async with aclosing(answer.chunks) as chunks:
            async for chunk in chunks:
                body += chunk[: ERROR_BYTES - len(body)]
        body = without_accounts(self._key.redact(body) if self._key else body)
        _tape(take, body)
        visit.ended(answer.outcome or "provider-error", message=error_words(body))
        await asgi.answer(send, answer.status, answer.headers, body)

    async def _pass_answer(
        self, visit: Visit, call: Call, asked: Asked, answer: Answer, take: Take | None, send: Send
    ) -> None:
        count = visit.count = Count(call.wire, answer.streams)
        redactor = Redactor(self._key)
        sifted = asked.unasked and answer.streams

        async def hand_on(clean: bytes, over: bool = False) -> None:
            _tape(take, clean)
            events = count.feed(clean)
            if over:
                events += count.finish()
                visit.finished()
            await asgi.more(send, _sifted(events) if sifted else clean, last=over)

        await asgi.begin(send, answer.status, answer.headers)
        async with aclosing(answer.chunks) as chunks:
            async for chunk in chunks:
                visit.heard()
                await hand_on(redactor.feed(chunk))
        await hand_on(redactor.finish(), over=True)


def _tape(take: Take | None, chunk: bytes) -> None:
    if take:
        take.heard(chunk)


def _sifted(events: list[Event]) -> bytes:
    """Without the usage that the gateway asked for and the client did not."""
    return b"".join(event.raw for event in events if not usage_alone(event))
