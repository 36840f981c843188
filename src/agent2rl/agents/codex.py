"""OpenAI's Codex CLI, headless."""

import json
from pathlib import Path

from agent2rl.core.agent import AgentPackage, Brief, DrivenAgent, DriverLlm, ProgramAgent
from agent2rl.core.llm import TokenCounts
from agent2rl.core.sandbox import Command
from agent2rl.core.self_reports import Transcript
from agent2rl.record.transcript_builder import TranscriptBuilder, read_json_log
from agent2rl.record.untrusted_files import JsonNode

FLAGS = ("--json", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")
KEY = "CODEX_DRIVER_KEY"
PROFILE = 'if [ -n "$VIRTUAL_ENV" ]; then export PATH="$VIRTUAL_ENV/bin:$PATH"; fi\n'
"""It runs commands in login shells, which reset PATH and so lose the virtual environment."""


def _build_command(brief: Brief) -> Command:
    start = ("exec", "resume", "--last") if brief.resumed else ("exec",)
    return Command(
        argv=(brief.program_path("codex"), *start, *FLAGS, "-"),
        environment={**brief.environment, KEY: brief.driver.key},
        files={
            ".codex/config.toml": _render_config(brief.driver, brief.timeout_ms),
            ".bash_profile": PROFILE,
        },
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


def _read_transcript(log: Path, _: Path) -> Transcript:
    return read_json_log("codex", log, _read_event).build_transcript()


def _read_event(event: JsonNode, notes: TranscriptBuilder) -> None:
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


AGENT: DrivenAgent = ProgramAgent(
    package=AgentPackage("npm", "@openai/codex", "0.166.0", program="codex"),
    wires=("openai-responses",),
    start=_build_command,
    read=_read_transcript,
)
