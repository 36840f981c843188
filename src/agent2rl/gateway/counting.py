"""Counts an answer's tokens from what the provider itself tells, as the answer passes.

    Anthropic Messages       message_start tells the input, message_delta the output so far; input_tokens
                             leaves out what was read from and written to the cache
    OpenAI Responses         response.completed; input_tokens holds what was cached
    OpenAI Chat Completions  the last chunk; prompt_tokens holds what was cached
    Gemini generateContent   each chunk, the last one counts; candidatesTokenCount leaves out thoughts

All are brought to the form of `core.llm.Tokens`. The total tells thoughts that some servers leave out of the
output. Nothing here is estimated but `said`, the letters that were seen to pass.
"""

import json
from typing import Any, TypeGuard

from agent2rl.core.llm import Tokens, Wire
from agent2rl.gateway.events import Event, Events

BODY_BYTES = 64 << 20
"""Of an answer that does not stream; a longer one passes, and is not counted."""
MOST = 10**10
"""Tokens: nobody says more."""
WORDS = 300
Told = dict[str, Any]


class Count:
    def __init__(self, wire: Wire, streams: bool) -> None:
        self.tokens: Tokens | None = None
        """As far as they were told."""
        self.ended = False
        """The answer came to its end."""
        self.error = ""
        """What the provider says went wrong, in the midst of an answer."""
        self.said = 0
        """Letters of the answer's texts."""
        self._wire = wire
        self._events = Events() if streams else None
        self._body: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> list[Event]:
        """The events that are now complete; of an answer that does not stream, none."""
        if self._events is None:
            self._size += len(chunk)
            if self._size <= BODY_BYTES:
                self._body.append(chunk)
            return []
        found = self._events.feed(chunk)
        for event in found:
            self._hear(event)
        return found

    def finish(self) -> list[Event]:
        """What was left, when the answer is over."""
        if self._events is not None:
            rest = self._events.finish()
            for event in rest:
                self._hear(event)
            return rest
        whole = _object(b"".join(self._body)) if self._size <= BODY_BYTES else {}
        self.said = self._size
        self.ended = bool(whole)
        self._read(whole)
        return []

    def _hear(self, event: Event) -> None:
        if event.data.strip() == b"[DONE]":
            self.ended = True
        elif event.data:
            said = _object(event.data)
            self.said += _letters(said)
            self.ended = self.ended or _ends(self._wire, said)
            self._read(said)

    def _read(self, said: Told) -> None:
        self.error = self.error or _error(said)
        inner = said.get("message" if self._wire == "anthropic" else "response")
        for place in (said, inner):
            told = place.get("usageMetadata" if self._wire == "gemini" else "usage") if _is(place) else None
            if _is(told) and told:
                new = TOKENS[self._wire](told)
                self.tokens = _most(self.tokens, new) if self._wire == "anthropic" and self.tokens else new


def usage_alone(event: Event) -> bool:
    """Whether a chunk of Chat Completions tells the usage and says nothing."""
    said = _object(event.data)
    return said.get("choices") == [] and _is(said.get("usage"))


def _anthropic(told: Told) -> Tokens:
    """Where the provider sampled several times (it shortened the conversation first), the sum of them all."""
    several = told.get("iterations")
    turns = [turn for turn in several if _is(turn)] if isinstance(several, list) else []
    whole, parts = _anthropic_turn(told), [_anthropic_turn(turn) for turn in turns]
    return _most(whole, sum(parts[1:], parts[0])) if parts else whole


def _anthropic_turn(told: Told) -> Tokens:
    cached, written = _number(told, "cache_read_input_tokens"), _number(told, "cache_creation_input_tokens")
    return Tokens(
        input=_number(told, "input_tokens") + cached + written,
        cached=cached,
        written=written,
        written_hour=min(written, _number(told.get("cache_creation"), "ephemeral_1h_input_tokens")),
        output=_number(told, "output_tokens"),
        reasoning=_number(told.get("output_tokens_details"), "thinking_tokens"),
    )


def _openai(told: Told, read: str, written: str) -> Tokens:
    reads, writes = _number(told, f"{read}_tokens"), _number(told, f"{written}_tokens")
    total = _number(told, "total_tokens")
    output = max(writes, total - reads)
    details = told.get(f"{written}_tokens_details")
    thought = max(_number(details, "reasoning_tokens"), output - writes)
    cached = min(reads, _number(told.get(f"{read}_tokens_details"), "cached_tokens"))
    stored = min(reads - cached, _number(told.get(f"{read}_tokens_details"), "cache_write_tokens"))
    return Tokens(input=reads, cached=cached, written=stored, output=output, reasoning=min(thought, output))


def _gemini(told: Told) -> Tokens:
    prompt = _number(told, "promptTokenCount")
    thought = _number(told, "thoughtsTokenCount")
    return Tokens(
        input=prompt + _number(told, "toolUsePromptTokenCount"),
        cached=min(prompt, _number(told, "cachedContentTokenCount")),
        output=_number(told, "candidatesTokenCount") + thought,
        reasoning=thought,
    )


TOKENS = {
    "anthropic": _anthropic,
    "openai-chat": lambda told: _openai(told, "prompt", "completion"),
    "openai-responses": lambda told: _openai(told, "input", "output"),
    "gemini": _gemini,
}


def _most(one: Tokens, other: Tokens) -> Tokens:
    """Counts that only grow, some of which are left out or 0 in what was told later."""
    mine, theirs = one.model_dump(), other.model_dump()
    return Tokens(**{name: max(mine[name], theirs[name]) for name in mine})


def _ends(wire: Wire, said: Told) -> bool:
    match wire:
        case "anthropic":
            return said.get("type") == "message_stop"
        case "openai-responses":
            return said.get("type") in ("response.completed", "response.incomplete", "response.failed")
        case "openai-chat":
            return any(choice.get("finish_reason") for choice in _objects(said.get("choices")))
        case "gemini":
            stopped = any(one.get("finishReason") for one in _objects(said.get("candidates")))
            feedback = said.get("promptFeedback")
            return stopped or (_is(feedback) and bool(feedback.get("blockReason")))


def _error(said: Told) -> str:
    inner = said.get("response") if said.get("type") == "response.failed" else None
    for place in (said, inner):
        told = place.get("error") if _is(place) else None
        if _is(told):
            return str(told.get("message") or told.get("type") or told)[:WORDS]
        if told:
            return str(told)[:WORDS]
    return str(said.get("message") or "error")[:WORDS] if said.get("type") == "error" else ""


def error_words(body: bytes) -> str:
    """What a provider's error says."""
    return _error(_object(body)) or body[:WORDS].decode("utf-8", "replace").strip()


def _letters(said: Told) -> int:
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


def _object(data: bytes) -> Told:
    """Of what is none, an empty one."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _objects(value: Any) -> list[Told]:
    return [one for one in value if _is(one)] if isinstance(value, list) else []


def _is(value: Any) -> TypeGuard[Told]:
    return isinstance(value, dict)


def _number(told: Any, name: str) -> int:
    value = told.get(name) if _is(told) else None
    return value if type(value) is int and 0 <= value <= MOST else 0
