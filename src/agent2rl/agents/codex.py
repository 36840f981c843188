"""OpenAI's Codex CLI, headless."""

import json
import re
import shlex
from pathlib import Path, PurePosixPath

from agent2rl.core.agent import AgentPackage, Brief, DrivenAgent, DriverLlm, ProgramAgent
from agent2rl.core.llm import TokenCounts
from agent2rl.core.sandbox import Command
from agent2rl.core.self_reports import Transcript
from agent2rl.record.transcript_builder import (
    TranscriptBuilder,
    complete_transcript,
    read_json_log,
    read_session_files,
)
from agent2rl.record.untrusted_files import JsonNode

FLAGS = ("--json", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")
KEY = "CODEX_DRIVER_KEY"
PROFILE = 'export PATH={bin}:"$PATH"\n'
"""It runs commands in login shells, which reset PATH and so lose the Python environment."""

ROLLOUTS = PurePosixPath(".codex/sessions/*/*/*/rollout-*.jsonl")
"""Where it keeps its threads: one file each, in folders by date."""
EXIT_CODE = re.compile(r"^Process exited with code (\d{1,9})$", re.MULTILINE)


def _build_command(brief: Brief) -> Command:
    start = ("exec", "resume", "--last") if brief.resumed else ("exec",)
    return Command(
        argv=(brief.program_path("codex"), *start, *FLAGS, "-"),
        environment={**brief.environment, KEY: brief.driver.key},
        files={
            ".codex/config.toml": _render_config(brief.driver, brief.timeout_ms),
            ".bash_profile": PROFILE.format(bin=shlex.quote(str(PurePosixPath(brief.python).parent))),
        },
        # By stdin, and the interrupt to the program alone: see claude_code.
        input=brief.prompt,
        interrupt="leader",
    )


def _render_config(llm: DriverLlm, timeout_ms: int) -> str:
    """Return the configuration. By default Codex hides variables that look like secrets from its commands,
    which need ROLLOUT_KEY, so that is turned off."""
    return f"""\
model = {json.dumps(llm.model)}
model_provider = "agent2rl"
web_search = "disabled"
check_for_update_on_startup = false
background_terminal_max_timeout = {timeout_ms}

[model_providers.agent2rl]
name = "agent2rl"
base_url = "{llm.url}/v1"
env_key = "{KEY}"
wire_api = "responses"

[shell_environment_policy]
inherit = "all"
ignore_default_excludes = true

[analytics]
enabled = false

[feedback]
enabled = false
"""


def _read_transcript(log: Path, home: Path) -> Transcript:
    """Read the log. Only the rollout files have the model, and the usage of a turn that was cut off."""
    printed = read_json_log("codex", log, _read_event).build_transcript()
    stored = read_session_files("codex", home, (ROLLOUTS,), _read_event).build_transcript()
    return complete_transcript(printed, stored)


def _read_event(event: JsonNode, notes: TranscriptBuilder) -> None:
    """Read an event that it printed, or a row of a rollout file, which has a `payload`."""
    if event["payload"]:
        _read_rollout_row(event, notes)
        return
    match event["type"].text:
        case "thread.started":
            notes.start_session()
            notes.session = event["thread_id"].text
        case "item.started" | "item.updated" | "item.completed":
            _read_item(event["item"], notes)
        case "turn.completed":
            notes.error = ""
            _count_usage(event["usage"], notes)
        case "turn.failed":
            notes.error = event["error"]["message"].text
        case "turn.started" | "error":
            pass  # `turn.failed` reports errors too
        case _:
            notes.unread += 1


def _read_item(item: JsonNode, notes: TranscriptBuilder) -> None:
    """Read an item, which is reported at its end and maybe at its start. A warning has the type `error`."""
    kind, name, done = item["type"].text, item["id"].text, item["status"].text != "in_progress"
    match kind:
        case "error":
            notes.add_text(notes.open_step("system"), item["message"].text)
        case "agent_message":
            notes.add_text(notes.current_step("agent"), item["text"].text)
        case "reasoning":
            notes.add_reasoning(notes.current_step("agent"), item["text"].text)
        case "command_execution":
            notes.add_tool_call(
                notes.current_step("agent"), name, "shell", JsonNode({"command": item["command"].text})
            )
            if done:
                notes.add_observation(name, item["aggregated_output"].text, item["exit_code"].value != 0)
        case _:  # changed files, to-do lists, MCP tools: each has fields of its own
            notes.add_tool_call(notes.current_step("agent"), name, kind, item)
            if done:
                notes.add_observation(name, item["result"].shown, item["status"].text == "failed")


def _count_usage(usage: JsonNode, notes: TranscriptBuilder) -> None:
    """Count usage, which is cumulative for a thread, even after it is resumed."""
    used = TokenCounts(
        input=usage["input_tokens"].count,
        cached=usage["cached_input_tokens"].count,
        written=usage["cache_write_input_tokens"].count,
        output=usage["output_tokens"].count,
        reasoning=usage["reasoning_output_tokens"].count,
    )
    notes.add_tokens(used, of=notes.session)


# Rollout files


def _read_rollout_row(row: JsonNode, notes: TranscriptBuilder) -> None:
    payload = row["payload"]
    match row["type"].text:
        case "session_meta":
            notes.start_session()
            notes.session = payload["id"].text
            notes.version = payload["cli_version"].text or notes.version
        case "turn_context":
            notes.model = payload["model"].text or notes.model
        case "response_item":
            _read_response_item(payload, row["timestamp"].when, notes)
        case "event_msg":
            _read_rollout_event(payload, notes)
        case "token_usage_record":
            _count_usage(payload["thread_token_usage"], notes)
        case "compacted" | "world_state":
            pass
        case _:
            notes.unread += 1


def _read_response_item(item: JsonNode, at: float | None, notes: TranscriptBuilder) -> None:
    match item["type"].text:
        case "message":
            _read_rollout_message(item, at, notes)
        case "reasoning":
            text = item["summary"].shown or item["content"].shown
            notes.add_reasoning(notes.current_step("agent", at), text)
        case "function_call" | "custom_tool_call":
            arguments = _name_command((item["arguments"] or item["input"]).unpacked)
            turn = notes.current_step("agent", at)
            notes.add_tool_call(turn, item["call_id"].text, item["name"].text, arguments)
        case "function_call_output" | "custom_tool_call_output":
            output = item["output"]
            notes.add_observation(item["call_id"].text, output.shown, _has_failed(output))
        case _:
            notes.unread += 1


def _read_rollout_message(item: JsonNode, at: float | None, notes: TranscriptBuilder) -> None:
    match item["role"].text:
        case "assistant":
            turn = notes.current_step("agent", at)
        case "user":
            turn = notes.open_step("user", at=at)
        case _:
            turn = notes.open_step("system", at=at)
    notes.add_text(turn, item["content"].shown)


def _name_command(arguments: JsonNode) -> JsonNode:
    """Give a shell command the name and the form that it has in the log: `command`, a text."""
    command = arguments["cmd"].text or shlex.join(part.text for part in arguments["command"])
    if not command:
        return arguments
    return JsonNode({**{name: part.value for name, part in arguments.entries}, "command": command})


def _has_failed(output: JsonNode) -> bool:
    code = output.unpacked["metadata"]["exit_code"].count
    ended = EXIT_CODE.search(output.shown)
    return code != 0 or (ended is not None and int(ended[1]) != 0)


def _read_rollout_event(event: JsonNode, notes: TranscriptBuilder) -> None:
    """Read the events that say more than the response items do."""
    match event["type"].text:
        case "token_count":
            if usage := event["info"]["total_token_usage"]:
                _count_usage(usage, notes)
        case "task_complete":
            notes.error = event["error"]["message"].text
        case "error":
            notes.error = event["message"].text


AGENT: DrivenAgent = ProgramAgent(
    package=AgentPackage("npm", "@openai/codex", "0.166.0", program="codex"),
    wires=("openai-responses",),
    start=_build_command,
    read=_read_transcript,
)
