"""Gemini generateContent and streamGenerateContent."""

import re
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

ERROR_STATES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
STATUSES = {"overloaded": 503, "context-too-long": 400}
OUTPUTS = ("output", "error", "result")


class GeminiGenerateContent:
    def read(self, body: Mapping[str, Any]) -> LlmRequest:
        settings = as_mapping(_get_field(body, "generationConfig"))
        most = _get_field(settings, "maxOutputTokens")
        schema = _get_field(settings, "responseJsonSchema") or _get_field(settings, "responseSchema")
        wants_json = _get_field(settings, "responseMimeType") == "application/json"
        return LlmRequest(
            wire="gemini",
            model=require_model(body),
            stream=body.get("stream") is True,
            items=tuple(_parse_items(require_messages(body.get("contents"), "contents"))),
            tools=tuple(_parse_tools(as_list(body.get("tools")))),
            system=extract_text(as_mapping(_get_field(body, "systemInstruction")).get("parts")),
            most_tokens=most if isinstance(most, int) else None,
            schema=as_mapping(schema) or ({"type": "object"} if wants_json else None),
            events=body.get("alt") == "sse",
        )

    def write(self, request: LlmRequest, reply: LlmReply) -> tuple[str, list[ResponseChunk]]:
        tokens = select_reported_tokens(reply.tokens)
        begun = TokenCounts(input=tokens.input, cached=tokens.cached)
        if not request.stream:
            return "application/json", render_whole_answer(
                _render_answer(request, reply, [*_render_parts(reply)], tokens, "STOP"), tokens
            )
        parts = [piece for part in _render_parts(reply) for piece in _split_part(part)] or [{"text": ""}]
        answers = [(_render_answer(request, reply, [part], begun), begun) for part in parts[:-1]]
        answers.append((_render_answer(request, reply, parts[-1:], tokens, "STOP"), tokens))
        if request.events:
            return "text/event-stream", [
                ResponseChunk(render_sse_event(answer), so_far) for answer, so_far in answers
            ]
        joints = [b"[", *[b","] * (len(answers) - 1)]
        chunks = [
            ResponseChunk(joint + dump_json(one), so_far)
            for joint, (one, so_far) in zip(joints, answers, strict=True)
        ]
        return "application/json", [*chunks, ResponseChunk(b"]", tokens)]

    def fail(self, trouble: ProviderError) -> tuple[int, dict[str, Any]]:
        status = STATUSES.get(trouble.kind, trouble.status)
        state = ERROR_STATES.get(status, "UNAVAILABLE" if status >= 500 else "INVALID_ARGUMENT")
        error: dict[str, Any] = {"code": status, "message": trouble.message, "status": state}
        if trouble.retry_after is not None:
            kind = "type.googleapis.com/google.rpc.RetryInfo"
            error["details"] = [{"@type": kind, "retryDelay": f"{trouble.retry_after}s"}]
        return status, {"error": error}


def select_reported_tokens(tokens: TokenCounts) -> TokenCounts:
    """Return the usage; this format does not report cache writes separately."""
    return tokens.model_copy(update={"written": 0, "written_hour": 0})


def _get_field(value: Mapping[str, Any], name: str) -> Any:
    """Read a field by its camelCase or its snake_case name."""
    return value.get(name, value.get(re.sub("[A-Z]", lambda big: f"_{big[0].lower()}", name)))


def _parse_items(contents: list[dict[str, Any]]) -> Iterator[Item]:
    for content in contents:
        for part in map(as_mapping, as_list(content.get("parts"))):
            function_call, given = (
                as_mapping(_get_field(part, "functionCall")),
                as_mapping(_get_field(part, "functionResponse")),
            )
            if function_call:
                call = WireToolCall(
                    as_string(function_call.get("id")),
                    as_string(function_call.get("name")),
                    function_call.get("args") or {},
                )
                yield AssistantMessage(calls=(call,))
            elif given:
                yield ToolResultMessage(as_string(given.get("id")), _extract_output(given.get("response")))
            elif part.get("thought") is True:
                continue
            elif content.get("role") == "model":
                yield AssistantMessage(as_string(part.get("text")))
            elif text := as_string(part.get("text")):
                yield UserMessage(text)


def _extract_output(response: Any) -> str:
    values = as_mapping(response)
    return (
        "\n".join(as_string(values[name]) for name in OUTPUTS if values.get(name))
        or dump_json(response).decode()
    )


def _parse_tools(offered: list[Any]) -> Iterator[OfferedTool]:
    for tool in map(as_mapping, offered):
        for one in map(as_mapping, as_list(_get_field(tool, "functionDeclarations"))):
            schema = as_mapping(_get_field(one, "parametersJsonSchema")) or as_mapping(one.get("parameters"))
            yield OfferedTool(as_string(one.get("name")), schema)


def _render_parts(reply: LlmReply) -> Iterator[dict[str, Any]]:
    if reply.think:
        yield {"text": reply.think, "thought": True}
    if reply.text:
        yield {"text": reply.text}
    for call in reply.calls:
        yield {"functionCall": {"id": call.id, "name": call.name, "args": call.arguments}}


def _split_part(part: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Split texts into chunks; calls stay whole."""
    if "text" not in part:
        yield part
    for piece in split_text(part.get("text", "")):
        yield {**part, "text": piece}


def _render_answer(
    request: LlmRequest,
    reply: LlmReply,
    parts: list[dict[str, Any]],
    tokens: TokenCounts,
    end: str | None = None,
) -> dict[str, Any]:
    candidate: dict[str, Any] = {"content": {"parts": parts, "role": "model"}, "index": 0}
    if end:
        candidate["finishReason"] = end
    return {
        "candidates": [candidate],
        "usageMetadata": _render_usage(tokens),
        "modelVersion": request.model,
        "responseId": reply.id,
    }


def _render_usage(tokens: TokenCounts) -> dict[str, Any]:
    return {
        "promptTokenCount": tokens.input,
        "cachedContentTokenCount": tokens.cached,
        "candidatesTokenCount": tokens.output - tokens.reasoning,
        "thoughtsTokenCount": tokens.reasoning,
        "totalTokenCount": tokens.total,
    }


FORMAT: WireFormat = GeminiGenerateContent()
