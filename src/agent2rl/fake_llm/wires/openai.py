"""OpenAI's two wire formats, Chat Completions and Responses, and the errors that both have."""

import time
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
    parse_arguments,
    render_sse_event,
    render_whole_answer,
    require_messages,
    require_model,
    split_text,
)

# Chat Completions, and the errors of both wire formats

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
        response_format = as_mapping(body.get("response_format"))
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
            schema=read_response_schema(response_format, as_mapping(response_format.get("json_schema"))),
            tells_usage=as_mapping(body.get("stream_options")).get("include_usage") is True,
        )

    def write(self, request: LlmRequest, reply: LlmReply) -> tuple[str, list[ResponseChunk]]:
        tokens = select_reported_tokens(reply.tokens)
        head = {"id": f"chatcmpl-{reply.id}", "created": int(time.time()), "model": request.model}
        stop = "tool_calls" if reply.calls else "stop"
        if not request.stream:
            message: dict[str, Any] = {"role": "assistant", "content": reply.text or None, "refusal": None}
            if reply.think:
                message["reasoning_content"] = reply.think
            if reply.calls:
                message["tool_calls"] = [
                    _render_chat_call(call, dump_arguments(call)) for call in reply.calls
                ]
            choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": stop}
            answer = {
                **head,
                "object": "chat.completion",
                "choices": [choice],
                "usage": _render_chat_usage(tokens),
            }
            return "application/json", render_whole_answer(answer, tokens)
        head["object"] = "chat.completion.chunk"
        deltas = [(delta, None) for delta in _render_deltas(reply)]
        chunks = [
            ResponseChunk(render_sse_event({**head, "choices": [_render_choice(delta, end)]}), None)
            for delta, end in [*deltas, ({}, stop)]
        ]
        if request.tells_usage:
            chunks.append(
                ResponseChunk(
                    render_sse_event({**head, "choices": [], "usage": _render_chat_usage(tokens)}), tokens
                )
            )
        chunks.append(ResponseChunk(b"data: [DONE]\n\n", tokens if request.tells_usage else None))
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
    """Return the usage; this format does not report cache writes separately."""
    return tokens.model_copy(update={"written": 0, "written_hour": 0})


def read_response_schema(
    response_format: Mapping[str, Any], named: Mapping[str, Any]
) -> Mapping[str, Any] | None:
    if response_format.get("type") == "json_object":
        return {"type": "object"}
    return as_mapping(named.get("schema")) or None if response_format.get("type") == "json_schema" else None


def dump_arguments(call: WireToolCall) -> str:
    return dump_json(call.arguments).decode()


def _parse_chat_items(messages: list[dict[str, Any]]) -> Iterator[Item]:
    for message in messages:
        role, text = message.get("role"), extract_text(message.get("content"))
        if role == "assistant":
            tool_calls = [as_mapping(call) for call in as_list(message.get("tool_calls"))]
            functions = [(as_string(call.get("id")), as_mapping(call.get("function"))) for call in tool_calls]
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


def _render_chat_usage(tokens: TokenCounts) -> dict[str, Any]:
    return {
        "prompt_tokens": tokens.input,
        "completion_tokens": tokens.output,
        "total_tokens": tokens.total,
        "prompt_tokens_details": {"cached_tokens": tokens.cached, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": tokens.reasoning, "audio_tokens": 0},
    }


CHAT_FORMAT: WireFormat = ChatCompletions()


# Responses

RESULTS = ("function_call_output", "custom_tool_call_output", "local_shell_call_output")


class OpenAIResponses:
    def read(self, body: Mapping[str, Any]) -> LlmRequest:
        given = body.get("input")
        said = (
            [{"role": "user", "content": given}]
            if isinstance(given, str)
            else require_messages(given, "input")
        )
        system = [
            extract_text(one.get("content")) for one in said if one.get("role") in ("system", "developer")
        ]
        most, text_format = (
            body.get("max_output_tokens"),
            as_mapping(as_mapping(body.get("text")).get("format")),
        )
        return LlmRequest(
            wire="openai-responses",
            model=require_model(body),
            stream=body.get("stream") is True,
            items=tuple(_parse_response_items(said)),
            tools=tuple(_parse_response_tools(as_list(body.get("tools")))),
            system="\n".join([as_string(body.get("instructions")), *system]),
            most_tokens=most if isinstance(most, int) else None,
            schema=read_response_schema(text_format, text_format),
            after=as_string(body.get("previous_response_id")).removeprefix("resp_") or None,
        )

    def write(self, request: LlmRequest, reply: LlmReply) -> tuple[str, list[ResponseChunk]]:
        tokens = select_reported_tokens(reply.tokens)
        begun = _render_response(request, reply)
        output = [item for item, _ in _render_outputs(reply)]
        done = {**begun, "status": "completed", "output": output, "usage": _render_response_usage(tokens)}
        if not request.stream:
            return "application/json", render_whole_answer(done, tokens)
        events: list[dict[str, Any]] = [
            {"type": "response.created", "response": begun},
            {"type": "response.in_progress", "response": begun},
        ]
        for index, (item, steps) in enumerate(_render_outputs(reply)):
            place = {"output_index": index}
            opened = {**item, "status": "in_progress", **_empty_fields(item)}
            events.append({"type": "response.output_item.added", **place, "item": opened})
            events += [{**step, **place, "item_id": item["id"]} for step in steps]
            events.append({"type": "response.output_item.done", **place, "item": item})
        events.append({"type": "response.completed", "response": done})
        chunks = [
            ResponseChunk(render_sse_event({**one, "sequence_number": number}, one["type"]), None)
            for number, one in enumerate(events)
        ]
        chunks[-1] = ResponseChunk(chunks[-1].data, tokens)
        return "text/event-stream; charset=utf-8", chunks

    def fail(self, trouble: ProviderError) -> tuple[int, dict[str, Any]]:
        return render_openai_error(trouble)


def _parse_response_items(items: list[dict[str, Any]]) -> Iterator[Item]:
    for item in items:
        kind, call = item.get("type", "message"), as_string(item.get("call_id"))
        if kind == "function_call":
            yield AssistantMessage(
                calls=(
                    WireToolCall(call, as_string(item.get("name")), parse_arguments(item.get("arguments"))),
                )
            )
        elif kind == "custom_tool_call":
            yield AssistantMessage(
                calls=(
                    WireToolCall(call, as_string(item.get("name")), as_string(item.get("input")), "custom"),
                )
            )
        elif kind == "local_shell_call":
            yield AssistantMessage(
                calls=(WireToolCall(call, "local_shell", item.get("action"), "local-shell"),)
            )
        elif kind in RESULTS:
            yield ToolResultMessage(call, extract_text(item.get("output")))
        elif kind == "message" and item.get("role") == "assistant":
            yield AssistantMessage(extract_text(item.get("content")))
        elif kind == "message" and item.get("role") == "user":
            yield UserMessage(extract_text(item.get("content")))


def _parse_response_tools(offered: list[Any]) -> Iterator[OfferedTool]:
    for tool in map(as_mapping, offered):
        kind, name = tool.get("type"), as_string(tool.get("name"))
        if kind == "function":
            yield OfferedTool(name, as_mapping(tool.get("parameters")))
        elif kind == "custom":
            yield OfferedTool(name, kind="custom")
        elif kind == "local_shell":
            yield OfferedTool("local_shell", kind="local-shell")


def _render_response(request: LlmRequest, reply: LlmReply) -> dict[str, Any]:
    return {
        "id": f"resp_{reply.id}",
        "object": "response",
        "created_at": int(time.time()),
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "max_output_tokens": request.most_tokens,
        "metadata": {},
        "model": request.model,
        "output": [],
        "parallel_tool_calls": True,
        "previous_response_id": f"resp_{request.after}" if request.after else None,
        "reasoning": {"effort": None, "summary": None},
        "store": False,
        "temperature": 1.0,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "truncation": "disabled",
        "usage": None,
        "user": None,
    }


def _render_outputs(reply: LlmReply) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Yield each item of an answer, and its stream events between start and end."""
    if reply.think:
        part = {"type": "summary_text", "text": reply.think}
        name, place = "response.reasoning_summary", {"summary_index": 0}
        steps = [
            {"type": f"{name}_part.added", **place, "part": {**part, "text": ""}},
            *({"type": f"{name}_text.delta", **place, "delta": piece} for piece in split_text(reply.think)),
            {"type": f"{name}_text.done", **place, "text": reply.think},
            {"type": f"{name}_part.done", **place, "part": part},
        ]
        yield (
            {"id": f"rs_{reply.id}", "type": "reasoning", "summary": [part], "encrypted_content": None},
            steps,
        )
    if reply.text:
        text = {"type": "output_text", "text": reply.text, "annotations": [], "logprobs": []}
        place = {"content_index": 0}
        steps = [
            {"type": "response.content_part.added", **place, "part": {**text, "text": ""}},
            *(
                {"type": "response.output_text.delta", **place, "delta": piece, "logprobs": []}
                for piece in split_text(reply.text)
            ),
            {"type": "response.output_text.done", **place, "text": reply.text, "logprobs": []},
            {"type": "response.content_part.done", **place, "part": text},
        ]
        item = {"id": f"msg_{reply.id}", "type": "message", "role": "assistant", "content": [text]}
        yield {**item, "status": "completed"}, steps
    for number, call in enumerate(reply.calls):
        yield _render_response_call(call, f"{reply.id}{number}")


def _render_response_call(call: WireToolCall, name: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    if call.kind == "local-shell":
        item = {"id": f"lsh_{name}", "type": "local_shell_call", "call_id": call.id, "action": call.arguments}
        return {**item, "status": "completed"}, []
    if call.kind == "custom":
        text, key, kind = as_string(call.arguments), "input", "response.custom_tool_call_input"
        item = {"id": f"ctc_{name}", "type": "custom_tool_call"}
    else:
        text, key, kind = dump_arguments(call), "arguments", "response.function_call_arguments"
        item = {"id": f"fc_{name}", "type": "function_call"}
    steps = [{"type": f"{kind}.delta", "delta": piece} for piece in split_text(text)]
    last = {"type": f"{kind}.done", key: text, **({"name": call.name} if key == "arguments" else {})}
    item |= {"call_id": call.id, "name": call.name, key: text, "status": "completed"}
    return item, [*steps, last]


def _empty_fields(item: dict[str, Any]) -> dict[str, Any]:
    """Return empty values for the fields that are still empty when an item starts."""
    empty: dict[str, Any] = {"content": [], "summary": [], "arguments": "", "input": ""}
    return {key: empty[key] for key in item if key in empty}


def _render_response_usage(tokens: TokenCounts) -> dict[str, Any]:
    return {
        "input_tokens": tokens.input,
        "input_tokens_details": {"cached_tokens": tokens.cached},
        "output_tokens": tokens.output,
        "output_tokens_details": {"reasoning_tokens": tokens.reasoning},
        "total_tokens": tokens.total,
    }


RESPONSES_FORMAT: WireFormat = OpenAIResponses()
