"""Google's Gemini CLI, headless."""

import json
from pathlib import Path

from agent2rl.core.agent import AgentPackage, Brief, DrivenAgent, ProgramAgent
from agent2rl.core.llm import TokenCounts
from agent2rl.core.sandbox import Command
from agent2rl.core.self_reports import Transcript
from agent2rl.record.transcript_builder import TranscriptBuilder, read_json_log
from agent2rl.record.untrusted_files import JsonNode

EVERYTHING = ({"overrideScope": "core"}, {"model": "base"})
"""What it asks other models by default, small things and subagents: the driver answers these too."""


def _build_command(brief: Brief) -> Command:
    again = ("--resume", "latest") if brief.resumed else ()
    return Command(
        argv=(
            *(brief.program_path("gemini"), "--yolo", "--output-format", "stream-json"),
            *("--model", brief.driver.model, *again),
        ),
        environment={
            **brief.environment,
            "GEMINI_API_KEY": brief.driver.key,
            "GOOGLE_GEMINI_BASE_URL": brief.driver.url,
            "GEMINI_CLI_NO_RELAUNCH": "true",
        },
        files={".gemini/settings.json": json.dumps(_build_settings(brief), indent=2)},
        input=brief.prompt,
        interrupt="leader",
    )


def _build_settings(brief: Brief) -> dict[str, object]:
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


def _read_transcript(log: Path, _: Path) -> Transcript:
    return read_json_log("gemini-cli", log, _read_event).build_transcript()


def _read_event(event: JsonNode, notes: TranscriptBuilder) -> None:
    match event["type"].text:
        case "init":
            notes.start_session()
            notes.session, notes.model = event["session_id"].text, event["model"].text
        case "message":
            told = event["role"].text == "user"
            notes.add_text(
                notes.current_step("user" if told else "agent", event["timestamp"].when),
                event["content"].text,
            )
        case "tool_use":
            turn = notes.current_step("agent", event["timestamp"].when)
            notes.add_tool_call(turn, event["tool_id"].text, event["tool_name"].text, event["parameters"])
        case "tool_result":
            failed = event["status"].text != "success"
            text = event["output"].text or event["error"]["message"].text
            notes.add_observation(event["tool_id"].text, text, failed)
        case "error":
            notes.add_text(notes.open_step("system", at=event["timestamp"].when), event["message"].text)
        case "result":
            notes.error = event["error"]["message"].text
            _count_usage(event["stats"], notes)
        case _:
            notes.unread += 1


def _count_usage(stats: JsonNode, notes: TranscriptBuilder) -> None:
    """What was thought is in the total alone."""
    total, given = stats["total_tokens"].count, stats["input_tokens"].count
    thought = max(0, total - given - stats["output_tokens"].count)
    output = stats["output_tokens"].count + thought
    notes.add_tokens(TokenCounts(input=given, cached=stats["cached"].count, output=output, reasoning=thought))


AGENT: DrivenAgent = ProgramAgent(
    package=AgentPackage("npm", "@google/gemini-cli", "0.61.0", program="gemini"),
    wires=("gemini",),
    start=_build_command,
    read=_read_transcript,
)
