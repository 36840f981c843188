"""Records a run's exchanges with its driver LLM on a tape, and replays them without a provider.

A tape is JSON lines, one per exchange with the provider: the request's body, the answer's bytes, and when
each chunk arrived. It holds neither the key nor requests that the gateway itself refused.

Two runs of one agent never send exactly the same requests, but the driver's turns so far are the same.
Replay answers a request with the first unplayed exchange that matches in wire format, path, model, tool
names, streaming and driver turns; it prefers an equal body, then one that differs only in numbers and ids,
then one of the same shape. Differences are recorded. Without a match, the refusal lists the differences from
the nearest exchange.
"""

import asyncio
import base64
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
from agent2rl.system.unix import fcntl


class TapedExchange(Record):
    """One line of a tape."""

    number: int
    """Its position in the order of requests, from 1."""
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
    """Base64 if it is not valid UTF-8."""
    packed: bool = False
    chunks: tuple[tuple[float, int], ...] = ()
    """Arrival time of each chunk, in seconds after the request, and its size in bytes."""
    message: str = ""

    @property
    def body(self) -> bytes:
        return base64.b64decode(self.answer) if self.packed else self.answer.encode()


class TapeRecording:
    """Writes a tape, for one run at a time."""

    def __init__(self, path: Path, again: bool = False) -> None:
        """`again`: continue the tape of a harness that died."""
        self.path = path
        if again:
            cut_torn_line(path)
        taped = read_tape(path) if again and path.exists() else []
        self._number = max((exchange.number for exchange in taped), default=0)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file: BinaryIO = path.open("ab")
        except OSError as error:
            raise UserError(f"Cannot write a tape to {path}: {error.strerror}.") from error
        # An empty file is fine: a run that was refused leaves one.
        if (self._file.tell() and not again) or not _lock_file(self._file):
            self._file.close()
            raise UserError(f"There is a tape at {path} already.", "Choose another file.")

    def begin_exchange(self, call: RouteMatch, parsed: ParsedRequest, request: bytes) -> "ExchangeRecorder":
        self._number += 1
        return ExchangeRecorder(self, self._number, call, parsed, request)

    def write(self, taped: TapedExchange) -> None:
        self._file.write(taped.model_dump_json().encode() + b"\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class ExchangeRecorder:
    """Records one exchange while it is in flight."""

    def __init__(
        self, tape: TapeRecording, number: int, call: RouteMatch, parsed: ParsedRequest, request: bytes
    ) -> None:
        self._tape, self._number = tape, number
        self._call, self._parsed, self._request = call, parsed, request
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
            return  # there is no answer to replay
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
                model=self._parsed.model,
                stream=self._parsed.stream,
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
    """Lock the file until it is closed; return False if another process holds the lock."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def read_tape(path: Path) -> list[TapedExchange]:
    """Return the exchanges in the order of their requests. A truncated last line is ignored."""
    try:
        lines = path.read_bytes().split(b"\n")
        taped = [TapedExchange.model_validate_json(line) for line in lines[:-1] if line]
    except OSError as error:
        raise UserError(f"The tape {path} cannot be read: {error.strerror}.") from None
    except ValidationError as error:
        raise UserError(f"{path} is not a valid tape: {error.errors()[0]['msg']}.") from None
    return sorted(taped, key=lambda exchange: exchange.number)


# Similarity of requests, with which replay finds the matching exchange

VOLATILE_TEXT = re.compile(r"/tmp/[\w./-]+|\b\w*\d[\w.:-]*")
"""Text that differs from run to run without a meaning: temporary paths, and words with digits, such as ids,
hashes, times and sizes."""
SHAPE_KEYS = ("type", "role", "name")
"""Keys with values that are part of a request's shape."""
MAX_SHOWN_CHARACTERS = 80
Json = dict[str, Any]


@dataclass(frozen=True)
class RequestFingerprint:
    call: tuple[Wire, Kind, str, bool]
    tools: tuple[str, ...]
    said: tuple[str, ...]
    """Hashes of the driver's turns so far."""
    body: Callable[[], Json] = field(repr=False)
    """Parsed again at each call, because a tape's bodies together are large."""

    @classmethod
    def from_body(cls, call: tuple[Wire, Kind, str, bool], body: Callable[[], Json]) -> "RequestFingerprint":
        parsed = body()
        said = tuple(_hash_json(_mask_volatile(turn)) for turn in _extract_driver_turns(call[0], parsed))
        return cls(call, tuple(sorted(_extract_tool_names(parsed.get("tools")))), said, body)

    def matches_request(self, other: "RequestFingerprint") -> bool:
        return (self.call, self.tools, self.said) == (other.call, other.tools, other.said)

    def measure_distance(self, other: "RequestFingerprint") -> int:
        """Return 0 if equal, 1 if equal apart from volatile text, 2 if of the same shape, else 3."""
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
        """Return a sort key for the nearest exchange, if none matches."""
        same = 0
        for mine, theirs in zip(self.said, other.said, strict=False):
            if mine != theirs:
                break
            same += 1
        difference = abs(len(self.said) - len(other.said))
        return self.call == other.call, self.tools == other.tools, same - difference

    def describe_mismatch(self, other: "RequestFingerprint") -> str:
        for name, mine, theirs in zip(
            ("wire format", "path", "model", "streaming"), self.call, other.call, strict=True
        ):
            if mine != theirs:
                return f"its {name} is {theirs!r}, not {mine!r}"
        if self.tools != other.tools:
            different = sorted(set(self.tools) ^ set(other.tools))
            return f"the tools differ ({', '.join(different)[:MAX_SHOWN_CHARACTERS]})"
        if len(self.said) != len(other.said):
            return f"it has {len(other.said)} turns of the driver, not {len(self.said)}"
        return "the driver's turns so far differ"


def describe_difference(recorded: Any, requested: Any, limit: int = 3) -> str:
    """Describe the first differences between two values, apart from volatile text."""
    differences: list[str] = []
    pending = [("", recorded, requested)]
    while pending and len(differences) < limit:
        path, old, new = pending.pop(0)
        if old == new:
            continue
        if isinstance(old, dict) and isinstance(new, dict):
            names = list(dict.fromkeys([*old, *new]))
            pending[:0] = [(f"{path}.{name}", old.get(name), new.get(name)) for name in names]
        elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
            pairs = enumerate(zip(old, new, strict=True))
            pending[:0] = [(f"{path}.{index}", *pair) for index, pair in pairs]
        elif isinstance(old, list) and isinstance(new, list):
            differences.append(f"{path.lstrip('.')} has {len(new)} items, not {len(old)}")
        elif _mask_volatile(old) != _mask_volatile(new):
            differences.append(
                f"{path.lstrip('.')} is {_excerpt_difference(new, old)}, not {_excerpt_difference(old, new)}"
            )
    return "; ".join(differences)


def _extract_driver_turns(wire: Wire, body: Json) -> list[Any]:
    """Return the driver's messages; in the Responses format, all items that are not the client's."""
    messages = body.get({"gemini": "contents", "openai-responses": "input"}.get(wire, "messages"))
    turns = [turn for turn in messages if isinstance(turn, dict)] if isinstance(messages, list) else []
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
    """Remove the client's cache markers, which move from turn to turn."""
    if isinstance(value, list):
        return [_strip_cache_control(item) for item in value]
    if isinstance(value, dict):
        return {name: item for name, item in value.items() if name != "cache_control"}
    return value


def _extract_tool_names(tools: Any) -> list[str]:
    names: list[str] = []
    for tool in tools if isinstance(tools, list) else []:
        if not isinstance(tool, dict):
            continue
        inner = tool.get("function")
        declared = tool.get("functionDeclarations", tool.get("function_declarations"))
        name = tool.get("name") or (inner.get("name") if isinstance(inner, dict) else None)
        names += _extract_tool_names(declared) if declared else [str(name or tool.get("type"))]
    return names


def _mask_volatile(value: Any) -> Any:
    """Mask everything that differs in every run."""
    if isinstance(value, str):
        return VOLATILE_TEXT.sub("#", value)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return 0
    if isinstance(value, list):
        return [_mask_volatile(item) for item in value]
    if isinstance(value, dict):
        return {name: _mask_volatile(item) for name, item in value.items()}
    return value


def _strip_texts(value: Any, keep: bool = False) -> Any:
    """Reduce a value to its shape, without texts and numbers."""
    if isinstance(value, list):
        return [_strip_texts(item) for item in value]
    if isinstance(value, dict):
        return {name: _strip_texts(item, name in SHAPE_KEYS) for name, item in value.items()}
    return value if keep or value is None or isinstance(value, bool) else 0


def _hash_json(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _excerpt_difference(value: Any, other: Any) -> str:
    """Return an excerpt from where the value starts to differ."""
    if not isinstance(value, str) or not isinstance(other, str):
        return json.dumps(value)[:MAX_SHOWN_CHARACTERS]
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(value, other, strict=False)))
    begin = max(0, same - 20)
    return f"{'…' if begin else ''}{value[begin : begin + MAX_SHOWN_CHARACTERS]!r}"


# Replay


class TapeReplay:
    """Answers requests from a tape."""

    def __init__(self, path: Path, pace: float = 0.0) -> None:
        """`pace` is the share of the recorded time to wait: 0.0 waits not at all, 1.0 all of it."""
        self.path = path
        self._pace = pace
        self._taped = read_tape(path)
        if not self._taped:
            raise UserError(f"The tape {path} is empty.")
        self._unplayed = {taped.number: (taped, _fingerprint_exchange(taped)) for taped in self._taped}

    def require_model(self, model: str) -> None:
        models = sorted({taped.model for taped in self._taped})
        if model not in models:
            raise UserError(
                f"The tape {self.path} was recorded with {', '.join(models)}, not {model}.",
                "Use that driver.",
            )

    @property
    def left(self) -> int:
        """Number of exchanges that have not been played yet."""
        return len(self._unplayed)

    @asynccontextmanager
    async def open_answer(self, call: RouteMatch, request: ParsedRequest) -> AsyncIterator[UpstreamResponse]:
        parsed = request.parsed
        try:
            like = RequestFingerprint.from_body(
                (call.wire, call.kind, request.model, request.stream), lambda: parsed
            )
            taped, note = self._take_match(like, parsed)
        except RecursionError:
            raise RequestRefused(400, "The request is nested too deeply to be matched with a tape.") from None
        yield UpstreamResponse(
            taped.status,
            taped.headers,
            self._replay_chunks(taped),
            outcome=taped.outcome,
            note=note,
        )

    def _take_match(
        self, fingerprint: RequestFingerprint, parsed: dict[str, Any]
    ) -> tuple[TapedExchange, str]:
        fitting = [
            number for number, (_, like) in self._unplayed.items() if fingerprint.matches_request(like)
        ]
        if not fitting:
            raise RequestRefused(
                400, f"The tape has no matching answer. {self._describe_nearest(fingerprint, parsed)}."
            )
        # Only if there is a choice, because this parses the recorded bodies again.
        if len(fitting) > 1:
            fitting.sort(key=lambda number: (fingerprint.measure_distance(self._unplayed[number][1]), number))
        taped, _ = self._unplayed.pop(fitting[0])
        difference = describe_difference(_parse_request(taped), parsed)
        return taped, difference and f"differs from exchange {taped.number} of the tape: {difference}"

    def _describe_nearest(self, fingerprint: RequestFingerprint, parsed: dict[str, Any]) -> str:
        """Describe how the nearest exchange differs from the request, for debugging."""
        if not self._unplayed:
            return f"All its {len(self._taped)} exchanges have been played"
        number = max(
            self._unplayed, key=lambda each: (fingerprint.measure_overlap(self._unplayed[each][1]), -each)
        )
        taped, like = self._unplayed[number]
        reasons = (fingerprint.describe_mismatch(like), describe_difference(_parse_request(taped), parsed))
        return f"The nearest is exchange {number}: {'; '.join(filter(None, reasons))}"

    async def _replay_chunks(self, taped: TapedExchange) -> AsyncGenerator[bytes, None]:
        body, offset, previous = taped.body, 0, 0.0
        for seconds, size in taped.chunks:
            if self._pace:
                await asyncio.sleep((seconds - previous) * self._pace)
                previous = seconds
            yield body[offset : offset + size]
            offset += size
        if taped.outcome in ("cut", "stalled", "abandoned") and taped.status < 400:
            raise UpstreamFailure(
                "cut" if taped.outcome == "abandoned" else taped.outcome,
                502,
                "The recorded answer breaks off here.",
            )


def _fingerprint_exchange(taped: TapedExchange) -> RequestFingerprint:
    return RequestFingerprint.from_body(
        (taped.wire, taped.kind, taped.model, taped.stream), lambda: _parse_request(taped)
    )


def _parse_request(taped: TapedExchange) -> dict[str, Any]:
    request = json.loads(taped.request)
    return request if isinstance(request, dict) else {}
