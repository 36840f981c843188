"""Records a run's exchanges with its driver LLM on a tape, and replays them without asking anybody.

A tape is JSON lines, one per exchange with the provider: the request's body, the answer's bytes, and when
each chunk came. It holds neither the key nor requests that the gateway itself refused.

Two runs of one agent never send exactly the same requests, but the driver's turns so far are the same.
Replay answers a request with the first unplayed exchange that matches in wire format, path, model, tool
names, streaming and driver turns; it prefers an equal body, then one that is equal but for numbers and ids,
then one of the same shape. Differences go on record. Without a match, the refusal names the nearest
exchange's differences.
"""

import asyncio
import base64
import fcntl
import hashlib
import json
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any, BinaryIO

from pydantic import ValidationError

from agent2rl.core.errors import UserError
from agent2rl.core.llm import Outcome, Wire
from agent2rl.core.records import Record
from agent2rl.gateway.errors import RequestRefused, UpstreamFailure
from agent2rl.gateway.keys import Key
from agent2rl.gateway.request_parsing import Kind, ParsedRequest, RouteMatch
from agent2rl.gateway.upstream import UpstreamResponse
from agent2rl.record.files import cut_torn_line


class TapedExchange(Record):
    """One exchange."""

    number: int
    """Its place in the order of asking, from 1 on."""
    at: float
    """Seconds since the epoch."""
    wire: Wire
    kind: Kind
    model: str
    stream: bool
    request: str
    status: int
    headers: dict[str, str]
    outcome: Outcome
    answer: str
    """Base64 where it is no UTF-8."""
    packed: bool = False
    chunks: tuple[tuple[float, int], ...] = ()
    """When each came, in seconds after the request, and its bytes."""
    message: str = ""

    @property
    def body(self) -> bytes:
        return base64.b64decode(self.answer) if self.packed else self.answer.encode()


class TapeRecording:
    """A tape that is being written, by one run at a time."""

    def __init__(self, path: Path, again: bool = False) -> None:
        """`again`: go on with the tape of a harness that died."""
        self.path = path
        if again:
            cut_torn_line(path)
        taped = read_tape(path) if again and path.exists() else []
        self._number = max((one.number for one in taped), default=0)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file: BinaryIO = path.open("ab")
        except OSError as error:
            raise UserError(f"A tape cannot be written to {path}: {error.strerror}.") from error
        if (self._file.tell() and not again) or not _lock_file(
            self._file
        ):  # an empty one is what a refused run left
            self._file.close()
            raise UserError(f"There is a tape at {path} already.", "Name another file.")

    def begin_exchange(self, call: RouteMatch, asked: ParsedRequest, request: bytes) -> "ExchangeRecorder":
        self._number += 1
        return ExchangeRecorder(self, self._number, call, asked, request)

    def write(self, taped: TapedExchange) -> None:
        self._file.write(taped.model_dump_json().encode() + b"\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class ExchangeRecorder:
    """One exchange while it is recorded."""

    def __init__(
        self, tape: TapeRecording, number: int, call: RouteMatch, asked: ParsedRequest, request: bytes
    ) -> None:
        self._tape, self._number = tape, number
        self._call, self._asked, self._request = call, asked, request
        self._at, self._began = time.time(), time.monotonic()
        self._chunks: list[tuple[float, bytes]] = []

    def add_chunk(self, chunk: bytes) -> None:
        if chunk:
            self._chunks.append((round(time.monotonic() - self._began, 6), chunk))

    def finish_exchange(
        self, status: int, headers: dict[str, str], outcome: Outcome, message: str, key: Key | None
    ) -> None:
        body = b"".join(chunk for _, chunk in self._chunks)
        if outcome == "abandoned" and not body:
            return  # nobody would know what to answer
        try:
            answer, packed = body.decode("utf-8"), False
        except UnicodeDecodeError:
            answer, packed = base64.b64encode(body).decode("ascii"), True
        request = key.redact(self._request) if key else self._request
        self._tape.write(
            TapedExchange(
                number=self._number,
                at=self._at,
                wire=self._call.wire,
                kind=self._call.kind,
                model=self._asked.model,
                stream=self._asked.stream,
                request=request.decode("utf-8"),
                status=status,
                headers=headers,
                outcome=outcome,
                answer=answer,
                packed=packed,
                chunks=tuple((seconds, len(chunk)) for seconds, chunk in self._chunks),
                message=message,
            )
        )


def _lock_file(file: BinaryIO) -> bool:
    """Whether it is nobody else's to write, until it is closed."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def read_tape(path: Path) -> list[TapedExchange]:
    """In the order of asking. A last line that was cut off is left out."""
    try:
        lines = path.read_bytes().split(b"\n")
        taped = [TapedExchange.model_validate_json(line) for line in lines[:-1] if line]
    except OSError as error:
        raise UserError(f"The tape {path} cannot be read: {error.strerror}.") from None
    except ValidationError as error:
        raise UserError(f"{path} is no tape: {error.errors()[0]['msg']}.") from None
    return sorted(taped, key=lambda one: one.number)


# How like two requests are, for a tape to find the one that is meant. See `replay`.

VOLATILE_TEXT = re.compile(r"/tmp/[\w./-]+|\b\w*\d[\w.:-]*")
"""What differs from run to run without meaning anything: temporary paths, and all that has a digit in it, as
ids, hashes, times and sizes have."""
SHAPE_KEYS = ("type", "role", "name")
"""Keys whose values belong to a request's shape."""
MAX_SHOWN_CHARACTERS = 80
Json = dict[str, Any]


@dataclass(frozen=True)
class RequestFingerprint:
    call: tuple[Wire, Kind, str, bool]
    tools: tuple[str, ...]
    said: tuple[str, ...]
    """What the driver has said so far, turn by turn."""
    body: Callable[[], Json] = field(repr=False)
    """Read anew where it is wanted: a tape's bodies together are large."""

    @classmethod
    def from_body(cls, call: tuple[Wire, Kind, str, bool], body: Callable[[], Json]) -> "RequestFingerprint":
        parsed = body()
        said = tuple(_hash_json(_mask_volatile(turn)) for turn in _extract_driver_turns(call[0], parsed))
        return cls(call, tuple(sorted(_extract_tool_names(parsed.get("tools")))), said, body)

    def matches_request(self, other: "RequestFingerprint") -> bool:
        return (self.call, self.tools, self.said) == (other.call, other.tools, other.said)

    def measure_distance(self, other: "RequestFingerprint") -> int:
        """0: equal, 1: but for what differs in every run, 2: in shape, 3: not even that."""
        mine, theirs = self.body(), other.body()
        if mine == theirs:
            return 0
        return (
            1
            if _mask_volatile(mine) == _mask_volatile(theirs)
            else 2
            if _strip_texts(mine) == _strip_texts(theirs)
            else 3
        )

    def measure_overlap(self, other: "RequestFingerprint") -> tuple[bool, bool, int]:
        """Where nothing fits, what comes nearest."""
        same = 0
        for mine, theirs in zip(self.said, other.said, strict=False):
            if mine != theirs:
                break
            same += 1
        apart = abs(len(self.said) - len(other.said))
        return self.call == other.call, self.tools == other.tools, same - apart

    def describe_mismatch(self, other: "RequestFingerprint") -> str:
        for name, mine, theirs in zip(
            ("wire format", "path", "model", "streaming"), self.call, other.call, strict=True
        ):
            if mine != theirs:
                return f"its {name} is {theirs!r}, not {mine!r}"
        if self.tools != other.tools:
            odd = sorted(set(self.tools) ^ set(other.tools))
            return f"one has other tools than the other ({', '.join(odd)[:MAX_SHOWN_CHARACTERS]})"
        if len(self.said) != len(other.said):
            return f"the driver had spoken {len(other.said)} times by then, and now {len(self.said)} times"
        return "the driver had said something else by then"


def describe_difference(recorded: Any, asked: Any, most: int = 3) -> str:
    """The first places where two values differ, but for what differs in every run."""
    found: list[str] = []
    left = [("", recorded, asked)]
    while left and len(found) < most:
        place, one, other = left.pop(0)
        if one == other:
            continue
        if isinstance(one, dict) and isinstance(other, dict):
            names = list(dict.fromkeys([*one, *other]))
            left[:0] = [(f"{place}.{name}", one.get(name), other.get(name)) for name in names]
        elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
            left[:0] = [(f"{place}.{at}", *pair) for at, pair in enumerate(zip(one, other, strict=True))]
        elif isinstance(one, list) and isinstance(other, list):
            found.append(f"{place.lstrip('.')} has {len(other)} items, not {len(one)}")
        elif _mask_volatile(one) != _mask_volatile(other):
            found.append(
                f"{place.lstrip('.')} is {_excerpt_difference(other, one)}, "
                f"not {_excerpt_difference(one, other)}"
            )
    return "; ".join(found)


def _extract_driver_turns(wire: Wire, body: Json) -> list[Any]:
    """What the driver said: its messages, and in the Responses format whatever the client did not bring."""
    listed = body.get({"gemini": "contents", "openai-responses": "input"}.get(wire, "messages"))
    turns = [turn for turn in listed if isinstance(turn, dict)] if isinstance(listed, list) else []
    if wire == "gemini":
        return [turn.get("parts") for turn in turns if turn.get("role") == "model"]
    if wire == "openai-responses":
        return [
            turn
            for turn in turns
            if turn.get("role") == "assistant"
            or (isinstance(turn.get("type"), str) and turn["type"].endswith(("_call", "reasoning")))
        ]
    return [
        {name: _strip_cache_control(turn.get(name)) for name in ("content", "tool_calls")}
        for turn in turns
        if turn.get("role") == "assistant"
    ]


def _strip_cache_control(value: Any) -> Any:
    """Without the marks by which a client says what to cache, which wander from turn to turn."""
    if isinstance(value, list):
        return [_strip_cache_control(one) for one in value]
    if isinstance(value, dict):
        return {name: one for name, one in value.items() if name != "cache_control"}
    return value


def _extract_tool_names(tools: Any) -> list[str]:
    found: list[str] = []
    for tool in tools if isinstance(tools, list) else []:
        if not isinstance(tool, dict):
            continue
        inner = tool.get("function")
        declared = tool.get("functionDeclarations", tool.get("function_declarations"))
        name = tool.get("name") or (inner.get("name") if isinstance(inner, dict) else None)
        found += _extract_tool_names(declared) if declared else [str(name or tool.get("type"))]
    return found


def _mask_volatile(value: Any) -> Any:
    """The same without what differs in every run."""
    if isinstance(value, str):
        return VOLATILE_TEXT.sub("#", value)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return 0
    if isinstance(value, list):
        return [_mask_volatile(one) for one in value]
    if isinstance(value, dict):
        return {name: _mask_volatile(one) for name, one in value.items()}
    return value


def _strip_texts(value: Any, telling: bool = False) -> Any:
    """The same without its texts."""
    if isinstance(value, list):
        return [_strip_texts(one) for one in value]
    if isinstance(value, dict):
        return {name: _strip_texts(one, name in SHAPE_KEYS) for name, one in value.items()}
    return value if telling or value is None or isinstance(value, bool) else 0


def _hash_json(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _excerpt_difference(value: Any, other: Any) -> str:
    """From where it begins to differ."""
    if not isinstance(value, str) or not isinstance(other, str):
        return json.dumps(value)[:MAX_SHOWN_CHARACTERS]
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(value, other, strict=False)))
    begin = max(0, same - 20)
    return f"{'…' if begin else ''}{value[begin : begin + MAX_SHOWN_CHARACTERS]!r}"


# Answers from a tape.


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
