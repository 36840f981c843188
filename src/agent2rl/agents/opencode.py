"""OpenCode, headless."""

import json
from pathlib import Path

from agent2rl.core.agent import Brief, Driven, Package, Program
from agent2rl.core.llm import Tokens, Wire
from agent2rl.core.sandbox import Command
from agent2rl.core.transcript import Transcript
from agent2rl.store.foreign import Node
from agent2rl.store.transcripts import Notes, Turn, from_lines

LIBRARIES: dict[Wire, tuple[str, str]] = {
    "openai-chat": ("@ai-sdk/openai-compatible", "/v1"),
    "anthropic": ("@ai-sdk/anthropic", "/v1"),
    "openai-responses": ("@ai-sdk/openai", "/v1"),
    "gemini": ("@ai-sdk/google", "/v1beta"),
}
"""What it speaks each wire format with, out of what it brings along, and below which path."""
QUIET = {
    "OPENCODE_DISABLE_AUTOUPDATE": "1",
    "OPENCODE_DISABLE_MODELS_FETCH": "1",
    "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
    "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
}


def _start(brief: Brief) -> Command:
    again = ("--continue",) if brief.resumed else ()
    return Command(
        argv=(brief.program("opencode"), "run", "--format", "json", "--thinking", *again),
        environment={
            **brief.environment,
            **QUIET,
            "OPENCODE_EXPERIMENTAL_BASH_DEFAULT_TIMEOUT_MS": str(brief.timeout_ms),
        },
        files={".config/opencode/opencode.json": json.dumps(_config(brief), indent=2)},
        input=brief.prompt,
        interrupt="leader",
    )


def _config(brief: Brief) -> dict[str, object]:
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


def _read(log: Path, _: Path) -> Transcript:
    return from_lines("opencode", log, _event).transcript()


def _event(event: Node, notes: Notes) -> None:
    notes.session = event["sessionID"].text or notes.session
    part = event["part"]
    match event["type"].text:
        case "step_start":
            _turn(event, notes)
        case "text":
            notes.say(_turn(event, notes), part["text"].text)
        case "reasoning":
            notes.think(_turn(event, notes), part["text"].text)
        case "tool_use":
            state, call = part["state"], part["callID"].text
            notes.call(_turn(event, notes), call, part["tool"].text, state["input"])
            text = state["output"].text or state["error"].text
            notes.observe(call, text, state["status"].text != "completed")
        case "step_finish":
            notes.error = ""
            _used(part["tokens"], _turn(event, notes), notes)
        case "error":
            told = event["error"]
            notes.error = told["data"]["message"].text or told["name"].text
        case _:
            notes.unread += 1


def _turn(event: Node, notes: Notes) -> Turn:
    return notes.turn("agent", event["part"]["messageID"].text, event["timestamp"].when)


def _used(tokens: Node, turn: Turn, notes: Notes) -> None:
    """Its input is without what was cached, its output without what was thought."""
    cached, written = tokens["cache"]["read"].count, tokens["cache"]["write"].count
    thought = tokens["reasoning"].count
    turn.tokens = Tokens(
        input=tokens["input"].count + cached + written,
        cached=cached,
        written=written,
        output=tokens["output"].count + thought,
        reasoning=thought,
    )
    notes.count(turn.tokens)


AGENT: Driven = Program(
    package=Package("npm", "opencode-ai", "1.18.18", program="opencode"),
    wires=tuple(LIBRARIES),
    start=_start,
    read=_read,
)
