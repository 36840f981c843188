"""Anthropic Messages."""

from collections.abc import Iterator, Mapping
from typing import Any

from agent2rl.core.llm import Tokens
from agent2rl.gateway.scripted.talk import (
    Asked,
    Call,
    Chunk,
    Format,
    Item,
    Reply,
    Result,
    Said,
    Told,
    Tool,
    Trouble,
    array,
    dumped,
    event,
    mapping,
    messages,
    model,
    pieces,
    string,
    whole,
    words,
)

TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}
STATUSES = {"overloaded": 529, "context-too-long": 400}
ASIDE = "<system-reminder>"
"""What Claude Code adds to the user's words by itself begins so."""


class Messages:
    def read(self, body: Mapping[str, Any]) -> Asked:
        most = body.get("max_tokens")
        if not isinstance(most, int):
            raise ValueError("max_tokens: Field required")
        offered = [mapping(tool) for tool in array(body.get("tools"))]
        wanted = mapping(body.get("output_format")) or mapping(
            mapping(body.get("output_config")).get("format")
        )
        return Asked(
            wire="anthropic",
            model=model(body),
            stream=body.get("stream") is True,
            items=tuple(_items(messages(body.get("messages"), "messages"))),
            tools=tuple(
                Tool(string(tool.get("name")), mapping(tool.get("input_schema")))
                for tool in offered
                if tool.get("type") in (None, "custom")
            ),
            system=words(body.get("system")),
            most_tokens=most,
            schema=mapping(wanted.get("schema")) or None,
        )

    def write(self, asked: Asked, reply: Reply) -> tuple[str, list[Chunk]]:
        told = told_of(reply.tokens)
        content = [*_content(reply)]
        if not asked.stream:
            message = {**_message(asked, reply), "content": content, "usage": _usage(told)}
            return "application/json", whole({**message, **_stopped(reply)}, told)
        begun = told.model_copy(update={"output": min(1, told.output)})
        first: dict[str, Any] = {
            "type": "message_start",
            "message": {**_message(asked, reply), "usage": _usage(begun)},
        }
        chunks = [
            Chunk(event(one, one["type"]), begun) for one in (first, {"type": "ping"}, *_blocks(content))
        ]
        last: dict[str, Any] = {"type": "message_delta", "delta": _stopped(reply), "usage": _usage(told)}
        chunks += [Chunk(event(one, one["type"]), told) for one in (last, {"type": "message_stop"})]
        return "text/event-stream; charset=utf-8", chunks

    def fail(self, trouble: Trouble) -> tuple[int, dict[str, Any]]:
        status = STATUSES.get(trouble.kind, trouble.status)
        error = {"type": TYPES.get(status, "api_error"), "message": trouble.message}
        return status, {"type": "error", "error": error, "request_id": "req_scripted"}


def told_of(tokens: Tokens) -> Tokens:
    """Thoughts are not told apart."""
    return tokens.model_copy(update={"reasoning": 0})


def _items(said: list[dict[str, Any]]) -> Iterator[Item]:
    for message in said:
        content = message.get("content")
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else array(content)
        for block in map(mapping, blocks):
            kind, text = block.get("type"), string(block.get("text"))
            if kind == "tool_use":
                call = Call(string(block.get("id")), string(block.get("name")), block.get("input"))
                yield Said(calls=(call,))
            elif kind == "tool_result":
                yield Result(string(block.get("tool_use_id")), words(block.get("content")))
            elif kind == "text" and message.get("role") == "assistant":
                yield Said(text)
            elif kind == "text" and not text.lstrip().startswith(ASIDE):
                yield Told(text)


def _message(asked: Asked, reply: Reply) -> dict[str, Any]:
    return {
        "id": f"msg_{reply.id}",
        "type": "message",
        "role": "assistant",
        "model": asked.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
    }


def _stopped(reply: Reply) -> dict[str, Any]:
    return {"stop_reason": "tool_use" if reply.calls else "end_turn", "stop_sequence": None}


def _usage(told: Tokens) -> dict[str, Any]:
    return {
        "input_tokens": told.input - told.cached - told.written,
        "cache_creation_input_tokens": told.written,
        "cache_read_input_tokens": told.cached,
        "cache_creation": {
            "ephemeral_5m_input_tokens": told.written - told.written_hour,
            "ephemeral_1h_input_tokens": told.written_hour,
        },
        "output_tokens": told.output,
        "service_tier": "standard",
    }


def _content(reply: Reply) -> Iterator[dict[str, Any]]:
    if reply.think:
        yield {"type": "thinking", "thinking": reply.think, "signature": f"scripted{reply.id}"}
    if reply.text:
        yield {"type": "text", "text": reply.text}
    for call in reply.calls:
        yield {"type": "tool_use", "id": call.id, "name": call.name, "input": call.arguments}


def _blocks(content: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for index, block in enumerate(content):
        if block["type"] == "thinking":
            empty: dict[str, Any] = {"thinking": "", "signature": ""}
            deltas = [{"type": "thinking_delta", "thinking": piece} for piece in pieces(block["thinking"])]
            deltas.append({"type": "signature_delta", "signature": block["signature"]})
        elif block["type"] == "text":
            empty = {"text": ""}
            deltas = [{"type": "text_delta", "text": piece} for piece in pieces(block["text"])]
        else:
            empty = {"input": {}}
            packed = dumped(block["input"]).decode()
            deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces(packed)]
        yield {"type": "content_block_start", "index": index, "content_block": {**block, **empty}}
        for delta in deltas:
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}


FORMAT: Format = Messages()
