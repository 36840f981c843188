"""Google's Gemini CLI, headless."""

import json
from pathlib import Path

from agent2rl.core.agent import AgentPackage, Brief, DrivenAgent, ProgramAgent
from agent2rl.core.llm import TokenCounts
from agent2rl.core.sandbox import Command
from agent2rl.core.self_reports import Transcript
from agent2rl.record.transcript_builder import TranscriptBuilder, read_json_log
from agent2rl.record.untrusted_files import JsonNode

ALL_REQUESTS = ({"overrideScope": "core"}, {"model": "base"})
"""Small requests and subagents, which use other models by default: they use the driver too."""


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
            # It restarts itself to get more memory, and the interrupt goes to the first process
            # only.
            "GEMINI_CLI_NO_RELAUNCH": "true",
        },
        files={".gemini/settings.json": json.dumps(_build_settings(brief), indent=2)},
        # By stdin, and the interrupt to the program alone: see claude_code.
        input=brief.prompt,
        interrupt="leader",
    )


def _build_settings(brief: Brief) -> dict[str, object]:
    """Return the settings. Loop detection is off, because it mistakes polling a training for a loop."""
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
        "modelConfigs": {
            "customOverrides": [{"match": match, "modelConfig": model} for match in ALL_REQUESTS]
        },
    }


def _read_transcript(log: Path, _: Path) -> Transcript:
    return read_json_log("gemini-cli", log, _read_event).build_transcript()


def _read_event(event: JsonNode, notes: TranscriptBuilder) -> None:
    match event["type"].text:
        case "init":
            notes.start_session()
            notes.session, notes.model = event["session_id"].text, event["model"].text
        case "message":
            is_user = event["role"].text == "user"
            notes.add_text(
                notes.current_step("user" if is_user else "agent", event["timestamp"].when),
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
    """Count usage: only the total includes reasoning."""
    total, prompt = stats["total_tokens"].count, stats["input_tokens"].count
    reasoning = max(0, total - prompt - stats["output_tokens"].count)
    output = stats["output_tokens"].count + reasoning
    notes.add_tokens(
        TokenCounts(input=prompt, cached=stats["cached"].count, output=output, reasoning=reasoning)
    )


AGENT: DrivenAgent = ProgramAgent(
    package=AgentPackage("npm", "@google/gemini-cli", "0.61.0", program="gemini"),
    wires=("gemini",),
    start=_build_command,
    read=_read_transcript,
)
