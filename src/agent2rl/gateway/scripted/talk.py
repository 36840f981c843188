"""One request and one answer, in the same form whatever the wire format."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from pydantic import JsonValue

from agent2rl.core.llm import Tokens, Wire

Kind = Literal["function", "custom", "local-shell"]
"""How a tool is called: with an object, with bare text, or as OpenAI's own shell."""


@dataclass(frozen=True)
class Tool:
    name: str
    schema: Mapping[str, Any] = field(default_factory=dict)
    """The JSON schema of its arguments."""
    kind: Kind = "function"


@dataclass(frozen=True)
class Call:
    id: str
    name: str
    arguments: JsonValue
    kind: Kind = "function"


@dataclass(frozen=True)
class Said:
    """By the LLM."""

    text: str = ""
    calls: tuple[Call, ...] = ()

    @property
    def digest(self) -> str:
        """The same for the same words and calls, whatever their ids."""
        return _digest([self.text.strip(), [[call.name, call.arguments] for call in self.calls]])


@dataclass(frozen=True)
class Told:
    """By the user, or by the agent in the user's name."""

    text: str


@dataclass(frozen=True)
class Result:
    """Of a tool call."""

    call: str
    text: str


Item = Said | Told | Result


@dataclass(frozen=True)
class Asked:
    wire: Wire
    model: str
    stream: bool
    items: tuple[Item, ...]
    tools: tuple[Tool, ...] = ()
    system: str = ""
    most_tokens: int | None = None
    schema: Mapping[str, Any] | None = None
    """What the answer must look like, where it is to be JSON."""
    after: str | None = None
    """The id of the answer that this goes on from, where the conversation itself is not sent again."""
    tells_usage: bool = True
    """Whether a stream is to end with the tokens."""
    events: bool = True
    """Whether a stream is one of server-sent events; Gemini has another."""

    @property
    def turns(self) -> tuple[Said, ...]:
        """The LLM's, each whole."""
        turns: list[Said] = []
        joined = False
        for item in self.items:
            if isinstance(item, Said) and joined:
                last = turns.pop()
                item = Said(last.text + item.text, last.calls + item.calls)
            if isinstance(item, Said):
                turns.append(item)
            joined = isinstance(item, Said)
        return tuple(turns)

    @property
    def result(self) -> str:
        """What came back since the LLM spoke last."""
        since = self._since()
        results = [_output(item.text) for item in since if isinstance(item, Result)]
        return "\n".join(results or [item.text for item in since if isinstance(item, Told)])

    @property
    def user(self) -> str:
        """What the user said last."""
        told = [item.text for item in self._since() if isinstance(item, Told)]
        every = [item.text for item in self.items if isinstance(item, Told)]
        return "\n".join(told or every[-1:])

    @property
    def beginning(self) -> str:
        """The same for all requests of a conversation."""
        first: list[str] = []
        for item in self.items:
            if isinstance(item, Said):
                break
            first.append(item.text)
        return _digest([self.wire, first])

    def _since(self) -> Sequence[Item]:
        spoken = [number for number, item in enumerate(self.items) if isinstance(item, Said)]
        return self.items[spoken[-1] + 1 if spoken else 0 :]


@dataclass(frozen=True)
class Reply:
    id: str
    """Letters and digits, no other answer's."""
    text: str = ""
    think: str = ""
    calls: tuple[Call, ...] = ()
    tokens: Tokens = field(default_factory=Tokens)

    @property
    def said(self) -> Said:
        return Said(self.text, self.calls)


@dataclass(frozen=True)
class Chunk:
    """A piece of an answer, and the tokens that were told when it has been read."""

    data: bytes
    told: Tokens | None


@dataclass(frozen=True)
class Trouble:
    """An error that a provider answers with."""

    status: int
    kind: str
    message: str
    retry_after: int | None = None


class Format(Protocol):
    """A wire format, from the provider's side."""

    def read(self, body: Mapping[str, Any]) -> Asked:
        """ValueError: the request is none. What its path and query say (model, stream, alt) is in it."""
        ...

    def write(self, asked: Asked, reply: Reply) -> tuple[str, list[Chunk]]:
        """The content type, and the answer in pieces."""
        ...

    def fail(self, trouble: Trouble) -> tuple[int, dict[str, Any]]:
        """The status and the body."""
        ...


def pieces(text: str, size: int = 24) -> list[str]:
    """What a stream brings one after the other; at least two of a text that has two characters."""
    size = max(1, min(size, (len(text) + 1) // 2))
    return [text[at : at + size] for at in range(0, len(text), size)]


def dumped(value: Any) -> bytes:
    """Half characters, which JSON can name and UTF-8 cannot hold, are sent as JSON names them."""
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":")).encode()


def event(value: Any, name: str | None = None) -> bytes:
    """A server-sent event. JSON has no line ends of its own."""
    head = f"event: {name}\n".encode() if name else b""
    return head + b"data: " + dumped(value) + b"\n\n"


def whole(value: Any, told: Tokens) -> list[Chunk]:
    """An answer that is no stream, in two pieces, so that it too has a middle."""
    data = dumped(value)
    middle = len(data) // 2
    return [Chunk(data[:middle], None), Chunk(data[middle:], told)]


def mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def array(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def string(value: Any) -> str:
    return value if isinstance(value, str) else ""


def words(content: Any) -> str:
    """The text of a message: a string, or parts that have some."""
    if isinstance(content, str):
        return content
    parts = [string(part) or string(mapping(part).get("text")) for part in array(content)]
    return "\n".join(part for part in parts if part)


def messages(value: Any, field: str) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        raise ValueError(f"{field}: Input should be a list of objects")
    return value


def model(body: Mapping[str, Any]) -> str:
    if not (named := string(body.get("model"))):
        raise ValueError("model: Field required")
    return named


def unpacked(arguments: Any) -> JsonValue:
    """Arguments that were sent as a text of JSON."""
    try:
        value: JsonValue = json.loads(string(arguments) or "{}")
    except ValueError:
        return string(arguments)
    return value


def _output(text: str) -> str:
    """Of a command, whose agent may have packed it into JSON."""
    try:
        packed = mapping(json.loads(text))
    except (ValueError, RecursionError):
        return text
    return string(packed["output"]) if {"output", "returncode"} <= packed.keys() else text


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
