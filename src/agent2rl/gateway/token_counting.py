"""Splits a provider's answer into server-sent events and counts its tokens from what the provider reports.

    Anthropic Messages       message_start reports the input, message_delta the output so far; input_tokens
                             excludes what was read from and written to the cache
    OpenAI Responses         response.completed; input_tokens includes cached tokens
    OpenAI Chat Completions  the last chunk; prompt_tokens includes cached tokens
    Gemini generateContent   each chunk, the last one counts; candidatesTokenCount excludes thoughts

All are converted to `core.llm.TokenCounts`. Only the number of characters that passed is an estimate. An
event may be of any length; one that is too long to keep is passed on in pieces and not read.
"""

import json
import re
from dataclasses import dataclass
from typing import Any, TypeGuard

from agent2rl.core.llm import TokenCounts, Wire

# Cuts a stream into server-sent events, whatever way its bytes come and its lines end.

EVENT_BYTES = 32 << 20
LINE_END = re.compile(rb"\r\n|\n|\r(?!\n)")
BLANK = re.compile(rb"(?:\r\n|\n|\r(?!\n))(?:\r\n|\n|\r(?!\n))")
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class ServerSentEvent:
    raw: bytes
    """All its bytes, the blank line at its end included: all of them together are the stream."""
    data: bytes = b""


class EventStreamParser:
    def __init__(self, most: int = EVENT_BYTES) -> None:
        self.unread = 0
        """Events that were too long."""
        self._most = most
        self._buffer = bytearray()
        self._torn = False
        """The buffer begins inside an event whose beginning is gone."""
        self._seen = 0
        """So far the buffer has no end of an event."""

    def feed(self, chunk: bytes) -> list[ServerSentEvent]:
        self._buffer += chunk
        found = []
        # A carriage return at the very end may be half a line's end.
        until = len(self._buffer) - self._buffer.endswith(b"\r")
        while end := BLANK.search(self._buffer, self._seen, until):
            found.append(self._take_event(end.end()))
            until -= end.end()
            self._seen = 0
        self._seen = max(0, until - 3)
        if len(self._buffer) > self._most:
            found.append(self._take_oversized_piece())
        return found

    def finish(self) -> list[ServerSentEvent]:
        """What is left when the stream is over: an event without its blank line."""
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
        raw = bytes(self._buffer[:-3])  # an end of the event may be half here
        del self._buffer[:-3]
        self.unread += not self._torn
        self._torn, self._seen = True, 0
        return ServerSentEvent(raw)


def _extract_data(raw: bytes) -> bytes:
    found = []
    for line in LINE_END.split(raw.removeprefix(BYTE_ORDER_MARK)):
        field, _, value = line.partition(b":")
        if field == b"data":
            found.append(value.removeprefix(b" "))
    return b"\n".join(found)


BODY_BYTES = 64 << 20
"""Of an answer that does not stream; a longer one passes, and is not counted."""
MAX_TOKENS = 10**10
"""Tokens: nobody says more."""
MAX_ERROR_CHARACTERS = 300
JsonObject = dict[str, Any]


class TokenCounter:
    def __init__(self, wire: Wire, streams: bool) -> None:
        self.tokens: TokenCounts | None = None
        """As far as they were told."""
        self.ended = False
        """The answer came to its end."""
        self.error = ""
        """What the provider says went wrong, in the midst of an answer."""
        self.said = 0
        """Letters of the answer's texts."""
        self._wire = wire
        self._events = EventStreamParser() if streams else None
        self._body: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> list[ServerSentEvent]:
        """The events that are now complete; of an answer that does not stream, none."""
        if self._events is None:
            self._size += len(chunk)
            if self._size <= BODY_BYTES:
                self._body.append(chunk)
            return []
        found = self._events.feed(chunk)
        for event in found:
            self._read_event(event)
        return found

    def finish(self) -> list[ServerSentEvent]:
        """What was left, when the answer is over."""
        if self._events is not None:
            rest = self._events.finish()
            for event in rest:
                self._read_event(event)
            return rest
        whole = _parse_object(b"".join(self._body)) if self._size <= BODY_BYTES else {}
        self.said = self._size
        self.ended = bool(whole)
        self._read_usage(whole)
        return []

    def _read_event(self, event: ServerSentEvent) -> None:
        if event.data.strip() == b"[DONE]":
            self.ended = True
        elif event.data:
            said = _parse_object(event.data)
            self.said += _count_new_characters(said)
            self.ended = self.ended or _is_final_event(self._wire, said)
            self._read_usage(said)

    def _read_usage(self, said: JsonObject) -> None:
        self.error = self.error or _extract_error(said)
        inner = said.get("message" if self._wire == "anthropic" else "response")
        for place in (said, inner):
            told = (
                place.get("usageMetadata" if self._wire == "gemini" else "usage")
                if _is_object(place)
                else None
            )
            if _is_object(told) and told:
                new = USAGE_PARSERS[self._wire](told)
                self.tokens = (
                    _take_maximum(self.tokens, new) if self._wire == "anthropic" and self.tokens else new
                )


def is_usage_only(event: ServerSentEvent) -> bool:
    """Whether a chunk of Chat Completions tells the usage and says nothing."""
    said = _parse_object(event.data)
    return said.get("choices") == [] and _is_object(said.get("usage"))


def _parse_anthropic_usage(told: JsonObject) -> TokenCounts:
    """Where the provider sampled several times (it shortened the conversation first), the sum of them all."""
    several = told.get("iterations")
    turns = [turn for turn in several if _is_object(turn)] if isinstance(several, list) else []
    whole, parts = _parse_anthropic_turn(told), [_parse_anthropic_turn(turn) for turn in turns]
    return _take_maximum(whole, sum(parts[1:], parts[0])) if parts else whole


def _parse_anthropic_turn(told: JsonObject) -> TokenCounts:
    cached, written = (
        _read_count(told, "cache_read_input_tokens"),
        _read_count(told, "cache_creation_input_tokens"),
    )
    return TokenCounts(
        input=_read_count(told, "input_tokens") + cached + written,
        cached=cached,
        written=written,
        written_hour=min(written, _read_count(told.get("cache_creation"), "ephemeral_1h_input_tokens")),
        output=_read_count(told, "output_tokens"),
        reasoning=_read_count(told.get("output_tokens_details"), "thinking_tokens"),
    )


def _parse_openai_usage(told: JsonObject, read: str, written: str) -> TokenCounts:
    reads, writes = _read_count(told, f"{read}_tokens"), _read_count(told, f"{written}_tokens")
    total = _read_count(told, "total_tokens")
    output = max(writes, total - reads)
    details = told.get(f"{written}_tokens_details")
    thought = max(_read_count(details, "reasoning_tokens"), output - writes)
    cached = min(reads, _read_count(told.get(f"{read}_tokens_details"), "cached_tokens"))
    stored = min(reads - cached, _read_count(told.get(f"{read}_tokens_details"), "cache_write_tokens"))
    return TokenCounts(
        input=reads, cached=cached, written=stored, output=output, reasoning=min(thought, output)
    )


def _parse_gemini_usage(told: JsonObject) -> TokenCounts:
    prompt = _read_count(told, "promptTokenCount")
    thought = _read_count(told, "thoughtsTokenCount")
    return TokenCounts(
        input=prompt + _read_count(told, "toolUsePromptTokenCount"),
        cached=min(prompt, _read_count(told, "cachedContentTokenCount")),
        output=_read_count(told, "candidatesTokenCount") + thought,
        reasoning=thought,
    )


USAGE_PARSERS = {
    "anthropic": _parse_anthropic_usage,
    "openai-chat": lambda told: _parse_openai_usage(told, "prompt", "completion"),
    "openai-responses": lambda told: _parse_openai_usage(told, "input", "output"),
    "gemini": _parse_gemini_usage,
}


def _take_maximum(one: TokenCounts, other: TokenCounts) -> TokenCounts:
    """Counts that only grow, some of which are left out or 0 in what was told later."""
    mine, theirs = one.model_dump(), other.model_dump()
    return TokenCounts(**{name: max(mine[name], theirs[name]) for name in mine})


def _is_final_event(wire: Wire, said: JsonObject) -> bool:
    match wire:
        case "anthropic":
            return said.get("type") == "message_stop"
        case "openai-responses":
            return said.get("type") in ("response.completed", "response.incomplete", "response.failed")
        case "openai-chat":
            return any(choice.get("finish_reason") for choice in _filter_objects(said.get("choices")))
        case "gemini":
            stopped = any(one.get("finishReason") for one in _filter_objects(said.get("candidates")))
            feedback = said.get("promptFeedback")
            return stopped or (_is_object(feedback) and bool(feedback.get("blockReason")))


def _extract_error(said: JsonObject) -> str:
    inner = said.get("response") if said.get("type") == "response.failed" else None
    for place in (said, inner):
        told = place.get("error") if _is_object(place) else None
        if _is_object(told):
            return str(told.get("message") or told.get("type") or told)[:MAX_ERROR_CHARACTERS]
        if told:
            return str(told)[:MAX_ERROR_CHARACTERS]
    return str(said.get("message") or "error")[:MAX_ERROR_CHARACTERS] if said.get("type") == "error" else ""


def extract_error_message(body: bytes) -> str:
    """What a provider's error says."""
    return (
        _extract_error(_parse_object(body)) or body[:MAX_ERROR_CHARACTERS].decode("utf-8", "replace").strip()
    )


def _count_new_characters(said: JsonObject) -> int:
    """Of the texts in an event that bring something new: a `delta`, or Gemini's `parts`."""
    found = 0
    left: list[tuple[Any, bool]] = [(said, False)]
    while left:
        here, new = left.pop()
        if isinstance(here, str):
            found += len(here) * new
        elif isinstance(here, dict):
            left.extend((inner, new or name in ("delta", "parts")) for name, inner in here.items())
        elif isinstance(here, list):
            left.extend((inner, new) for inner in here)
    return found


def _parse_object(data: bytes) -> JsonObject:
    """Of what is none, an empty one."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _filter_objects(value: Any) -> list[JsonObject]:
    return [one for one in value if _is_object(one)] if isinstance(value, list) else []


def _is_object(value: Any) -> TypeGuard[JsonObject]:
    return isinstance(value, dict)


def _read_count(told: Any, name: str) -> int:
    value = told.get(name) if _is_object(told) else None
    return value if type(value) is int and 0 <= value <= MAX_TOKENS else 0
