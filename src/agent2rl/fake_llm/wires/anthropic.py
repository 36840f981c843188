"""Anthropic Messages."""

from collections.abc import Iterator, Mapping
from typing import Any

from agent2rl.core.llm import TokenCounts
from agent2rl.fake_llm.messages import (
    AssistantMessage,
    Item,
    LlmReply,
    LlmRequest,
    OfferedTool,
    ProviderError,
    ResponseChunk,
    ToolResultMessage,
    UserMessage,
    WireFormat,
    WireToolCall,
    as_list,
    as_mapping,
    as_string,
    dump_json,
    extract_text,
    render_sse_event,
    render_whole_answer,
    require_messages,
    require_model,
    split_text,
)

ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}
STATUSES = {"overloaded": 529, "context-too-long": 400}
SYSTEM_REMINDER = "<system-reminder>"
"""Claude Code's own additions to user messages start like this."""


class AnthropicMessages:
    def read(self, body: Mapping[str, Any]) -> LlmRequest:
        most = body.get("max_tokens")
        if not isinstance(most, int):
            raise ValueError("max_tokens: Field required")
        offered = [as_mapping(tool) for tool in as_list(body.get("tools"))]
        response_format = as_mapping(body.get("output_format")) or as_mapping(
            as_mapping(body.get("output_config")).get("format")
        )
        return LlmRequest(
            wire="anthropic",
            model=require_model(body),
            stream=body.get("stream") is True,
            items=tuple(_parse_items(require_messages(body.get("messages"), "messages"))),
            tools=tuple(
                OfferedTool(as_string(tool.get("name")), as_mapping(tool.get("input_schema")))
                for tool in offered
                if tool.get("type") in (None, "custom")
            ),
            system=extract_text(body.get("system")),
            most_tokens=most,
            schema=as_mapping(response_format.get("schema")) or None,
        )

    def write(self, request: LlmRequest, reply: LlmReply) -> tuple[str, list[ResponseChunk]]:
        tokens = select_reported_tokens(reply.tokens)
        content = [*_render_content(reply)]
        if not request.stream:
            message = {**_render_message(request, reply), "content": content, "usage": _render_usage(tokens)}
            return "application/json", render_whole_answer({**message, **_render_stop(reply)}, tokens)
        begun = tokens.model_copy(update={"output": min(1, tokens.output)})
        first: dict[str, Any] = {
            "type": "message_start",
            "message": {**_render_message(request, reply), "usage": _render_usage(begun)},
        }
        chunks = [
            ResponseChunk(render_sse_event(one, one["type"]), begun)
            for one in (first, {"type": "ping"}, *_render_block_events(content))
        ]
        last: dict[str, Any] = {
            "type": "message_delta",
            "delta": _render_stop(reply),
            "usage": _render_usage(tokens),
        }
        chunks += [
            ResponseChunk(render_sse_event(one, one["type"]), tokens)
            for one in (last, {"type": "message_stop"})
        ]
        return "text/event-stream; charset=utf-8", chunks

    def fail(self, trouble: ProviderError) -> tuple[int, dict[str, Any]]:
        status = STATUSES.get(trouble.kind, trouble.status)
        error = {"type": ERROR_TYPES.get(status, "api_error"), "message": trouble.message}
        return status, {"type": "error", "error": error, "request_id": "req_scripted"}


def select_reported_tokens(tokens: TokenCounts) -> TokenCounts:
    """Return the usage; this format does not report reasoning separately."""
    return tokens.model_copy(update={"reasoning": 0})


def _parse_items(messages: list[dict[str, Any]]) -> Iterator[Item]:
    for message in messages:
        content = message.get("content")
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else as_list(content)
        for block in map(as_mapping, blocks):
            kind, text = block.get("type"), as_string(block.get("text"))
            if kind == "tool_use":
                call = WireToolCall(
                    as_string(block.get("id")), as_string(block.get("name")), block.get("input")
                )
                yield AssistantMessage(calls=(call,))
            elif kind == "tool_result":
                yield ToolResultMessage(
                    as_string(block.get("tool_use_id")), extract_text(block.get("content"))
                )
            elif kind == "text" and message.get("role") == "assistant":
                yield AssistantMessage(text)
            elif kind == "text" and not text.lstrip().startswith(SYSTEM_REMINDER):
                yield UserMessage(text)


def _render_message(request: LlmRequest, reply: LlmReply) -> dict[str, Any]:
    return {
        "id": f"msg_{reply.id}",
        "type": "message",
        "role": "assistant",
        "model": request.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
    }


def _render_stop(reply: LlmReply) -> dict[str, Any]:
    return {"stop_reason": "tool_use" if reply.calls else "end_turn", "stop_sequence": None}


def _render_usage(tokens: TokenCounts) -> dict[str, Any]:
    return {
        "input_tokens": tokens.input - tokens.cached - tokens.written,
        "cache_creation_input_tokens": tokens.written,
        "cache_read_input_tokens": tokens.cached,
        "cache_creation": {
            "ephemeral_5m_input_tokens": tokens.written - tokens.written_hour,
            "ephemeral_1h_input_tokens": tokens.written_hour,
        },
        "output_tokens": tokens.output,
        "service_tier": "standard",
    }


def _render_content(reply: LlmReply) -> Iterator[dict[str, Any]]:
    if reply.think:
        yield {"type": "thinking", "thinking": reply.think, "signature": f"scripted{reply.id}"}
    if reply.text:
        yield {"type": "text", "text": reply.text}
    for call in reply.calls:
        yield {"type": "tool_use", "id": call.id, "name": call.name, "input": call.arguments}


def _render_block_events(content: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for index, block in enumerate(content):
        if block["type"] == "thinking":
            empty: dict[str, Any] = {"thinking": "", "signature": ""}
            deltas = [
                {"type": "thinking_delta", "thinking": piece} for piece in split_text(block["thinking"])
            ]
            deltas.append({"type": "signature_delta", "signature": block["signature"]})
        elif block["type"] == "text":
            empty = {"text": ""}
            deltas = [{"type": "text_delta", "text": piece} for piece in split_text(block["text"])]
        else:
            empty = {"input": {}}
            packed = dump_json(block["input"]).decode()
            deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in split_text(packed)]
        yield {"type": "content_block_start", "index": index, "content_block": {**block, **empty}}
        for delta in deltas:
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}


FORMAT: WireFormat = AnthropicMessages()
