"""Anthropic's Claude Code, headless."""

from pathlib import Path, PurePosixPath

from agent2rl.core.agent import AgentPackage, Brief, DrivenAgent, ProgramAgent
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

FLAGS = ("-p", "--output-format", "stream-json", "--verbose", "--dangerously-skip-permissions")
WEB = ("--disallowedTools", "WebFetch,WebSearch")
"""There is no web in the sandbox; its search would run at the provider and bypass the gateway."""
MODELS = (
    *(f"ANTHROPIC_DEFAULT_{name}_MODEL" for name in ("FABLE", "OPUS", "SONNET", "HAIKU")),
    "CLAUDE_CODE_SUBAGENT_MODEL",
)
"""Models for small requests and subagents: also the driver, because no other model is available."""
TIMEOUTS = ("BASH_DEFAULT_TIMEOUT_MS", "BASH_MAX_TIMEOUT_MS", "CLAUDE_CODE_PRINT_BG_WAIT_CEILING_MS")
"""Timeouts of a command, and of the final wait for background commands."""
QUIET = {
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_AUTOUPDATER": "1",
    "IS_SANDBOX": "1",  # else it refuses to skip permissions as root, as in the local sandbox
}

PROJECTS = PurePosixPath(".claude/projects")
SESSION_FILES = (PROJECTS / "*" / "*.jsonl", PROJECTS / "*" / "*" / "subagents" / "*.jsonl")
"""Where it keeps its sessions, and those of subagents."""
BOOKKEEPING = {
    "attachment",
    "custom-title",
    "file-history-snapshot",
    "last-prompt",
    "mode",
    "permission-mode",
    "progress",
    "queue-operation",
    "summary",
}
"""Rows of a session file that are not part of the conversation."""
NO_MODEL = "<synthetic>"
"""The model of a message that the program wrote itself, such as an error."""


def _build_command(brief: Brief) -> Command:
    llm, again = brief.driver, ("--continue",) if brief.resumed else ()
    return Command(
        argv=(brief.program_path("claude"), *FLAGS, *WEB, "--model", llm.model, *again),
        environment={
            **brief.environment,
            **QUIET,
            **dict.fromkeys(MODELS, llm.model),
            "ANTHROPIC_BASE_URL": llm.url,
            "ANTHROPIC_API_KEY": llm.key,
            **dict.fromkeys(TIMEOUTS, str(brief.timeout_ms)),
        },
        # By stdin: a command of the agent such as `pkill -f train` hits every process with this
        # word among its arguments, and the prompt has it.
        input=brief.prompt,
        # The whole group would include the tool's command: it would end, and the program would go
        # on.
        interrupt="leader",
    )


def _read_transcript(log: Path, home: Path) -> Transcript:
    printed = read_json_log("claude-code", log, _read_event).build_transcript()
    stored = read_session_files("claude-code", home, SESSION_FILES, _read_event).build_transcript()
    return complete_transcript(printed, stored)


def _read_event(event: JsonNode, notes: TranscriptBuilder) -> None:
    """Read an event that it printed, or a row of a session file, which has a `sessionId`."""
    match event["type"].text:
        case "system":
            if event["subtype"].text == "init":
                notes.start_session()
            notes.session = event["session_id"].text or notes.session
            notes.version = event["claude_code_version"].text or notes.version
            notes.model = event["model"].text or notes.model
        case "assistant":
            _read_assistant_message(event, notes)
            if event["sessionId"]:
                _read_session_row(event, notes)
        case "user":
            _read_user_message(event, notes)
        case "result":
            _read_result(event, notes)
        case "stream_event":
            pass  # parts of a message that also arrives as a whole
        case kind if kind in BOOKKEEPING:
            pass
        case _:
            notes.unread += 1


def _read_assistant_message(event: JsonNode, notes: TranscriptBuilder) -> None:
    """Read one event; several events may hold parts of one message."""
    message = event["message"]
    turn = notes.open_step("agent", message["id"].text, event["timestamp"].when)
    for part in message["content"]:
        match part["type"].text:
            case "text":
                notes.add_text(turn, part["text"].text)
            case "thinking":
                notes.add_reasoning(turn, part["thinking"].text)
            case "tool_use":
                notes.add_tool_call(turn, part["id"].text, part["name"].text, part["input"])
            case _:
                notes.unread += 1


def _read_session_row(row: JsonNode, notes: TranscriptBuilder) -> None:
    """Read what only session files say. The last row of a message has its usage; printed events never do."""
    message = row["message"]
    notes.session, notes.version = row["sessionId"].text, row["version"].text or notes.version
    notes.error = message["content"].shown if row["isApiErrorMessage"].true else ""
    if message["model"].text in ("", NO_MODEL):
        return
    notes.model, key = message["model"].text, message["id"].text
    turn = notes.open_step("agent", key)
    turn.tokens = _parse_usage(message["usage"])
    notes.add_tokens(turn.tokens, of=f"message {key}")


def _read_user_message(event: JsonNode, notes: TranscriptBuilder) -> None:
    content = event["message"]["content"]
    texts = [content.text] if content.text else []
    for part in content:
        if part["type"].text == "tool_result":
            notes.add_observation(part["tool_use_id"].text, part["content"].shown, part["is_error"].true)
        else:
            texts.append(part["text"].text)
    for text in filter(None, texts):
        notes.add_text(notes.open_step("user", at=event["timestamp"].when), text)


def _read_result(event: JsonNode, notes: TranscriptBuilder) -> None:
    """Read the final event. A provider's error is reported as a success with `is_error`."""
    failed = event["is_error"].true or event["subtype"].text != "success"
    notes.error = (event["result"].text or event["subtype"].text) if failed else ""
    if models := event["modelUsage"].entries:
        process = sum((_parse_model_usage(used) for _, used in models), TokenCounts())
        notes.add_process_total(process, _parse_usage(event["usage"]))


def _parse_usage(usage: JsonNode) -> TokenCounts:
    cached, written = usage["cache_read_input_tokens"].count, usage["cache_creation_input_tokens"].count
    fresh, output = usage["input_tokens"].count, usage["output_tokens"].count
    return TokenCounts(input=fresh + cached + written, cached=cached, written=written, output=output)


def _parse_model_usage(usage: JsonNode) -> TokenCounts:
    cached, written = usage["cacheReadInputTokens"].count, usage["cacheCreationInputTokens"].count
    fresh, output = usage["inputTokens"].count, usage["outputTokens"].count
    return TokenCounts(input=fresh + cached + written, cached=cached, written=written, output=output)


AGENT: DrivenAgent = ProgramAgent(
    package=AgentPackage("npm", "@anthropic-ai/claude-code", "2.1.197", program="claude"),
    wires=("anthropic",),
    start=_build_command,
    read=_read_transcript,
)
