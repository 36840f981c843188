"""One request and one answer, in the same form whatever the wire format."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from pydantic import JsonValue

from agent2rl.core.llm import TokenCounts, Wire

Kind = Literal["function", "custom", "local-shell"]
"""How a tool is called: with an object, with bare text, or as OpenAI's own shell."""


@dataclass(frozen=True)
class OfferedTool:
    name: str
    schema: Mapping[str, Any] = field(default_factory=dict)
    """The JSON schema of its arguments."""
    kind: Kind = "function"


@dataclass(frozen=True)
class WireToolCall:
    id: str
    name: str
    arguments: JsonValue
    kind: Kind = "function"


@dataclass(frozen=True)
class AssistantMessage:
    """By the LLM."""

    text: str = ""
    calls: tuple[WireToolCall, ...] = ()

    @property
    def digest(self) -> str:
        """The same for the same words and calls, whatever their ids."""
        return _hash_json([self.text.strip(), [[call.name, call.arguments] for call in self.calls]])


@dataclass(frozen=True)
class UserMessage:
    """By the user, or by the agent in the user's name."""

    text: str


@dataclass(frozen=True)
class ToolResultMessage:
    """Of a tool call."""

    call: str
    text: str


Item = AssistantMessage | UserMessage | ToolResultMessage


@dataclass(frozen=True)
class LlmRequest:
    wire: Wire
    model: str
    stream: bool
    items: tuple[Item, ...]
    tools: tuple[OfferedTool, ...] = ()
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
    def turns(self) -> tuple[AssistantMessage, ...]:
        """The LLM's, each whole."""
        turns: list[AssistantMessage] = []
        joined = False
        for item in self.items:
            if isinstance(item, AssistantMessage) and joined:
                last = turns.pop()
                item = AssistantMessage(last.text + item.text, last.calls + item.calls)
            if isinstance(item, AssistantMessage):
                turns.append(item)
            joined = isinstance(item, AssistantMessage)
        return tuple(turns)

    @property
    def result(self) -> str:
        """What came back since the LLM spoke last."""
        since = self._items_since_reply()
        results = [_extract_output(item.text) for item in since if isinstance(item, ToolResultMessage)]
        return "\n".join(results or [item.text for item in since if isinstance(item, UserMessage)])

    @property
    def user(self) -> str:
        """What the user said last."""
        told = [item.text for item in self._items_since_reply() if isinstance(item, UserMessage)]
        every = [item.text for item in self.items if isinstance(item, UserMessage)]
        return "\n".join(told or every[-1:])

    @property
    def beginning(self) -> str:
        """The same for all requests of a conversation."""
        first: list[str] = []
        for item in self.items:
            if isinstance(item, AssistantMessage):
                break
            first.append(item.text)
        return _hash_json([self.wire, first])

    def _items_since_reply(self) -> Sequence[Item]:
        spoken = [number for number, item in enumerate(self.items) if isinstance(item, AssistantMessage)]
        return self.items[spoken[-1] + 1 if spoken else 0 :]


@dataclass(frozen=True)
class LlmReply:
    id: str
    """Letters and digits, no other answer's."""
    text: str = ""
    think: str = ""
    calls: tuple[WireToolCall, ...] = ()
    tokens: TokenCounts = field(default_factory=TokenCounts)

    @property
    def said(self) -> AssistantMessage:
        return AssistantMessage(self.text, self.calls)


@dataclass(frozen=True)
class ResponseChunk:
    """A piece of an answer, and the tokens that were told when it has been read."""

    data: bytes
    told: TokenCounts | None


@dataclass(frozen=True)
class ProviderError:
    """An error that a provider answers with."""

    status: int
    kind: str
    message: str
    retry_after: int | None = None


class WireFormat(Protocol):
    """A wire format, from the provider's side."""

    def read(self, body: Mapping[str, Any]) -> LlmRequest:
        """ValueError: the request is none. What its path and query say (model, stream, alt) is in it."""
        ...

    def write(self, asked: LlmRequest, reply: LlmReply) -> tuple[str, list[ResponseChunk]]:
        """The content type, and the answer in pieces."""
        ...

    def fail(self, trouble: ProviderError) -> tuple[int, dict[str, Any]]:
        """The status and the body."""
        ...


def split_text(text: str, size: int = 24) -> list[str]:
    """What a stream brings one after the other; at least two of a text that has two characters."""
    size = max(1, min(size, (len(text) + 1) // 2))
    return [text[at : at + size] for at in range(0, len(text), size)]


def dump_json(value: Any) -> bytes:
    """Half characters, which JSON can name and UTF-8 cannot hold, are sent as JSON names them."""
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":")).encode()


def render_sse_event(value: Any, name: str | None = None) -> bytes:
    """A server-sent event. JSON has no line ends of its own."""
    head = f"event: {name}\n".encode() if name else b""
    return head + b"data: " + dump_json(value) + b"\n\n"


def render_whole_answer(value: Any, told: TokenCounts) -> list[ResponseChunk]:
    """An answer that is no stream, in two pieces, so that it too has a middle."""
    data = dump_json(value)
    middle = len(data) // 2
    return [ResponseChunk(data[:middle], None), ResponseChunk(data[middle:], told)]


def as_mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def as_string(value: Any) -> str:
    return value if isinstance(value, str) else ""


def extract_text(content: Any) -> str:
    """The text of a message: a string, or parts that have some."""
    if isinstance(content, str):
        return content
    parts = [as_string(part) or as_string(as_mapping(part).get("text")) for part in as_list(content)]
    return "\n".join(part for part in parts if part)


def require_messages(value: Any, field: str) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        raise ValueError(f"{field}: Input should be a list of objects")
    return value


def require_model(body: Mapping[str, Any]) -> str:
    if not (named := as_string(body.get("model"))):
        raise ValueError("model: Field required")
    return named


def parse_arguments(arguments: Any) -> JsonValue:
    """Arguments that were sent as a text of JSON."""
    try:
        value: JsonValue = json.loads(as_string(arguments) or "{}")
    except ValueError:
        return as_string(arguments)
    return value


def _extract_output(text: str) -> str:
    """Of a command, whose agent may have packed it into JSON."""
    try:
        packed = as_mapping(json.loads(text))
    except (ValueError, RecursionError):
        return text
    return as_string(packed["output"]) if {"output", "returncode"} <= packed.keys() else text


def _hash_json(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
