"""Gemini generateContent and streamGenerateContent."""

import re
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

STATES = {
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


class GenerateContent:
    def read(self, body: Mapping[str, Any]) -> Asked:
        settings = mapping(_get(body, "generationConfig"))
        most = _get(settings, "maxOutputTokens")
        schema = _get(settings, "responseJsonSchema") or _get(settings, "responseSchema")
        wants_json = _get(settings, "responseMimeType") == "application/json"
        return Asked(
            wire="gemini",
            model=model(body),
            stream=body.get("stream") is True,
            items=tuple(_items(messages(body.get("contents"), "contents"))),
            tools=tuple(_tools(array(body.get("tools")))),
            system=words(mapping(_get(body, "systemInstruction")).get("parts")),
            most_tokens=most if isinstance(most, int) else None,
            schema=mapping(schema) or ({"type": "object"} if wants_json else None),
            events=body.get("alt") == "sse",
        )

    def write(self, asked: Asked, reply: Reply) -> tuple[str, list[Chunk]]:
        told = told_of(reply.tokens)
        begun = Tokens(input=told.input, cached=told.cached)
        if not asked.stream:
            return "application/json", whole(_answer(asked, reply, [*_parts(reply)], told, "STOP"), told)
        parts = [piece for part in _parts(reply) for piece in _cut(part)] or [{"text": ""}]
        answers = [(_answer(asked, reply, [part], begun), begun) for part in parts[:-1]]
        answers.append((_answer(asked, reply, parts[-1:], told, "STOP"), told))
        if asked.events:
            return "text/event-stream", [Chunk(event(answer), so_far) for answer, so_far in answers]
        joints = [b"[", *[b","] * (len(answers) - 1)]
        chunks = [
            Chunk(joint + dumped(one), so_far) for joint, (one, so_far) in zip(joints, answers, strict=True)
        ]
        return "application/json", [*chunks, Chunk(b"]", told)]

    def fail(self, trouble: Trouble) -> tuple[int, dict[str, Any]]:
        status = STATUSES.get(trouble.kind, trouble.status)
        state = STATES.get(status, "UNAVAILABLE" if status >= 500 else "INVALID_ARGUMENT")
        error: dict[str, Any] = {"code": status, "message": trouble.message, "status": state}
        if trouble.retry_after is not None:
            kind = "type.googleapis.com/google.rpc.RetryInfo"
            error["details"] = [{"@type": kind, "retryDelay": f"{trouble.retry_after}s"}]
        return status, {"error": error}


def told_of(tokens: Tokens) -> Tokens:
    """What is written to the cache is not told apart."""
    return tokens.model_copy(update={"written": 0, "written_hour": 0})


def _get(value: Mapping[str, Any], name: str) -> Any:
    """Names with capitals may be written with underscores too."""
    return value.get(name, value.get(re.sub("[A-Z]", lambda big: f"_{big[0].lower()}", name)))


def _items(said: list[dict[str, Any]]) -> Iterator[Item]:
    for content in said:
        for part in map(mapping, array(content.get("parts"))):
            asked, given = mapping(_get(part, "functionCall")), mapping(_get(part, "functionResponse"))
            if asked:
                call = Call(string(asked.get("id")), string(asked.get("name")), asked.get("args") or {})
                yield Said(calls=(call,))
            elif given:
                yield Result(string(given.get("id")), _output(given.get("response")))
            elif part.get("thought") is True:
                continue
            elif content.get("role") == "model":
                yield Said(string(part.get("text")))
            elif text := string(part.get("text")):
                yield Told(text)


def _output(response: Any) -> str:
    values = mapping(response)
    return (
        "\n".join(string(values[name]) for name in OUTPUTS if values.get(name)) or dumped(response).decode()
    )


def _tools(offered: list[Any]) -> Iterator[Tool]:
    for tool in map(mapping, offered):
        for one in map(mapping, array(_get(tool, "functionDeclarations"))):
            schema = mapping(_get(one, "parametersJsonSchema")) or mapping(one.get("parameters"))
            yield Tool(string(one.get("name")), schema)


def _parts(reply: Reply) -> Iterator[dict[str, Any]]:
    if reply.think:
        yield {"text": reply.think, "thought": True}
    if reply.text:
        yield {"text": reply.text}
    for call in reply.calls:
        yield {"functionCall": {"id": call.id, "name": call.name, "args": call.arguments}}


def _cut(part: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Texts come in pieces, calls whole."""
    if "text" not in part:
        yield part
    for piece in pieces(part.get("text", "")):
        yield {**part, "text": piece}


def _answer(
    asked: Asked, reply: Reply, parts: list[dict[str, Any]], told: Tokens, end: str | None = None
) -> dict[str, Any]:
    candidate: dict[str, Any] = {"content": {"parts": parts, "role": "model"}, "index": 0}
    if end:
        candidate["finishReason"] = end
    return {
        "candidates": [candidate],
        "usageMetadata": _usage(told),
        "modelVersion": asked.model,
        "responseId": reply.id,
    }


def _usage(told: Tokens) -> dict[str, Any]:
    return {
        "promptTokenCount": told.input,
        "cachedContentTokenCount": told.cached,
        "candidatesTokenCount": told.output - told.reasoning,
        "thoughtsTokenCount": told.reasoning,
        "totalTokenCount": told.total,
    }


FORMAT: Format = GenerateContent()
