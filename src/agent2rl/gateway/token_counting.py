"""Splits a provider's answer into server-sent events and counts its tokens from what the provider reports.

    Anthropic Messages       message_start reports the input, message_delta the output so far; input_tokens
                             excludes what was read from and written to the cache
    OpenAI Responses         response.completed; input_tokens includes cached tokens
    OpenAI Chat Completions  the last chunk; prompt_tokens includes cached tokens
    Gemini generateContent   each chunk, the last one counts; candidatesTokenCount excludes thoughts

All are converted to `core.llm.TokenCounts`. The number of characters is counted too, for an estimate if the
provider reports no tokens. An event may be of any length; one that is too long to buffer is forwarded in
pieces and not parsed.
"""

import json
import re
from dataclasses import dataclass
from typing import Any, TypeGuard

from agent2rl.core.llm import TokenCounts, Wire

# Server-sent events, with any chunking and any line endings

EVENT_BYTES = 32 << 20
LINE_END = re.compile(rb"\r\n|\n|\r(?!\n)")
BLANK = re.compile(rb"(?:\r\n|\n|\r(?!\n))(?:\r\n|\n|\r(?!\n))")
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class ServerSentEvent:
    raw: bytes
    """All its bytes including the final blank line; joined, all events are the stream."""
    data: bytes = b""


class EventStreamParser:
    def __init__(self, most: int = EVENT_BYTES) -> None:
        self.unread = 0
        """Number of events that were too long."""
        self._most = most
        self._buffer = bytearray()
        self._torn = False
        """Whether the buffer starts inside an oversized event."""
        self._seen = 0
        """Up to here the buffer has no end of an event."""

    def feed(self, chunk: bytes) -> list[ServerSentEvent]:
        self._buffer += chunk
        events = []
        # A carriage return at the very end may be half of a line ending.
        until = len(self._buffer) - self._buffer.endswith(b"\r")
        while end := BLANK.search(self._buffer, self._seen, until):
            events.append(self._take_event(end.end()))
            until -= end.end()
            self._seen = 0
        # The end of an event has up to four bytes, of which three may be there already.
        self._seen = max(0, until - 3)
        if len(self._buffer) > self._most:
            events.append(self._take_oversized_piece())
        return events

    def finish(self) -> list[ServerSentEvent]:
        """Return the rest at the end of the stream: an event without its blank line."""
        return [self._take_event(len(self._buffer))] if self._buffer else []

    def _take_event(self, size: int) -> ServerSentEvent:
        raw = bytes(self._buffer[:size])
        del self._buffer[:size]
        torn, self._torn = self._torn, False
        if torn or size > self._most:
            self.unread += not torn
            return ServerSentEvent(raw)
        return ServerSentEvent(raw, _extract_data(raw))

    def _take_oversized_piece(self) -> ServerSentEvent:
        raw = bytes(self._buffer[:-3])  # they may be part of the end of the event
        del self._buffer[:-3]
        self.unread += not self._torn
        self._torn, self._seen = True, 0
        return ServerSentEvent(raw)


def _extract_data(raw: bytes) -> bytes:
    lines = []
    for line in LINE_END.split(raw.removeprefix(BYTE_ORDER_MARK)):
        field, _, value = line.partition(b":")
        if field == b"data":
            lines.append(value.removeprefix(b" "))
    return b"\n".join(lines)


# Token counting

BODY_BYTES = 64 << 20
"""Maximum size of a non-streaming answer; a longer one is forwarded but not counted."""
MAX_TOKENS = 10**10
"""Sanity cap on the token count that a provider may report."""
MAX_ERROR_CHARACTERS = 300
JsonObject = dict[str, Any]


class TokenCounter:
    def __init__(self, wire: Wire, streams: bool) -> None:
        self.tokens: TokenCounts | None = None
        """Tokens reported so far."""
        self.ended = False
        """Whether the answer is complete."""
        self.error = ""
        """Error that the provider reported in the middle of an answer."""
        self.answer_characters = 0
        """Characters of the answer's texts."""
        self._wire = wire
        self._events = EventStreamParser() if streams else None
        self._body: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> list[ServerSentEvent]:
        """Return the events that are now complete; none for an answer that does not stream."""
        if self._events is None:
            self._size += len(chunk)
            if self._size <= BODY_BYTES:
                self._body.append(chunk)
            return []
        events = self._events.feed(chunk)
        for event in events:
            self._read_event(event)
        return events

    def finish(self) -> list[ServerSentEvent]:
        """Return the rest at the end of the answer."""
        if self._events is not None:
            rest = self._events.finish()
            for event in rest:
                self._read_event(event)
            return rest
        body = _parse_object(b"".join(self._body)) if self._size <= BODY_BYTES else {}
        self.answer_characters = self._size
        self.ended = bool(body)
        self._read_usage(body)
        return []

    def _read_event(self, event: ServerSentEvent) -> None:
        if event.data.strip() == b"[DONE]":
            self.ended = True
        elif event.data:
            payload = _parse_object(event.data)
            self.answer_characters += _count_new_characters(payload)
            self.ended = self.ended or _is_final_event(self._wire, payload)
            self._read_usage(payload)

    def _read_usage(self, payload: JsonObject) -> None:
        self.error = self.error or _extract_error(payload)
        inner = payload.get("message" if self._wire == "anthropic" else "response")
        for part in (payload, inner):
            usage = (
                part.get("usageMetadata" if self._wire == "gemini" else "usage") if _is_object(part) else None
            )
            if _is_object(usage) and usage:
                new = USAGE_PARSERS[self._wire](usage)
                self.tokens = (
                    _take_maximum(self.tokens, new) if self._wire == "anthropic" and self.tokens else new
                )


def is_usage_only(event: ServerSentEvent) -> bool:
    """Check whether a Chat Completions chunk reports only usage, without content."""
    payload = _parse_object(event.data)
    return payload.get("choices") == [] and _is_object(payload.get("usage"))


def _parse_anthropic_usage(usage: JsonObject) -> TokenCounts:
    """Parse usage; if the provider sampled several times (after compacting the conversation), sum them."""
    iterations = usage.get("iterations")
    turns = [turn for turn in iterations if _is_object(turn)] if isinstance(iterations, list) else []
    total, parts = _parse_anthropic_turn(usage), [_parse_anthropic_turn(turn) for turn in turns]
    return _take_maximum(total, sum(parts[1:], parts[0])) if parts else total


def _parse_anthropic_turn(usage: JsonObject) -> TokenCounts:
    cached, written = (
        _read_count(usage, "cache_read_input_tokens"),
        _read_count(usage, "cache_creation_input_tokens"),
    )
    return TokenCounts(
        input=_read_count(usage, "input_tokens") + cached + written,
        cached=cached,
        written=written,
        written_hour=min(written, _read_count(usage.get("cache_creation"), "ephemeral_1h_input_tokens")),
        output=_read_count(usage, "output_tokens"),
        reasoning=_read_count(usage.get("output_tokens_details"), "thinking_tokens"),
    )


def _parse_openai_usage(usage: JsonObject, read: str, written: str) -> TokenCounts:
    reads, writes = _read_count(usage, f"{read}_tokens"), _read_count(usage, f"{written}_tokens")
    total = _read_count(usage, "total_tokens")
    output = max(writes, total - reads)
    details = usage.get(f"{written}_tokens_details")
    thought = max(_read_count(details, "reasoning_tokens"), output - writes)
    cached = min(reads, _read_count(usage.get(f"{read}_tokens_details"), "cached_tokens"))
    stored = min(reads - cached, _read_count(usage.get(f"{read}_tokens_details"), "cache_write_tokens"))
    return TokenCounts(
        input=reads, cached=cached, written=stored, output=output, reasoning=min(thought, output)
    )


def _parse_gemini_usage(usage: JsonObject) -> TokenCounts:
    prompt = _read_count(usage, "promptTokenCount")
    thought = _read_count(usage, "thoughtsTokenCount")
    return TokenCounts(
        input=prompt + _read_count(usage, "toolUsePromptTokenCount"),
        cached=min(prompt, _read_count(usage, "cachedContentTokenCount")),
        output=_read_count(usage, "candidatesTokenCount") + thought,
        reasoning=thought,
    )


USAGE_PARSERS = {
    "anthropic": _parse_anthropic_usage,
    "openai-chat": lambda usage: _parse_openai_usage(usage, "prompt", "completion"),
    "openai-responses": lambda usage: _parse_openai_usage(usage, "input", "output"),
    "gemini": _parse_gemini_usage,
}


def _take_maximum(first: TokenCounts, second: TokenCounts) -> TokenCounts:
    """Return the maximum of each count: counts only grow, but later reports may omit some or say 0."""
    mine, theirs = first.model_dump(), second.model_dump()
    return TokenCounts(**{name: max(mine[name], theirs[name]) for name in mine})


def _is_final_event(wire: Wire, event: JsonObject) -> bool:
    match wire:
        case "anthropic":
            return event.get("type") == "message_stop"
        case "openai-responses":
            return event.get("type") in ("response.completed", "response.incomplete", "response.failed")
        case "openai-chat":
            return any(choice.get("finish_reason") for choice in _filter_objects(event.get("choices")))
        case "gemini":
            candidates = _filter_objects(event.get("candidates"))
            stopped = any(candidate.get("finishReason") for candidate in candidates)
            feedback = event.get("promptFeedback")
            return stopped or (_is_object(feedback) and bool(feedback.get("blockReason")))


def _extract_error(payload: JsonObject) -> str:
    failed = payload.get("type") == "response.failed"
    for part in (payload, payload.get("response") if failed else None):
        error = part.get("error") if _is_object(part) else None
        if _is_object(error):
            return str(error.get("message") or error.get("type") or error)[:MAX_ERROR_CHARACTERS]
        if error:
            return str(error)[:MAX_ERROR_CHARACTERS]
    if payload.get("type") != "error":
        return ""
    return str(payload.get("message") or "error")[:MAX_ERROR_CHARACTERS]


def extract_error_message(body: bytes) -> str:
    """Return the message of a provider's error."""
    return (
        _extract_error(_parse_object(body)) or body[:MAX_ERROR_CHARACTERS].decode("utf-8", "replace").strip()
    )


def _count_new_characters(event: JsonObject) -> int:
    """Count the characters of new text in an event: in a `delta`, or in Gemini's `parts`."""
    characters = 0
    pending: list[tuple[Any, bool]] = [(event, False)]
    while pending:
        value, new = pending.pop()
        if isinstance(value, str):
            characters += len(value) * new
        elif isinstance(value, dict):
            pending.extend((inner, new or name in ("delta", "parts")) for name, inner in value.items())
        elif isinstance(value, list):
            pending.extend((inner, new) for inner in value)
    return characters


def _parse_object(data: bytes) -> JsonObject:
    """Return the JSON object, or an empty one if it is invalid."""
    try:
        parsed = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return parsed if isinstance(parsed, dict) else {}


def _filter_objects(value: Any) -> list[JsonObject]:
    return [item for item in value if _is_object(item)] if isinstance(value, list) else []


def _is_object(value: Any) -> TypeGuard[JsonObject]:
    return isinstance(value, dict)


def _read_count(usage: Any, name: str) -> int:
    value = usage.get(name) if _is_object(usage) else None
    return value if type(value) is int and 0 <= value <= MAX_TOKENS else 0
