"""Clients of an LLM in each wire format, which take nothing that the format does not allow.

Each keeps a conversation as an agent does: it sends all of it each time, and adds what it heard.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

from agent2rl.core.llm import TokenCounts, Wire

WIRES: tuple[Wire, ...] = ("anthropic", "openai-chat", "openai-responses", "gemini")
ToolSchema = Mapping[str, Any]
COMMAND_SCHEMA: ToolSchema = {
    "type": "object",
    "properties": {"command": {"type": "string"}},
    "required": ["command"],
}
BASH_TOOL = {"bash": COMMAND_SCHEMA}


@dataclass(frozen=True)
class ToolCall:
    id: str
    name: str
    arguments: Any


@dataclass(frozen=True)
class LlmTurn:
    text: str
    think: str
    calls: tuple[ToolCall, ...]
    tokens: TokenCounts | None
    back: tuple[dict[str, Any], ...]
    """What a client sends again of it, in the wire's own form."""

    @property
    def commands(self) -> list[Any]:
        return [call.arguments["command"] for call in self.calls]


@dataclass
class LlmClient:
    wire: Wire
    http: httpx.Client
    tools: Mapping[str, ToolSchema] = field(default_factory=lambda: BASH_TOOL)
    model: str = "scripted"
    history: list[dict[str, Any]] = field(default_factory=list)
    last: LlmTurn | None = None
    more: dict[str, Any] = field(default_factory=dict)
    """Of the request's body."""

    def tell(self, text: str) -> None:
        """What the user says."""
        part = {"role": "user", "parts": [{"text": text}]}
        self.history.append(part if self.wire == "gemini" else {"role": "user", "content": text})

    def report(self, *results: str) -> None:
        """What the last calls gave back."""
        assert self.last
        pairs = list(zip(self.last.calls, results, strict=True))
        match self.wire:
            case "anthropic":
                blocks = [{"type": "tool_result", "tool_use_id": c.id, "content": r} for c, r in pairs]
                self.history.append({"role": "user", "content": blocks})
            case "openai-chat":
                self.history += [{"role": "tool", "tool_call_id": c.id, "content": r} for c, r in pairs]
            case "openai-responses":
                kind = "function_call_output"
                self.history += [{"type": kind, "call_id": c.id, "output": r} for c, r in pairs]
            case "gemini":
                answers = [{"id": c.id, "name": c.name, "response": {"output": r}} for c, r in pairs]
                parts = [{"functionResponse": answer} for answer in answers]
                self.history.append({"role": "user", "parts": parts})

    def send(self, stream: bool = False) -> httpx.Response:
        path, body = self.request(stream)
        return self.http.post(path, json=body)

    def ask(self, stream: bool = False) -> LlmTurn:
        """One turn, which joins the conversation."""
        answer = self.send(stream)
        assert answer.status_code == 200, answer.text
        heard = parse_stream(self.wire, answer) if stream else parse_response(self.wire, answer.json())
        self.last = heard
        self.history += heard.back
        return heard

    def request(self, stream: bool = False) -> tuple[str, dict[str, Any]]:
        tools = list(self.tools.items())
        body: dict[str, Any] = {"model": self.model, "stream": stream}
        match self.wire:
            case "anthropic":
                offered = [{"name": name, "input_schema": schema} for name, schema in tools]
                body |= {"max_tokens": 1000, "messages": self.history, "tools": offered}
                path = "/v1/messages"
            case "openai-chat":
                functions = [{"name": name, "parameters": schema} for name, schema in tools]
                offered = [{"type": "function", "function": function} for function in functions]
                body |= {"messages": self.history, "tools": offered}
                body |= {"stream_options": {"include_usage": True}} if stream else {}
                path = "/v1/chat/completions"
            case "openai-responses":
                offered = [{"type": "function", "name": name, "parameters": s} for name, s in tools]
                body |= {"input": self.history, "tools": offered}
                path = "/v1/responses"
            case "gemini":
                declared = [{"name": name, "parametersJsonSchema": schema} for name, schema in tools]
                body = {"contents": self.history, "tools": [{"functionDeclarations": declared}]}
                verb = "streamGenerateContent?alt=sse" if stream else "generateContent"
                path = f"/v1beta/models/{self.model}:{verb}"
        return path, body | self.more


def parse_response(wire: Wire, body: dict[str, Any]) -> LlmTurn:
    match wire:
        case "anthropic":
            assert (body["type"], body["role"], body["stop_sequence"]) == ("message", "assistant", None)
            return _parse_anthropic_message(body)
        case "openai-chat":
            assert body["object"] == "chat.completion"
            (choice,) = body["choices"]
            return _parse_chat_message(choice["message"], choice["finish_reason"], body["usage"])
        case "openai-responses":
            assert (body["object"], body["status"], body["error"]) == ("response", "completed", None)
            return _parse_responses_body(body)
        case "gemini":
            (candidate,) = body["candidates"]
            assert (candidate["finishReason"], candidate["content"]["role"]) == ("STOP", "model")
            return _parse_gemini_candidate(candidate["content"]["parts"], body["usageMetadata"])


def parse_stream(wire: Wire, answer: httpx.Response) -> LlmTurn:
    assert answer.headers["content-type"].startswith("text/event-stream")
    found = list(parse_events(answer.text))
    match wire:
        case "anthropic":
            return _parse_anthropic_message(_parse_anthropic_stream(found))
        case "openai-chat":
            return _parse_chat_stream(found)
        case "openai-responses":
            return _parse_responses_body(_parse_responses_stream(found))
        case "gemini":
            return _parse_gemini_stream(found)


def parse_events(text: str) -> Iterator[tuple[str | None, str]]:
    """Server-sent events: one line of data each, and a name where there is one."""
    *blocks, rest = text.split("\n\n")
    assert rest == ""
    for block in blocks:
        *names, data = block.split("\n")
        assert data.startswith("data: ")
        assert len(names) <= 1
        assert all(name.startswith("event: ") for name in names)
        yield (names[0].removeprefix("event: ") if names else None), data.removeprefix("data: ")


def _parse_anthropic_stream(found: list[tuple[str | None, str]]) -> dict[str, Any]:
    """The message that the events make up."""
    said = [(name, json.loads(data)) for name, data in found]
    assert all(name == one["type"] for name, one in said)
    (_, first), *between, (_, delta), (last, _) = [pair for pair in said if pair[0] != "ping"]
    assert (first["type"], delta["type"], last) == ("message_start", "message_delta", "message_stop")
    message: dict[str, Any] = first["message"]
    assert (message["content"], message["stop_reason"]) == ([], None)
    open_block: dict[str, Any] | None = None
    packed = ""
    for name, one in between:
        if name == "content_block_start":
            assert open_block is None
            assert one["index"] == len(message["content"])
            open_block, packed = dict(one["content_block"]), ""
            continue
        assert open_block is not None
        assert one["index"] == len(message["content"])
        if name == "content_block_stop":
            if open_block["type"] == "tool_use":
                assert open_block["input"] == {}
                open_block["input"] = json.loads(packed)
            message["content"].append(open_block)
            open_block = None
            continue
        assert name == "content_block_delta"
        match open_block["type"], one["delta"]["type"]:
            case "text", "text_delta":
                open_block["text"] += one["delta"]["text"]
            case "thinking", "thinking_delta":
                open_block["thinking"] += one["delta"]["thinking"]
            case "thinking", "signature_delta":
                open_block["signature"] += one["delta"]["signature"]
            case "tool_use", "input_json_delta":
                packed += one["delta"]["partial_json"]
            case other:
                raise AssertionError(other)
    assert open_block is None
    return {**message, **delta["delta"], "usage": {**message["usage"], **delta["usage"]}}


def _parse_chat_stream(found: list[tuple[str | None, str]]) -> LlmTurn:
    assert found[-1] == (None, "[DONE]")
    chunks = [json.loads(data) for name, data in found[:-1] if name is None]
    assert len(chunks) == len(found) - 1
    assert len({(one["id"], one["created"], one["model"], one["object"]) for one in chunks}) == 1
    assert chunks[0]["object"] == "chat.completion.chunk"
    *parts, last = chunks
    assert last["choices"] == []
    assert all("usage" not in one for one in parts)
    choices = [one["choices"][0] for one in parts]
    assert [choice["finish_reason"] for choice in choices[:-1]] == [None] * (len(choices) - 1)
    assert choices[0]["delta"]["role"] == "assistant"
    message: dict[str, Any] = {"content": None, "tool_calls": []}
    for delta in (choice["delta"] for choice in choices):
        for name in ("content", "reasoning_content"):
            if delta.get(name):
                message[name] = (message.get(name) or "") + delta[name]
        for part in delta.get("tool_calls", ()):
            if "id" in part:
                assert part["index"] == len(message["tool_calls"])
                message["tool_calls"].append({key: part[key] for key in ("id", "type", "function")})
            else:
                assert part["index"] == len(message["tool_calls"]) - 1
                message["tool_calls"][-1]["function"]["arguments"] += part["function"]["arguments"]
    return _parse_chat_message(message, choices[-1]["finish_reason"], last["usage"])


def _parse_responses_stream(found: list[tuple[str | None, str]]) -> dict[str, Any]:
    said = [json.loads(data) for _, data in found]
    assert [one["type"] for one in said] == [name for name, _ in found]
    assert [one["sequence_number"] for one in said] == list(range(len(said)))
    first, second, *between, last = said
    assert (first["type"], second["type"]) == ("response.created", "response.in_progress")
    assert last["type"] == "response.completed"
    assert first["response"]["output"] == []
    items: list[dict[str, Any]] = []
    parts: list[dict[str, Any]] = []
    for one in between:
        assert one["output_index"] == len(items)
        if one["type"] == "response.output_item.added":
            assert not parts
            assert one["item"]["status"] == "in_progress"
        elif one["type"] == "response.output_item.done":
            deltas = "".join(part["delta"] for part in parts if part["type"].endswith(".delta"))
            (whole,) = (part for part in parts if part["type"].endswith(("_text.done", "arguments.done")))
            assert deltas == whole.get("text", whole.get("arguments"))
            assert {part["item_id"] for part in parts} == {one["item"]["id"]}
            items.append(one["item"])
            parts = []
            continue
        else:
            parts.append(one)
    assert not parts
    response: dict[str, Any] = last["response"]
    assert response["output"] == items
    assert response["status"] == "completed"
    return response


def _parse_gemini_stream(found: list[tuple[str | None, str]]) -> LlmTurn:
    said = [json.loads(data) for name, data in found if name is None]
    assert len(said) == len(found)
    candidates = [one["candidates"][0] for one in said]
    assert ["finishReason" in one for one in candidates] == [False] * (len(said) - 1) + [True]
    assert len({(one["responseId"], one["modelVersion"]) for one in said}) == 1
    merged: list[dict[str, Any]] = []
    for part in (part for one in candidates for part in one["content"]["parts"]):
        alike = merged and "text" in part and "text" in merged[-1]
        if alike and merged[-1].get("thought") == part.get("thought"):
            merged[-1] = merged[-1] | {"text": merged[-1]["text"] + part["text"]}
        else:
            merged.append(part)
    return _parse_gemini_candidate(merged, said[-1]["usageMetadata"])


def _parse_anthropic_message(body: dict[str, Any]) -> LlmTurn:
    content = body["content"]
    uses = [block for block in content if block["type"] == "tool_use"]
    assert body["stop_reason"] == ("tool_use" if uses else "end_turn")
    usage = body["usage"]
    written, cached = usage["cache_creation_input_tokens"], usage["cache_read_input_tokens"]
    assert sum(usage["cache_creation"].values()) == written
    return LlmTurn(
        "".join(block["text"] for block in content if block["type"] == "text"),
        "".join(block["thinking"] for block in content if block["type"] == "thinking"),
        tuple(ToolCall(block["id"], block["name"], block["input"]) for block in uses),
        TokenCounts(
            input=usage["input_tokens"] + written + cached,
            cached=cached,
            written=written,
            written_hour=usage["cache_creation"]["ephemeral_1h_input_tokens"],
            output=usage["output_tokens"],
        ),
        ({"role": "assistant", "content": content},),
    )


def _parse_chat_message(message: dict[str, Any], end: str, usage: dict[str, Any]) -> LlmTurn:
    asked = message.get("tool_calls") or []
    assert end == ("tool_calls" if asked else "stop")
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    calls = [(call["id"], call["function"]) for call in asked]
    back = {"role": "assistant", "content": message["content"]} | ({"tool_calls": asked} if asked else {})
    return LlmTurn(
        message["content"] or "",
        message.get("reasoning_content") or "",
        tuple(ToolCall(name, one["name"], json.loads(one["arguments"])) for name, one in calls),
        TokenCounts(
            input=usage["prompt_tokens"],
            cached=usage["prompt_tokens_details"]["cached_tokens"],
            output=usage["completion_tokens"],
            reasoning=usage["completion_tokens_details"]["reasoning_tokens"],
        ),
        (back,),
    )


def _parse_responses_body(body: dict[str, Any]) -> LlmTurn:
    output, usage = body["output"], body["usage"]
    assert len({item["id"] for item in output}) == len(output)
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    messages = [item for item in output if item["type"] == "message"]
    calls = [item for item in output if item["type"] == "function_call"]
    thoughts = [item for item in output if item["type"] == "reasoning"]
    assert len(messages) + len(calls) + len(thoughts) == len(output)
    return LlmTurn(
        "".join(part["text"] for item in messages for part in item["content"]),
        "".join(part["text"] for item in thoughts for part in item["summary"]),
        tuple(ToolCall(item["call_id"], item["name"], json.loads(item["arguments"])) for item in calls),
        TokenCounts(
            input=usage["input_tokens"],
            cached=usage["input_tokens_details"]["cached_tokens"],
            output=usage["output_tokens"],
            reasoning=usage["output_tokens_details"]["reasoning_tokens"],
        ),
        tuple(output),
    )


def _parse_gemini_candidate(parts: list[dict[str, Any]], usage: dict[str, Any]) -> LlmTurn:
    texts = [part for part in parts if "text" in part]
    calls = [part["functionCall"] for part in parts if "functionCall" in part]
    assert len(texts) + len(calls) == len(parts)
    output = usage["candidatesTokenCount"] + usage["thoughtsTokenCount"]
    assert usage["totalTokenCount"] == usage["promptTokenCount"] + output
    return LlmTurn(
        "".join(part["text"] for part in texts if not part.get("thought")),
        "".join(part["text"] for part in texts if part.get("thought")),
        tuple(ToolCall(call["id"], call["name"], call["args"]) for call in calls),
        TokenCounts(
            input=usage["promptTokenCount"],
            cached=usage["cachedContentTokenCount"],
            output=output,
            reasoning=usage["thoughtsTokenCount"],
        ),
        ({"role": "model", "parts": parts},),
    )
