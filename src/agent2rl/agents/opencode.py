"""OpenCode, headless."""

import json
from pathlib import Path

from agent2rl.core.agent import AgentPackage, Brief, DrivenAgent, ProgramAgent
from agent2rl.core.llm import TokenCounts, Wire
from agent2rl.core.sandbox import Command
from agent2rl.core.self_reports import Transcript
from agent2rl.record.transcript_builder import PartialStep, TranscriptBuilder, read_json_log
from agent2rl.record.untrusted_files import JsonNode

LIBRARIES: dict[Wire, tuple[str, str]] = {
    "openai-chat": ("@ai-sdk/openai-compatible", "/v1"),
    "anthropic": ("@ai-sdk/anthropic", "/v1"),
    "openai-responses": ("@ai-sdk/openai", "/v1"),
    "gemini": ("@ai-sdk/google", "/v1beta"),
}
"""The bundled library for each wire format, and its path below the gateway's URL."""
QUIET = {
    "OPENCODE_DISABLE_AUTOUPDATE": "1",
    "OPENCODE_DISABLE_MODELS_FETCH": "1",
    "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
    "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
}


def _build_command(brief: Brief) -> Command:
    again = ("--continue",) if brief.resumed else ()
    return Command(
        argv=(brief.program_path("opencode"), "run", "--format", "json", "--thinking", *again),
        environment={
            **brief.environment,
            **QUIET,
            "OPENCODE_EXPERIMENTAL_BASH_DEFAULT_TIMEOUT_MS": str(brief.timeout_ms),
        },
        files={".config/opencode/opencode.json": json.dumps(_build_config(brief), indent=2)},
        # By stdin, and the interrupt to the program alone: see claude_code.
        input=brief.prompt,
        interrupt="leader",
    )


def _build_config(brief: Brief) -> dict[str, object]:
    llm = brief.driver
    library, path = LIBRARIES[llm.wire]
    name = f"agent2rl/{llm.model}"
    return {
        "model": name,
        "small_model": name,
        "share": "disabled",
        "enabled_providers": ["agent2rl"],
        "provider": {
            "agent2rl": {
                "npm": library,
                "options": {"baseURL": llm.url + path, "apiKey": llm.key},
                "models": {llm.model: {}},
            }
        },
        "permission": {"*": "allow", "webfetch": "deny", "websearch": "deny"},
    }


def _read_transcript(log: Path, _: Path) -> Transcript:
    return read_json_log("opencode", log, _read_event).build_transcript()


def _read_event(event: JsonNode, notes: TranscriptBuilder) -> None:
    notes.session = event["sessionID"].text or notes.session
    part = event["part"]
    match event["type"].text:
        case "step_start":
            _find_turn(event, notes)
        case "text":
            notes.add_text(_find_turn(event, notes), part["text"].text)
        case "reasoning":
            notes.add_reasoning(_find_turn(event, notes), part["text"].text)
        case "tool_use":
            state, call = part["state"], part["callID"].text
            notes.add_tool_call(_find_turn(event, notes), call, part["tool"].text, state["input"])
            text = state["output"].text or state["error"].text
            notes.add_observation(call, text, state["status"].text != "completed")
        case "step_finish":
            notes.error = ""
            _count_usage(part["tokens"], _find_turn(event, notes), notes)
        case "error":
            error = event["error"]
            notes.error = error["data"]["message"].text or error["name"].text
        case _:
            notes.unread += 1


def _find_turn(event: JsonNode, notes: TranscriptBuilder) -> PartialStep:
    return notes.open_step("agent", event["part"]["messageID"].text, event["timestamp"].when)


def _count_usage(tokens: JsonNode, turn: PartialStep, notes: TranscriptBuilder) -> None:
    """Count usage: its input excludes cached tokens, its output excludes reasoning."""
    cached, written = tokens["cache"]["read"].count, tokens["cache"]["write"].count
    thought = tokens["reasoning"].count
    turn.tokens = TokenCounts(
        input=tokens["input"].count + cached + written,
        cached=cached,
        written=written,
        output=tokens["output"].count + thought,
        reasoning=thought,
    )
    notes.add_tokens(turn.tokens)


AGENT: DrivenAgent = ProgramAgent(
    package=AgentPackage("npm", "opencode-ai", "1.18.18", program="opencode"),
    wires=tuple(LIBRARIES),
    start=_build_command,
    read=_read_transcript,
)
