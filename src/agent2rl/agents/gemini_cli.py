"""Google's Gemini CLI, headless."""

import json
from pathlib import Path

from agent2rl.core.agent import Brief, Driven, Package, Program
from agent2rl.core.llm import Tokens
from agent2rl.core.sandbox import Command
from agent2rl.core.transcript import Transcript
from agent2rl.store.foreign import Node
from agent2rl.store.transcripts import Notes, from_lines

EVERYTHING = ({"overrideScope": "core"}, {"model": "base"})
"""What it asks other models by default, small things and subagents: the driver answers these too."""


def _start(brief: Brief) -> Command:
    again = ("--resume", "latest") if brief.resumed else ()
    return Command(
        argv=(
            *(brief.program("gemini"), "--yolo", "--output-format", "stream-json"),
            *("--model", brief.driver.model, *again),
        ),
        environment={
            **brief.environment,
            "GEMINI_API_KEY": brief.driver.key,
            "GOOGLE_GEMINI_BASE_URL": brief.driver.url,
            "GEMINI_CLI_NO_RELAUNCH": "true",
        },
        files={".gemini/settings.json": json.dumps(_settings(brief), indent=2)},
        input=brief.prompt,
        interrupt="leader",
    )


def _settings(brief: Brief) -> dict[str, object]:
    """It takes an agent that looks at its training again and again for one that is caught in a loop."""
    model = {"model": brief.driver.model}
    return {
        "general": {"enableAutoUpdate": False, "enableAutoUpdateNotification": False},
        "privacy": {"usageStatisticsEnabled": False},
        "security": {"auth": {"selectedType": "gemini-api-key"}, "folderTrust": {"enabled": False}},
        "tools": {
            "shell": {"inactivityTimeout": brief.timeout_ms // 1000},
            "exclude": ["google_web_search", "web_fetch"],
        },
        "model": {"disableLoopDetection": True},
        "modelConfigs": {"customOverrides": [{"match": each, "modelConfig": model} for each in EVERYTHING]},
    }


def _read(log: Path, _: Path) -> Transcript:
    return from_lines("gemini-cli", log, _event).transcript()


def _event(event: Node, notes: Notes) -> None:
    match event["type"].text:
        case "init":
            notes.begin()
            notes.session, notes.model = event["session_id"].text, event["model"].text
        case "message":
            told = event["role"].text == "user"
            notes.say(notes.last("user" if told else "agent", event["timestamp"].when), event["content"].text)
        case "tool_use":
            turn = notes.last("agent", event["timestamp"].when)
            notes.call(turn, event["tool_id"].text, event["tool_name"].text, event["parameters"])
        case "tool_result":
            failed = event["status"].text != "success"
            text = event["output"].text or event["error"]["message"].text
            notes.observe(event["tool_id"].text, text, failed)
        case "error":
            notes.say(notes.turn("system", at=event["timestamp"].when), event["message"].text)
        case "result":
            notes.error = event["error"]["message"].text
            _used(event["stats"], notes)
        case _:
            notes.unread += 1


def _used(stats: Node, notes: Notes) -> None:
    """What was thought is in the total alone."""
    total, given = stats["total_tokens"].count, stats["input_tokens"].count
    thought = max(0, total - given - stats["output_tokens"].count)
    output = stats["output_tokens"].count + thought
    notes.count(Tokens(input=given, cached=stats["cached"].count, output=output, reasoning=thought))


AGENT: Driven = Program(
    package=Package("npm", "@google/gemini-cli", "0.61.0", program="gemini"),
    wires=("gemini",),
    start=_start,
    read=_read,
)
