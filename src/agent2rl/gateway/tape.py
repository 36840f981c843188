"""A tape holds a run's exchanges with its driver, so that the run can be repeated without asking anybody.

JSON lines, one for each exchange that went to the provider, in the order in which they ended: the request's
body as the agent sent it, the answer's bytes, and when each chunk of it came. The key is nowhere on it.
What the gateway itself refused is not on it either: it would be refused again.
"""

import base64
import fcntl
import time
from pathlib import Path
from typing import BinaryIO

from pydantic import ValidationError

from agent2rl.core.errors import UserError
from agent2rl.core.llm import Outcome, Wire
from agent2rl.core.records import Record
from agent2rl.gateway.keys import Key
from agent2rl.gateway.request_parsing import ParsedRequest
from agent2rl.gateway.routing import Kind, RouteMatch
from agent2rl.store.files import cut_torn_line


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
