"""What a step says to the agent that asks: texts with what was captured, calls as the agent's own tools."""

from collections.abc import Mapping

from pydantic import JsonValue

from agent2rl.core.llm import Tokens, Wire
from agent2rl.gateway.scripted.manner import MARKER, Manner, written
from agent2rl.gateway.scripted.script import SLOT, Call, Fail, Step
from agent2rl.gateway.scripted.talk import Call as Called
from agent2rl.gateway.scripted.talk import Kind, Reply, Trouble

PREFIXES: Mapping[Wire, str] = {"anthropic": "toolu_", "gemini": "", "openai-chat": "call_"}
MESSAGES: Mapping[int | str, str] = {
    400: "The request is not valid.",
    401: "The key is not valid.",
    429: "Too many requests: this would exceed your rate limit.",
    500: "The server had an error while processing the request.",
    529: "Overloaded",
    "overloaded": "Overloaded",
    "context-too-long": "prompt is too long: this model's maximum context length is 200000 tokens, however "
    "you requested 250000 tokens. Please reduce the length of the messages.",
}


class ScriptFault(Exception):
    """The script cannot go on."""


def reply(
    step: Step, name: str, wire: Wire, manner: Manner | None, captured: Mapping[str, str], tokens: Tokens
) -> Reply:
    """`name` is the answer's id."""
    text = _put(step.say or step.end or "", captured)
    think = _put(step.think or "", captured)
    if manner and manner.fence:
        return Reply(name, _fenced(step, text, manner.fence, captured), think, tokens=tokens)
    calls = [_called(call, manner, captured) for call in step.asks]
    if step.end and manner and (ending := manner.ending(text)):
        calls.append(ending)
    shell = manner.shell if manner else None
    kinds = {shell.name: shell.kind} if shell else {}
    return Reply(name, text, think, _numbered(calls, name, wire, kinds), tokens)


def waiting(call: tuple[str, JsonValue], name: str, wire: Wire, tokens: Tokens) -> Reply:
    """An answer that only waits for a command to end."""
    return Reply(name, calls=_numbered([call], name, wire, {}), tokens=tokens)


def _numbered(
    calls: list[tuple[str, JsonValue]], name: str, wire: Wire, kinds: Mapping[str, Kind]
) -> tuple[Called, ...]:
    prefix = PREFIXES.get(wire, "call_")
    return tuple(
        Called(f"{prefix}{name}n{number}", tool, arguments, kinds.get(tool, "function"))
        for number, (tool, arguments) in enumerate(calls)
    )


def trouble(fail: Fail) -> Trouble:
    status, kind = (fail.status, "") if isinstance(fail.status, int) else (500, fail.status)
    message = fail.message or MESSAGES.get(fail.status) or MESSAGES[500 if status >= 500 else 400]
    return Trouble(status, kind, message, fail.retry_after)


def _called(call: Call, manner: Manner | None, captured: Mapping[str, str]) -> tuple[str, JsonValue]:
    if call.tool:
        return call.tool, _put_all(call.arguments, captured)
    if manner is None:
        raise ScriptFault("The script runs a shell command, and the request offers no tool for that.")
    return manner.run(_command(call, captured), call.timeout)


def _command(call: Call, captured: Mapping[str, str]) -> str:
    if call.write_file:
        return written(_put(call.write_file.path, captured), _put(call.write_file.text, captured))
    return _put(call.shell or "", captured)


def _fenced(step: Step, text: str, language: str, captured: Mapping[str, str]) -> str:
    """All of it as text: one block, since agents that read blocks take one at a time."""
    if any(call.tool for call in step.asks):
        raise ScriptFault("The script calls a tool by name, and this agent reads commands from text.")
    commands = [f"echo {MARKER}"] if step.end else [_command(call, captured) for call in step.asks]
    block = f"```{language}\n" + "\n".join(commands) + "\n```" if commands else ""
    return f"{text}\n\n{block}".strip()


def _put(text: str, captured: Mapping[str, str]) -> str:
    return SLOT.sub(lambda slot: captured.get(slot[1], ""), text)


def _put_all(value: JsonValue, captured: Mapping[str, str]) -> JsonValue:
    if isinstance(value, str):
        return _put(value, captured)
    if isinstance(value, list):
        return [_put_all(part, captured) for part in value]
    if isinstance(value, dict):
        return {name: _put_all(part, captured) for name, part in value.items()}
    return value
