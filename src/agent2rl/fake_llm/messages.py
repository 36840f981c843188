"""Requests and replies in one form for all wire formats."""

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
    """A message of the LLM."""

    text: str = ""
    calls: tuple[WireToolCall, ...] = ()

    @property
    def digest(self) -> str:
        """Hash of the text and the calls, without ids."""
        return _hash_json([self.text.strip(), [[call.name, call.arguments] for call in self.calls]])


@dataclass(frozen=True)
class UserMessage:
    """A message of the user, or of the agent in the user's role."""

    text: str


@dataclass(frozen=True)
class ToolResultMessage:
    """The result of a tool call."""

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
    """JSON schema of the answer, if it must be JSON."""
    after: str | None = None
    """Id of the previous answer, if the client does not send the conversation again."""
    tells_usage: bool = True
    """Whether a stream ends with the token usage."""
    events: bool = True
    """Whether a stream uses server-sent events; Gemini also has another form."""

    @property
    def turns(self) -> tuple[AssistantMessage, ...]:
        """The LLM's turns, with adjacent messages joined."""
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
        """Tool results since the LLM's last turn; without any, the user's messages since."""
        since = self._items_since_reply()
        results = [_extract_output(item.text) for item in since if isinstance(item, ToolResultMessage)]
        return "\n".join(results or [item.text for item in since if isinstance(item, UserMessage)])

    @property
    def user(self) -> str:
        """The last user message."""
        recent = [item.text for item in self._items_since_reply() if isinstance(item, UserMessage)]
        every = [item.text for item in self.items if isinstance(item, UserMessage)]
        return "\n".join(recent or every[-1:])

    @property
    def beginning(self) -> str:
        """Hash of the first messages, which is the same for all requests of a conversation."""
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
    """Unique; letters and digits."""
    text: str = ""
    think: str = ""
    calls: tuple[WireToolCall, ...] = ()
    tokens: TokenCounts = field(default_factory=TokenCounts)

    @property
    def message(self) -> AssistantMessage:
        return AssistantMessage(self.text, self.calls)


@dataclass(frozen=True)
class ResponseChunk:
    """A piece of an answer, and the tokens that are reported up to its end."""

    data: bytes
    tokens: TokenCounts | None


@dataclass(frozen=True)
class ProviderError:
    """An error response of a provider."""

    status: int
    kind: str
    message: str
    retry_after: int | None = None


class WireFormat(Protocol):
    """A wire format, from the provider's side."""

    def read(self, body: Mapping[str, Any]) -> LlmRequest:
        """Parse a request; raise ValueError if it is invalid. The body includes model, stream and alt from
        the path and query."""
        ...

    def write(self, request: LlmRequest, reply: LlmReply) -> tuple[str, list[ResponseChunk]]:
        """Return the content type, and the answer in chunks."""
        ...

    def fail(self, trouble: ProviderError) -> tuple[int, dict[str, Any]]:
        """Return the status and the body of an error."""
        ...


def split_text(text: str, size: int = 24) -> list[str]:
    """Split a text into chunks for a stream; at least two if it has two characters."""
    size = max(1, min(size, (len(text) + 1) // 2))
    return [text[at : at + size] for at in range(0, len(text), size)]


def dump_json(value: Any) -> bytes:
    """Encode as JSON; lone surrogates, which UTF-8 cannot encode, are escaped."""
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":")).encode()


def render_sse_event(value: Any, name: str | None = None) -> bytes:
    """Render a server-sent event. The JSON contains no newlines."""
    head = f"event: {name}\n".encode() if name else b""
    return head + b"data: " + dump_json(value) + b"\n\n"


def render_whole_answer(value: Any, tokens: TokenCounts) -> list[ResponseChunk]:
    """Render an answer without a stream in two chunks, so that it can be cut in the middle too."""
    data = dump_json(value)
    middle = len(data) // 2
    return [ResponseChunk(data[:middle], None), ResponseChunk(data[middle:], tokens)]


def as_mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def as_string(value: Any) -> str:
    return value if isinstance(value, str) else ""


def extract_text(content: Any) -> str:
    """Return the text of a message: a string, or the texts of its parts."""
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
    """Parse arguments that are sent as JSON text."""
    try:
        value: JsonValue = json.loads(as_string(arguments) or "{}")
    except ValueError:
        return as_string(arguments)
    return value


def _extract_output(text: str) -> str:
    """Return the output of a command, which some agents wrap in JSON."""
    try:
        packed = as_mapping(json.loads(text))
    except (ValueError, RecursionError):
        return text
    return as_string(packed["output"]) if {"output", "returncode"} <= packed.keys() else text


def _hash_json(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
