"""Turns a script's step into a reply: text with captured values, and calls of the asking agent's own tools.

The tools that a request offers show how the agent runs a shell command and how it finishes. No agent is
recognized by name: a shell is a tool with a shell's name, or else any tool that takes a command; other
required arguments are filled in from the tool's schema.
"""

import base64
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from pydantic import JsonValue

from agent2rl.core.llm import TokenCounts, Wire
from agent2rl.fake_llm.messages import (
    Kind,
    LlmReply,
    LlmRequest,
    OfferedTool,
    ProviderError,
    as_mapping,
)
from agent2rl.fake_llm.messages import WireToolCall as Called
from agent2rl.fake_llm.script_file import CAPTURE_SLOT, ScriptCall, ScriptedFailure, ScriptStep

# The agent's tools for running commands and for finishing

SHELL_TOOLS = (
    "bash",
    "exec_command",
    "shell_command",
    "shell",
    "local_shell",
    "run_shell_command",
    "terminal",
    "execute_bash",
    "container.exec",
    "run_command",
    "execute_command",
    "run_terminal_cmd",
)
COMMAND_FIELDS = ("command", "cmd", "script", "commands", "input", "code")
FINISH_TOOLS = ("finish", "attempt_completion", "submit")
MARKER = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
"""mini-swe-agent ends when the output of a command starts with this."""
FENCED = re.compile(r"```(mswea_bash_command|bash)\b")
SUBSTITUTION_REFUSING_SHELLS = ("run_shell_command",)
"""Shells that refuse anything that looks like a substitution, quoted or not: Gemini CLI's."""
SUBSTITUTION = re.compile(r"\$\(|`|[<>]\s*\(")
RUNNING = re.compile(r"Process running with session ID (\d+)")
"""Codex's message about a command that is still running; `write_stdin` waits for it."""
POLL = "write_stdin"
POLL_SECONDS = 300
PLACEHOLDER_TEXT = "Run the next command"
PREFERRED_ENUM_VALUES = ("LOW", "low", "UNKNOWN")
"""Preferred values of an enumeration: OpenHands asks for the risk of a command."""


@dataclass(frozen=True)
class AgentTools:
    shell: OfferedTool | None
    fence: str = ""
    """Language of the fenced blocks in answers from which the agent reads commands."""
    finish: OfferedTool | None = None
    """Tool to call with the final message."""
    marker: bool = False
    """Whether the agent ends when a command prints MARKER."""

    poll: OfferedTool | None = None
    """Tool that waits for a running command."""

    def build_shell_call(self, command: str, seconds: float | None) -> tuple[str, JsonValue]:
        """Return the tool's name and its arguments."""
        assert self.shell
        if self.shell.name in SUBSTITUTION_REFUSING_SHELLS and SUBSTITUTION.search(command):
            command = _encode_command(command)
        return self.shell.name, _build_arguments(self.shell, command, seconds)

    def build_poll_call(self, result: str) -> tuple[str, JsonValue] | None:
        """Return the call that waits for a running command; None if it has ended."""
        running = RUNNING.search(result)
        if not (running and self.poll):
            return None
        properties = as_mapping(self.poll.schema.get("properties"))
        return self.poll.name, {"session_id": int(running[1]), **_build_timeouts(properties, POLL_SECONDS)}

    def build_end_call(self, text: str) -> tuple[str, JsonValue] | None:
        """Return the call that ends the agent; None if an answer without a call ends it."""
        if self.finish:
            properties = as_mapping(self.finish.schema.get("properties"))
            field = next((name for name in ("message", "result", "answer") if name in properties), "message")
            return self.finish.name, {**_fill_required(self.finish.schema), field: text}
        return self.build_shell_call(f"echo {MARKER}", None) if self.marker and self.shell else None


def detect_agent_tools(request: LlmRequest) -> AgentTools | None:
    """Return the agent's tools; None if it cannot run commands."""
    texts = [request.system, *(item.text for item in request.items[:2])]
    marker = any(MARKER in text for text in texts)
    shell = _find_shell_tool(request.tools)
    if shell is None:
        fences = [fence[1] for text in texts if marker and (fence := FENCED.search(text))]
        return AgentTools(None, fences[0], marker=True) if fences else None
    finish = next((tool for tool in request.tools if tool.name in FINISH_TOOLS), None)
    poll = next((tool for tool in request.tools if tool.name == POLL), None)
    return AgentTools(shell, finish=finish, marker=marker, poll=poll)


def build_write_command(path: str, text: str) -> str:
    """Return a shell command that writes a file."""
    end = "END_OF_FILE"
    while end in text.splitlines():
        end += "_"
    body = text if text.endswith("\n") or not text else text + "\n"
    folder, name = shlex.quote(str(PurePosixPath(path).parent)), shlex.quote(path)
    return f"mkdir -p {folder} && cat > {name} <<'{end}'\n{body}{end}"


def _encode_command(command: str) -> str:
    """Encode the command, so that nothing in it looks like a substitution."""
    return f"base64 -d <<'END' | bash\n{base64.encodebytes(command.encode()).decode()}END"


def _find_shell_tool(tools: Sequence[OfferedTool]) -> OfferedTool | None:
    named = {
        tool.name.lower(): tool
        for tool in reversed(tools)
        if tool.kind != "function" or _find_command_field(tool)
    }
    for name in SHELL_TOOLS:
        if name in named:
            return named[name]
    takers = [tool for tool in tools if _find_command_field(tool) in ("command", "cmd")]
    return takers[0] if takers else None


def _find_command_field(tool: OfferedTool) -> str | None:
    """Return the name of the argument for the command."""
    properties = as_mapping(tool.schema.get("properties"))
    return next((name for name in COMMAND_FIELDS if name in properties), None)


def _build_arguments(tool: OfferedTool, command: str, seconds: float | None) -> JsonValue:
    shell: list[JsonValue] = ["bash", "-c", command]
    if tool.kind == "custom":
        return command
    if tool.kind == "local-shell":
        return {"type": "exec", "command": shell, "env": {}}
    field = _find_command_field(tool)
    assert field
    properties = as_mapping(tool.schema.get("properties"))
    listed = _read_schema_type(as_mapping(properties[field])) == "array"
    arguments = _fill_required(tool.schema) | {field: shell if listed else command}
    if "login" in properties:
        arguments["login"] = False  # a login shell would set another PATH than the agent's
    if seconds is not None:
        arguments |= _build_timeouts(properties, seconds)
    return arguments


def _build_timeouts(properties: Mapping[str, Any], seconds: float) -> dict[str, JsonValue]:
    """Return each timeout argument of the tool, in its own unit."""
    timeouts: dict[str, JsonValue] = {}
    for name in ("timeout", "timeout_ms", "timeout_seconds", "yield_time_ms"):
        if name in properties:
            about = str(as_mapping(properties[name]).get("description", "")).lower()
            timeouts[name] = round(seconds * (1000 if name.endswith("_ms") or "milliseconds" in about else 1))
    return timeouts


def _fill_required(schema: Mapping[str, Any]) -> dict[str, JsonValue]:
    properties = as_mapping(schema.get("properties"))
    required = schema.get("required")
    names = [name for name in required if isinstance(name, str)] if isinstance(required, list) else []
    return {name: fill_schema(as_mapping(properties.get(name)), name) for name in names}


def fill_schema(schema: Mapping[str, Any], name: str = "") -> JsonValue:
    """Return a minimal value that fits a JSON schema."""
    if "default" in schema or "const" in schema:
        given: JsonValue = schema.get("const", schema.get("default"))
        return given
    choices = schema.get("enum")
    if isinstance(choices, list) and choices:
        chosen: JsonValue = next((one for one in PREFERRED_ENUM_VALUES if one in choices), choices[0])
        return chosen
    for some in ("anyOf", "oneOf", "allOf"):
        if isinstance(schema.get(some), list) and schema[some]:
            return fill_schema(as_mapping(schema[some][0]), name)
    match _read_schema_type(schema):
        case "object":
            return dict(_fill_required(schema))
        case "array":
            least = schema.get("minItems")
            return [fill_schema(as_mapping(schema.get("items")))] * (least if isinstance(least, int) else 0)
        case "boolean":
            return False
        case "integer" | "number":
            least = schema.get("minimum")
            return least if isinstance(least, int | float) else 0
        case "null":
            return None
        case _:
            return PLACEHOLDER_TEXT


def _read_schema_type(schema: Mapping[str, Any]) -> str:
    """Return the type in lower case (Gemini uses capitals); the first one if there are several."""
    kind = schema.get("type")
    kind = kind[0] if isinstance(kind, list) and kind else kind
    return kind.lower() if isinstance(kind, str) else "object" if "properties" in schema else ""


# Replies

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
    """The script cannot continue."""


def build_reply(
    step: ScriptStep,
    name: str,
    wire: Wire,
    tools: AgentTools | None,
    captured: Mapping[str, str],
    tokens: TokenCounts,
) -> LlmReply:
    """Build the reply of a step; `name` is its id."""
    text = _fill_slots(step.say or step.end or "", captured)
    think = _fill_slots(step.think or "", captured)
    if tools and tools.fence:
        return LlmReply(name, _render_fenced(step, text, tools.fence, captured), think, tokens=tokens)
    calls = [_resolve_call(call, tools, captured) for call in step.asks]
    if step.end and tools and (ending := tools.build_end_call(text)):
        calls.append(ending)
    shell = tools.shell if tools else None
    kinds = {shell.name: shell.kind} if shell else {}
    return LlmReply(name, text, think, _number_calls(calls, name, wire, kinds), tokens)


def build_poll_reply(call: tuple[str, JsonValue], name: str, wire: Wire, tokens: TokenCounts) -> LlmReply:
    """Build a reply that only waits for a command to end."""
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
    call: ScriptCall, tools: AgentTools | None, captured: Mapping[str, str]
) -> tuple[str, JsonValue]:
    if call.tool:
        return call.tool, _fill_nested_slots(call.arguments, captured)
    if tools is None:
        raise ScriptFault("The script runs a shell command, and the request offers no tool for that.")
    return tools.build_shell_call(_build_command(call, captured), call.timeout)


def _build_command(call: ScriptCall, captured: Mapping[str, str]) -> str:
    if call.write_file:
        return build_write_command(
            _fill_slots(call.write_file.path, captured), _fill_slots(call.write_file.text, captured)
        )
    return _fill_slots(call.shell or "", captured)


def _render_fenced(step: ScriptStep, text: str, language: str, captured: Mapping[str, str]) -> str:
    """Render everything as text with one block, because agents that read blocks take one at a time."""
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
