"""Answers from a tape.

Two runs of the same agent never ask quite the same: dates, session ids, temporary paths and what commands
print differ. What does not differ is what the driver has said so far, because that comes off the tape. So
a request is answered by an exchange that has not been played yet, of the same wire format, path, model, names
of tools and way of streaming, in which the driver had said the same until then. Of several, the first one
whose body is equal; or else is equal but for numbers and ids; or else has the same shape; or else the first.

Where the bodies differ, the record says where (`Exchange.message`). Where there is no such exchange, the
request is refused, and the refusal says what the nearest one has that this one hasn't.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from agent2rl.core.errors import UserError
from agent2rl.gateway.errors import RequestRefused, UpstreamFailure
from agent2rl.gateway.request_matching import RequestFingerprint, describe_difference
from agent2rl.gateway.request_parsing import ParsedRequest
from agent2rl.gateway.routing import RouteMatch
from agent2rl.gateway.tape import TapedExchange, read_tape
from agent2rl.gateway.upstream import UpstreamResponse


class TapeReplay:
    def __init__(self, path: Path, pace: float = 0.0) -> None:
        """`pace` is how much of the recorded time is waited: none of it, or with 1.0 all of it."""
        self.path = path
        self._pace = pace
        self._taped = read_tape(path)
        if not self._taped:
            raise UserError(f"The tape {path} is empty.")
        self._unplayed = {one.number: (one, _fingerprint_exchange(one)) for one in self._taped}

    def require_model(self, model: str) -> None:
        known = sorted({one.model for one in self._taped})
        if model not in known:
            raise UserError(
                f"The tape {self.path} was recorded with {', '.join(known)}, not {model}.",
                "Name that driver.",
            )

    @property
    def left(self) -> int:
        """Exchanges that nobody has asked for yet."""
        return len(self._unplayed)

    @asynccontextmanager
    async def open_answer(self, call: RouteMatch, asked: ParsedRequest) -> AsyncIterator[UpstreamResponse]:
        parsed = asked.parsed
        try:
            like = RequestFingerprint.from_body(
                (call.wire, call.kind, asked.model, asked.stream), lambda: parsed
            )
            taped, note = self._take_match(like, parsed)
        except RecursionError:
            raise RequestRefused(
                400, "The request is nested too deeply to be looked for on a tape."
            ) from None
        yield UpstreamResponse(
            taped.status,
            taped.headers,
            self._replay_chunks(taped),
            outcome=taped.outcome,
            note=note,
        )

    def _take_match(self, asked: RequestFingerprint, parsed: dict[str, Any]) -> tuple[TapedExchange, str]:
        fitting = [number for number, (_, like) in self._unplayed.items() if asked.matches_request(like)]
        if not fitting:
            raise RequestRefused(
                400, f"The tape has no answer to this. {self._describe_nearest(asked, parsed)}."
            )
        if len(fitting) > 1:
            fitting.sort(key=lambda number: (asked.measure_distance(self._unplayed[number][1]), number))
        taped, _ = self._unplayed.pop(fitting[0])
        unlike = describe_difference(_parse_request(taped), parsed)
        return taped, unlike and f"asked otherwise than exchange {taped.number} of the tape: {unlike}"

    def _describe_nearest(self, asked: RequestFingerprint, parsed: dict[str, Any]) -> str:
        """What the request lacks, for whoever must find out."""
        if not self._unplayed:
            return f"All its {len(self._taped)} exchanges have been played"
        number = max(self._unplayed, key=lambda one: (asked.measure_overlap(self._unplayed[one][1]), -one))
        taped, like = self._unplayed[number]
        told = (asked.describe_mismatch(like), describe_difference(_parse_request(taped), parsed))
        return f"The nearest is exchange {number}: {'; '.join(filter(None, told))}"

    async def _replay_chunks(self, taped: TapedExchange) -> AsyncGenerator[bytes, None]:
        body, at, before = taped.body, 0, 0.0
        for seconds, size in taped.chunks:
            if self._pace:
                await asyncio.sleep((seconds - before) * self._pace)
                before = seconds
            yield body[at : at + size]
            at += size
        if taped.outcome in ("cut", "stalled", "abandoned") and taped.status < 400:
            raise UpstreamFailure(
                "cut" if taped.outcome == "abandoned" else taped.outcome, 502, "The tape breaks off here."
            )


def _fingerprint_exchange(taped: TapedExchange) -> RequestFingerprint:
    return RequestFingerprint.from_body(
        (taped.wire, taped.kind, taped.model, taped.stream), lambda: _parse_request(taped)
    )


def _parse_request(taped: TapedExchange) -> dict[str, Any]:
    found = json.loads(taped.request)
    return found if isinstance(found, dict) else {}
