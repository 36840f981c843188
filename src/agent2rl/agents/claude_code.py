"""Anthropic's Claude Code, headless."""

from pathlib import Path

from agent2rl.core.agent import AgentPackage, Brief, DrivenAgent, ProgramAgent
from agent2rl.core.llm import TokenCounts
from agent2rl.core.sandbox import Command
from agent2rl.core.self_reports import Transcript
from agent2rl.record.transcript_builder import TranscriptBuilder, read_json_log
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
        input=brief.prompt,
        interrupt="leader",
    )


def _read_transcript(log: Path, _: Path) -> Transcript:
    return read_json_log("claude-code", log, _read_event).build_transcript()


def _read_event(event: JsonNode, notes: TranscriptBuilder) -> None:
    match event["type"].text:
        case "system":
            if event["subtype"].text == "init":
                notes.start_session()
            notes.session = event["session_id"].text or notes.session
            notes.version = event["claude_code_version"].text or notes.version
            notes.model = event["model"].text or notes.model
        case "assistant":
            _read_assistant_message(event["message"], notes)
        case "user":
            _read_user_message(event, notes)
        case "result":
            _read_result(event, notes)
        case "stream_event":
            pass  # parts of a message that also arrives as a whole
        case _:
            notes.unread += 1


def _read_assistant_message(message: JsonNode, notes: TranscriptBuilder) -> None:
    """Read one event; several events may hold parts of one message. Their usage is a placeholder."""
    turn = notes.open_step("agent", message["id"].text)
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
    for _, used in event["modelUsage"].entries:
        cached, written = used["cacheReadInputTokens"].count, used["cacheCreationInputTokens"].count
        fresh, output = used["inputTokens"].count, used["outputTokens"].count
        notes.add_tokens(
            TokenCounts(input=fresh + cached + written, cached=cached, written=written, output=output)
        )


AGENT: DrivenAgent = ProgramAgent(
    package=AgentPackage("npm", "@anthropic-ai/claude-code", "2.1.197", program="claude"),
    wires=("anthropic",),
    start=_build_command,
    read=_read_transcript,
)
