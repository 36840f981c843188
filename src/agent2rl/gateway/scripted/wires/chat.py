"""OpenAI Chat Completions, and the errors that both of OpenAI's wire formats have."""

import time
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
    unpacked,
    whole,
    words,
)

TYPES = {
    400: ("invalid_request_error", None),
    401: ("invalid_request_error", "invalid_api_key"),
    403: ("invalid_request_error", None),
    404: ("invalid_request_error", None),
    429: ("requests", "rate_limit_exceeded"),
    503: ("service_unavailable_error", "server_is_overloaded"),
}
STATUSES = {"overloaded": 503, "context-too-long": 400}


class Completions:
    def read(self, body: Mapping[str, Any]) -> Asked:
        said = messages(body.get("messages"), "messages")
        most = body.get("max_completion_tokens", body.get("max_tokens"))
        wanted = mapping(body.get("response_format"))
        return Asked(
            wire="openai-chat",
            model=model(body),
            stream=body.get("stream") is True,
            items=tuple(_items(said)),
            tools=tuple(_tools(array(body.get("tools")))),
            system="\n".join(
                words(message.get("content"))
                for message in said
                if message.get("role") in ("system", "developer")
            ),
            most_tokens=most if isinstance(most, int) else None,
            schema=wanted_json(wanted, mapping(wanted.get("json_schema"))),
            tells_usage=mapping(body.get("stream_options")).get("include_usage") is True,
        )

    def write(self, asked: Asked, reply: Reply) -> tuple[str, list[Chunk]]:
        told = told_of(reply.tokens)
        head = {"id": f"chatcmpl-{reply.id}", "created": int(time.time()), "model": asked.model}
        stop = "tool_calls" if reply.calls else "stop"
        if not asked.stream:
            message: dict[str, Any] = {"role": "assistant", "content": reply.text or None, "refusal": None}
            if reply.think:
                message["reasoning_content"] = reply.think
            if reply.calls:
                message["tool_calls"] = [_call(call, packed(call)) for call in reply.calls]
            choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": stop}
            answer = {**head, "object": "chat.completion", "choices": [choice], "usage": _usage(told)}
            return "application/json", whole(answer, told)
        head["object"] = "chat.completion.chunk"
        deltas = [(delta, None) for delta in _deltas(reply)]
        chunks = [
            Chunk(event({**head, "choices": [_choice(delta, end)]}), None)
            for delta, end in [*deltas, ({}, stop)]
        ]
        if asked.tells_usage:
            chunks.append(Chunk(event({**head, "choices": [], "usage": _usage(told)}), told))
        chunks.append(Chunk(b"data: [DONE]\n\n", told if asked.tells_usage else None))
        return "text/event-stream; charset=utf-8", chunks

    def fail(self, trouble: Trouble) -> tuple[int, dict[str, Any]]:
        return failed(trouble)


def failed(trouble: Trouble) -> tuple[int, dict[str, Any]]:
    status = STATUSES.get(trouble.kind, trouble.status)
    kind, code = TYPES.get(status, ("server_error", None))
    if trouble.kind == "context-too-long":
        code = "context_length_exceeded"
    return status, {"error": {"message": trouble.message, "type": kind, "param": None, "code": code}}


def told_of(tokens: Tokens) -> Tokens:
    """What is written to the cache is not told apart."""
    return tokens.model_copy(update={"written": 0, "written_hour": 0})


def wanted_json(wanted: Mapping[str, Any], named: Mapping[str, Any]) -> Mapping[str, Any] | None:
    if wanted.get("type") == "json_object":
        return {"type": "object"}
    return mapping(named.get("schema")) or None if wanted.get("type") == "json_schema" else None


def packed(call: Call) -> str:
    return dumped(call.arguments).decode()


def _items(said: list[dict[str, Any]]) -> Iterator[Item]:
    for message in said:
        role, text = message.get("role"), words(message.get("content"))
        if role == "assistant":
            asked = [mapping(call) for call in array(message.get("tool_calls"))]
            functions = [(string(call.get("id")), mapping(call.get("function"))) for call in asked]
            calls = tuple(
                Call(name, string(function.get("name")), unpacked(function.get("arguments")))
                for name, function in functions
            )
            yield Said(text, calls)
        elif role in ("tool", "function"):
            yield Result(string(message.get("tool_call_id")), text)
        elif role == "user":
            yield Told(text)


def _tools(offered: list[Any]) -> Iterator[Tool]:
    for tool in map(mapping, offered):
        function = mapping(tool.get("function"))
        if tool.get("type") == "function":
            yield Tool(string(function.get("name")), mapping(function.get("parameters")))


def _call(call: Call, arguments: str) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}


def _choice(delta: dict[str, Any], end: str | None) -> dict[str, Any]:
    return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": end}


def _deltas(reply: Reply) -> Iterator[dict[str, Any]]:
    yield {"role": "assistant", "content": "" if reply.text else None, "refusal": None}
    for piece in pieces(reply.think):
        yield {"reasoning_content": piece}
    for piece in pieces(reply.text):
        yield {"content": piece}
    for index, call in enumerate(reply.calls):
        yield {"tool_calls": [{"index": index, **_call(call, "")}]}
        for piece in pieces(packed(call)):
            yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}


def _usage(told: Tokens) -> dict[str, Any]:
    return {
        "prompt_tokens": told.input,
        "completion_tokens": told.output,
        "total_tokens": told.total,
        "prompt_tokens_details": {"cached_tokens": told.cached, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": told.reasoning, "audio_tokens": 0},
    }


FORMAT: Format = Completions()
