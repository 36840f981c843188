"""What a step says to the agent that asks: texts with what was captured, calls as the agent's own tools."""

from collections.abc import Mapping

from pydantic import JsonValue

from agent2rl.core.llm import TokenCounts, Wire
from agent2rl.gateway.scripted.agent_tools import MARKER, AgentTools, build_write_command
from agent2rl.gateway.scripted.messages import Kind, LlmReply, ProviderError
from agent2rl.gateway.scripted.messages import WireToolCall as Called
from agent2rl.gateway.scripted.script import CAPTURE_SLOT, ScriptCall, ScriptedFailure, ScriptStep

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


def build_reply(
    step: ScriptStep,
    name: str,
    wire: Wire,
    manner: AgentTools | None,
    captured: Mapping[str, str],
    tokens: TokenCounts,
) -> LlmReply:
    """`name` is the answer's id."""
    text = _fill_slots(step.say or step.end or "", captured)
    think = _fill_slots(step.think or "", captured)
    if manner and manner.fence:
        return LlmReply(name, _render_fenced(step, text, manner.fence, captured), think, tokens=tokens)
    calls = [_resolve_call(call, manner, captured) for call in step.asks]
    if step.end and manner and (ending := manner.build_end_call(text)):
        calls.append(ending)
    shell = manner.shell if manner else None
    kinds = {shell.name: shell.kind} if shell else {}
    return LlmReply(name, text, think, _number_calls(calls, name, wire, kinds), tokens)


def build_poll_reply(call: tuple[str, JsonValue], name: str, wire: Wire, tokens: TokenCounts) -> LlmReply:
    """An answer that only waits for a command to end."""
    return LlmReply(name, calls=_number_calls([call], name, wire, {}), tokens=tokens)


def _number_calls(
    calls: list[tuple[str, JsonValue]], name: str, wire: Wire, kinds: Mapping[str, Kind]
) -> tuple[Called, ...]:
    prefix = PREFIXES.get(wire, "call_")
    return tuple(
        Called(f"{prefix}{name}n{number}", tool, arguments, kinds.get(tool, "function"))
        for number, (tool, arguments) in enumerate(calls)
    )


def build_provider_error(fail: ScriptedFailure) -> ProviderError:
    status, kind = (fail.status, "") if isinstance(fail.status, int) else (500, fail.status)
    message = fail.message or MESSAGES.get(fail.status) or MESSAGES[500 if status >= 500 else 400]
    return ProviderError(status, kind, message, fail.retry_after)


def _resolve_call(
    call: ScriptCall, manner: AgentTools | None, captured: Mapping[str, str]
) -> tuple[str, JsonValue]:
    if call.tool:
        return call.tool, _fill_nested_slots(call.arguments, captured)
    if manner is None:
        raise ScriptFault("The script runs a shell command, and the request offers no tool for that.")
    return manner.build_shell_call(_build_command(call, captured), call.timeout)


def _build_command(call: ScriptCall, captured: Mapping[str, str]) -> str:
    if call.write_file:
        return build_write_command(
            _fill_slots(call.write_file.path, captured), _fill_slots(call.write_file.text, captured)
        )
    return _fill_slots(call.shell or "", captured)


def _render_fenced(step: ScriptStep, text: str, language: str, captured: Mapping[str, str]) -> str:
    """All of it as text: one block, since agents that read blocks take one at a time."""
    if any(call.tool for call in step.asks):
        raise ScriptFault("The script calls a tool by name, and this agent reads commands from text.")
    commands = [f"echo {MARKER}"] if step.end else [_build_command(call, captured) for call in step.asks]
    block = f"```{language}\n" + "\n".join(commands) + "\n```" if commands else ""
    return f"{text}\n\n{block}".strip()


def _fill_slots(text: str, captured: Mapping[str, str]) -> str:
    return CAPTURE_SLOT.sub(lambda slot: captured.get(slot[1], ""), text)


def _fill_nested_slots(value: JsonValue, captured: Mapping[str, str]) -> JsonValue:
    if isinstance(value, str):
        return _fill_slots(value, captured)
    if isinstance(value, list):
        return [_fill_nested_slots(part, captured) for part in value]
    if isinstance(value, dict):
        return {name: _fill_nested_slots(part, captured) for name, part in value.items()}
    return value
