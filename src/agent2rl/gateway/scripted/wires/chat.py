"""OpenAI Chat Completions, and the errors that both of OpenAI's wire formats have."""

import time
from collections.abc import Iterator, Mapping
from typing import Any

from agent2rl.core.llm import TokenCounts
from agent2rl.gateway.scripted.messages import (
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
    parse_arguments,
    render_sse_event,
    render_whole_answer,
    require_messages,
    require_model,
    split_text,
)

ERROR_TYPES = {
    400: ("invalid_request_error", None),
    401: ("invalid_request_error", "invalid_api_key"),
    403: ("invalid_request_error", None),
    404: ("invalid_request_error", None),
    429: ("requests", "rate_limit_exceeded"),
    503: ("service_unavailable_error", "server_is_overloaded"),
}
STATUSES = {"overloaded": 503, "context-too-long": 400}


class ChatCompletions:
    def read(self, body: Mapping[str, Any]) -> LlmRequest:
        said = require_messages(body.get("messages"), "messages")
        most = body.get("max_completion_tokens", body.get("max_tokens"))
        wanted = as_mapping(body.get("response_format"))
        return LlmRequest(
            wire="openai-chat",
            model=require_model(body),
            stream=body.get("stream") is True,
            items=tuple(_parse_chat_items(said)),
            tools=tuple(_parse_chat_tools(as_list(body.get("tools")))),
            system="\n".join(
                extract_text(message.get("content"))
                for message in said
                if message.get("role") in ("system", "developer")
            ),
            most_tokens=most if isinstance(most, int) else None,
            schema=read_response_schema(wanted, as_mapping(wanted.get("json_schema"))),
            tells_usage=as_mapping(body.get("stream_options")).get("include_usage") is True,
        )

    def write(self, asked: LlmRequest, reply: LlmReply) -> tuple[str, list[ResponseChunk]]:
        told = select_reported_tokens(reply.tokens)
        head = {"id": f"chatcmpl-{reply.id}", "created": int(time.time()), "model": asked.model}
        stop = "tool_calls" if reply.calls else "stop"
        if not asked.stream:
            message: dict[str, Any] = {"role": "assistant", "content": reply.text or None, "refusal": None}
            if reply.think:
                message["reasoning_content"] = reply.think
            if reply.calls:
                message["tool_calls"] = [_render_chat_call(call, dump_arguments(call)) for call in reply.calls]
            choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": stop}
            answer = {**head, "object": "chat.completion", "choices": [choice], "usage": _render_chat_usage(told)}
            return "application/json", render_whole_answer(answer, told)
        head["object"] = "chat.completion.chunk"
        deltas = [(delta, None) for delta in _render_deltas(reply)]
        chunks = [
            ResponseChunk(render_sse_event({**head, "choices": [_render_choice(delta, end)]}), None)
            for delta, end in [*deltas, ({}, stop)]
        ]
        if asked.tells_usage:
            chunks.append(
                ResponseChunk(render_sse_event({**head, "choices": [], "usage": _render_chat_usage(told)}), told)
            )
        chunks.append(ResponseChunk(b"data: [DONE]\n\n", told if asked.tells_usage else None))
        return "text/event-stream; charset=utf-8", chunks

    def fail(self, trouble: ProviderError) -> tuple[int, dict[str, Any]]:
        return render_openai_error(trouble)


def render_openai_error(trouble: ProviderError) -> tuple[int, dict[str, Any]]:
    status = STATUSES.get(trouble.kind, trouble.status)
    kind, code = ERROR_TYPES.get(status, ("server_error", None))
    if trouble.kind == "context-too-long":
        code = "context_length_exceeded"
    return status, {"error": {"message": trouble.message, "type": kind, "param": None, "code": code}}


def select_reported_tokens(tokens: TokenCounts) -> TokenCounts:
    """What is written to the cache is not told apart."""
    return tokens.model_copy(update={"written": 0, "written_hour": 0})


def read_response_schema(wanted: Mapping[str, Any], named: Mapping[str, Any]) -> Mapping[str, Any] | None:
    if wanted.get("type") == "json_object":
        return {"type": "object"}
    return as_mapping(named.get("schema")) or None if wanted.get("type") == "json_schema" else None


def dump_arguments(call: WireToolCall) -> str:
    return dump_json(call.arguments).decode()


def _parse_chat_items(said: list[dict[str, Any]]) -> Iterator[Item]:
    for message in said:
        role, text = message.get("role"), extract_text(message.get("content"))
        if role == "assistant":
            asked = [as_mapping(call) for call in as_list(message.get("tool_calls"))]
            functions = [(as_string(call.get("id")), as_mapping(call.get("function"))) for call in asked]
            calls = tuple(
                WireToolCall(
                    name, as_string(function.get("name")), parse_arguments(function.get("arguments"))
                )
                for name, function in functions
            )
            yield AssistantMessage(text, calls)
        elif role in ("tool", "function"):
            yield ToolResultMessage(as_string(message.get("tool_call_id")), text)
        elif role == "user":
            yield UserMessage(text)


def _parse_chat_tools(offered: list[Any]) -> Iterator[OfferedTool]:
    for tool in map(as_mapping, offered):
        function = as_mapping(tool.get("function"))
        if tool.get("type") == "function":
            yield OfferedTool(as_string(function.get("name")), as_mapping(function.get("parameters")))


def _render_chat_call(call: WireToolCall, arguments: str) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}


def _render_choice(delta: dict[str, Any], end: str | None) -> dict[str, Any]:
    return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": end}


def _render_deltas(reply: LlmReply) -> Iterator[dict[str, Any]]:
    yield {"role": "assistant", "content": "" if reply.text else None, "refusal": None}
    for piece in split_text(reply.think):
        yield {"reasoning_content": piece}
    for piece in split_text(reply.text):
        yield {"content": piece}
    for index, call in enumerate(reply.calls):
        yield {"tool_calls": [{"index": index, **_render_chat_call(call, "")}]}
        for piece in split_text(dump_arguments(call)):
            yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}


def _render_chat_usage(told: TokenCounts) -> dict[str, Any]:
    return {
        "prompt_tokens": told.input,
        "completion_tokens": told.output,
        "total_tokens": told.total,
        "prompt_tokens_details": {"cached_tokens": told.cached, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": told.reasoning, "audio_tokens": 0},
    }


CHAT_FORMAT: WireFormat = ChatCompletions()
