"""OpenAI Responses."""

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
    extract_text,
    parse_arguments,
    render_sse_event,
    render_whole_answer,
    require_messages,
    require_model,
    split_text,
)
from agent2rl.gateway.scripted.wires.chat import (
    dump_arguments,
    read_response_schema,
    render_openai_error,
    select_reported_tokens,
)

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
        most, wanted = body.get("max_output_tokens"), as_mapping(as_mapping(body.get("text")).get("format"))
        return LlmRequest(
            wire="openai-responses",
            model=require_model(body),
            stream=body.get("stream") is True,
            items=tuple(_parse_response_items(said)),
            tools=tuple(_parse_response_tools(as_list(body.get("tools")))),
            system="\n".join([as_string(body.get("instructions")), *system]),
            most_tokens=most if isinstance(most, int) else None,
            schema=read_response_schema(wanted, wanted),
            after=as_string(body.get("previous_response_id")).removeprefix("resp_") or None,
        )

    def write(self, asked: LlmRequest, reply: LlmReply) -> tuple[str, list[ResponseChunk]]:
        told = select_reported_tokens(reply.tokens)
        begun = _render_response(asked, reply)
        output = [item for item, _ in _render_outputs(reply)]
        done = {**begun, "status": "completed", "output": output, "usage": _render_response_usage(told)}
        if not asked.stream:
            return "application/json", render_whole_answer(done, told)
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
        chunks[-1] = ResponseChunk(chunks[-1].data, told)
        return "text/event-stream; charset=utf-8", chunks

    def fail(self, trouble: ProviderError) -> tuple[int, dict[str, Any]]:
        return render_openai_error(trouble)


def _parse_response_items(said: list[dict[str, Any]]) -> Iterator[Item]:
    for one in said:
        kind, call = one.get("type", "message"), as_string(one.get("call_id"))
        if kind == "function_call":
            yield AssistantMessage(
                calls=(WireToolCall(call, as_string(one.get("name")), parse_arguments(one.get("arguments"))),)
            )
        elif kind == "custom_tool_call":
            yield AssistantMessage(
                calls=(WireToolCall(call, as_string(one.get("name")), as_string(one.get("input")), "custom"),)
            )
        elif kind == "local_shell_call":
            yield AssistantMessage(
                calls=(WireToolCall(call, "local_shell", one.get("action"), "local-shell"),)
            )
        elif kind in RESULTS:
            yield ToolResultMessage(call, extract_text(one.get("output")))
        elif kind == "message" and one.get("role") == "assistant":
            yield AssistantMessage(extract_text(one.get("content")))
        elif kind == "message" and one.get("role") == "user":
            yield UserMessage(extract_text(one.get("content")))


def _parse_response_tools(offered: list[Any]) -> Iterator[OfferedTool]:
    for tool in map(as_mapping, offered):
        kind, name = tool.get("type"), as_string(tool.get("name"))
        if kind == "function":
            yield OfferedTool(name, as_mapping(tool.get("parameters")))
        elif kind == "custom":
            yield OfferedTool(name, kind="custom")
        elif kind == "local_shell":
            yield OfferedTool("local_shell", kind="local-shell")


def _render_response(asked: LlmRequest, reply: LlmReply) -> dict[str, Any]:
    return {
        "id": f"resp_{reply.id}",
        "object": "response",
        "created_at": int(time.time()),
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "max_output_tokens": asked.most_tokens,
        "metadata": {},
        "model": asked.model,
        "output": [],
        "parallel_tool_calls": True,
        "previous_response_id": f"resp_{asked.after}" if asked.after else None,
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
    """Each item of an answer, and what a stream says of it between its beginning and its end."""
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
    """What an item has not yet when it begins."""
    empty: dict[str, Any] = {"content": [], "summary": [], "arguments": "", "input": ""}
    return {key: empty[key] for key in item if key in empty}


def _render_response_usage(told: TokenCounts) -> dict[str, Any]:
    return {
        "input_tokens": told.input,
        "input_tokens_details": {"cached_tokens": told.cached},
        "output_tokens": told.output,
        "output_tokens_details": {"reasoning_tokens": told.reasoning},
        "total_tokens": told.total,
    }


RESPONSES_FORMAT: WireFormat = OpenAIResponses()
