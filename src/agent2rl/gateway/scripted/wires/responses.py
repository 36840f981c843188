"""OpenAI Responses."""

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
from agent2rl.gateway.scripted.wires.chat import failed, packed, told_of, wanted_json

RESULTS = ("function_call_output", "custom_tool_call_output", "local_shell_call_output")


class Responses:
    def read(self, body: Mapping[str, Any]) -> Asked:
        given = body.get("input")
        said = [{"role": "user", "content": given}] if isinstance(given, str) else messages(given, "input")
        system = [words(one.get("content")) for one in said if one.get("role") in ("system", "developer")]
        most, wanted = body.get("max_output_tokens"), mapping(mapping(body.get("text")).get("format"))
        return Asked(
            wire="openai-responses",
            model=model(body),
            stream=body.get("stream") is True,
            items=tuple(_items(said)),
            tools=tuple(_tools(array(body.get("tools")))),
            system="\n".join([string(body.get("instructions")), *system]),
            most_tokens=most if isinstance(most, int) else None,
            schema=wanted_json(wanted, wanted),
            after=string(body.get("previous_response_id")).removeprefix("resp_") or None,
        )

    def write(self, asked: Asked, reply: Reply) -> tuple[str, list[Chunk]]:
        told = told_of(reply.tokens)
        begun = _response(asked, reply)
        output = [item for item, _ in _outputs(reply)]
        done = {**begun, "status": "completed", "output": output, "usage": _usage(told)}
        if not asked.stream:
            return "application/json", whole(done, told)
        events: list[dict[str, Any]] = [
            {"type": "response.created", "response": begun},
            {"type": "response.in_progress", "response": begun},
        ]
        for index, (item, steps) in enumerate(_outputs(reply)):
            place = {"output_index": index}
            opened = {**item, "status": "in_progress", **_emptied(item)}
            events.append({"type": "response.output_item.added", **place, "item": opened})
            events += [{**step, **place, "item_id": item["id"]} for step in steps]
            events.append({"type": "response.output_item.done", **place, "item": item})
        events.append({"type": "response.completed", "response": done})
        chunks = [
            Chunk(event({**one, "sequence_number": number}, one["type"]), None)
            for number, one in enumerate(events)
        ]
        chunks[-1] = Chunk(chunks[-1].data, told)
        return "text/event-stream; charset=utf-8", chunks

    def fail(self, trouble: Trouble) -> tuple[int, dict[str, Any]]:
        return failed(trouble)


def _items(said: list[dict[str, Any]]) -> Iterator[Item]:
    for one in said:
        kind, call = one.get("type", "message"), string(one.get("call_id"))
        if kind == "function_call":
            yield Said(calls=(Call(call, string(one.get("name")), unpacked(one.get("arguments"))),))
        elif kind == "custom_tool_call":
            yield Said(calls=(Call(call, string(one.get("name")), string(one.get("input")), "custom"),))
        elif kind == "local_shell_call":
            yield Said(calls=(Call(call, "local_shell", one.get("action"), "local-shell"),))
        elif kind in RESULTS:
            yield Result(call, words(one.get("output")))
        elif kind == "message" and one.get("role") == "assistant":
            yield Said(words(one.get("content")))
        elif kind == "message" and one.get("role") == "user":
            yield Told(words(one.get("content")))


def _tools(offered: list[Any]) -> Iterator[Tool]:
    for tool in map(mapping, offered):
        kind, name = tool.get("type"), string(tool.get("name"))
        if kind == "function":
            yield Tool(name, mapping(tool.get("parameters")))
        elif kind == "custom":
            yield Tool(name, kind="custom")
        elif kind == "local_shell":
            yield Tool("local_shell", kind="local-shell")


def _response(asked: Asked, reply: Reply) -> dict[str, Any]:
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


def _outputs(reply: Reply) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Each item of an answer, and what a stream says of it between its beginning and its end."""
    if reply.think:
        part = {"type": "summary_text", "text": reply.think}
        name, place = "response.reasoning_summary", {"summary_index": 0}
        steps = [
            {"type": f"{name}_part.added", **place, "part": {**part, "text": ""}},
            *({"type": f"{name}_text.delta", **place, "delta": piece} for piece in pieces(reply.think)),
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
                for piece in pieces(reply.text)
            ),
            {"type": "response.output_text.done", **place, "text": reply.text, "logprobs": []},
            {"type": "response.content_part.done", **place, "part": text},
        ]
        item = {"id": f"msg_{reply.id}", "type": "message", "role": "assistant", "content": [text]}
        yield {**item, "status": "completed"}, steps
    for number, call in enumerate(reply.calls):
        yield _call(call, f"{reply.id}{number}")


def _call(call: Call, name: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    if call.kind == "local-shell":
        item = {"id": f"lsh_{name}", "type": "local_shell_call", "call_id": call.id, "action": call.arguments}
        return {**item, "status": "completed"}, []
    if call.kind == "custom":
        text, key, kind = string(call.arguments), "input", "response.custom_tool_call_input"
        item = {"id": f"ctc_{name}", "type": "custom_tool_call"}
    else:
        text, key, kind = packed(call), "arguments", "response.function_call_arguments"
        item = {"id": f"fc_{name}", "type": "function_call"}
    steps = [{"type": f"{kind}.delta", "delta": piece} for piece in pieces(text)]
    last = {"type": f"{kind}.done", key: text, **({"name": call.name} if key == "arguments" else {})}
    item |= {"call_id": call.id, "name": call.name, key: text, "status": "completed"}
    return item, [*steps, last]


def _emptied(item: dict[str, Any]) -> dict[str, Any]:
    """What an item has not yet when it begins."""
    empty: dict[str, Any] = {"content": [], "summary": [], "arguments": "", "input": ""}
    return {key: empty[key] for key in item if key in empty}


def _usage(told: Tokens) -> dict[str, Any]:
    return {
        "input_tokens": told.input,
        "input_tokens_details": {"cached_tokens": told.cached},
        "output_tokens": told.output,
        "output_tokens_details": {"reasoning_tokens": told.reasoning},
        "total_tokens": told.total,
    }


FORMAT: Format = Responses()
