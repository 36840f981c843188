"""mini-swe-agent: a shell, a model and a loop."""

import json
from pathlib import Path, PurePosixPath

from agent2rl.core.agent import LITELLM, AgentPackage, Brief, DrivenAgent, ProgramAgent
from agent2rl.core.llm import TokenCounts
from agent2rl.core.sandbox import Command
from agent2rl.core.self_reports import Transcript
from agent2rl.record import untrusted_files
from agent2rl.record.transcript_builder import TranscriptBuilder
from agent2rl.record.untrusted_files import JsonNode

CONFIG = ".config/agent2rl/mini.yaml"
TRAJECTORIES = PurePosixPath(".local/share/agent2rl/mini")
"""One file per start: it starts over each time, because it cannot resume."""
START = (
    f'exec "$0" -m minisweagent.run.mini -c mini.yaml -c ~/{CONFIG} -o ~/{TRAJECTORIES}/$(date +%s%N).json'
)
QUIET = {
    "MSWEA_CONFIGURED": "1",
    "MSWEA_SILENT_STARTUP": "1",
    "MSWEA_COST_TRACKING": "ignore_errors",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
}


def _build_command(brief: Brief) -> Command:
    return Command(
        argv=("sh", "-c", START, brief.program_path("agent")),
        environment={**brief.environment, **QUIET},
        files={CONFIG: json.dumps(_build_config(brief), indent=2)},
        interrupt="leader",
    )


def _build_config(brief: Brief) -> dict[str, object]:
    model, url = brief.driver.litellm
    return {
        "run": {"task": brief.prompt},
        # 0: no limit. The run's own limits are the only ones.
        "agent": {"mode": "yolo", "confirm_exit": False, "cost_limit": 0, "step_limit": 0},
        "environment": {"timeout": brief.timeout_ms // 1000},
        "model": {
            "model_name": model,
            "model_kwargs": {"api_base": url, "api_key": brief.driver.key},
        },
    }


def _read_transcript(_: Path, home: Path) -> Transcript:
    notes = TranscriptBuilder("mini-swe")
    for name in untrusted_files.list_names(home, TRAJECTORIES):
        trajectory = untrusted_files.read_document(home, TRAJECTORIES / name)
        if trajectory is None:
            notes.unread += 1
        else:
            _read_trajectory(trajectory, notes)
    return notes.build_transcript()


def _read_trajectory(trajectory: JsonNode, notes: TranscriptBuilder) -> None:
    info = trajectory["info"]
    notes.start_session()
    notes.version = info["mini_version"].text or notes.version
    notes.model = info["config"]["model"]["model_name"].text or notes.model
    notes.error = "" if info["exit_status"].text == "Submitted" else info["exit_status"].text
    for message in trajectory["messages"]:
        _read_message(message, notes)


def _read_message(message: JsonNode, notes: TranscriptBuilder) -> None:
    """What an answer cost stands with it, or with the complaint where it could not be understood."""
    used = _parse_usage(message["extra"]["response"]["usage"])
    if used:
        notes.add_tokens(used)
    at = message["extra"]["timestamp"].seconds
    match message["role"].text:
        case "assistant":
            turn = notes.open_step("agent", at=at)
            turn.tokens = used
            notes.add_reasoning(turn, message["reasoning_content"].text)
            notes.add_text(turn, message["content"].shown)
            for call in message["tool_calls"]:
                function = call["function"]
                notes.add_tool_call(
                    turn, call["id"].text, function["name"].text, function["arguments"].unpacked
                )
        case "tool":
            failed = message["extra"]["returncode"].value != 0
            notes.add_observation(message["tool_call_id"].text, message["content"].shown, failed)
        case "system" | "exit":
            notes.add_text(notes.open_step("system", at=at), message["content"].shown)
        case "user":
            notes.add_text(notes.open_step("user", at=at), message["content"].shown)
        case _:
            notes.unread += 1


def _parse_usage(usage: JsonNode) -> TokenCounts | None:
    if not usage:
        return None
    return TokenCounts(
        input=usage["prompt_tokens"].count,
        cached=usage["prompt_tokens_details"]["cached_tokens"].count,
        written=usage["cache_creation_input_tokens"].count,
        output=usage["completion_tokens"].count,
        reasoning=usage["completion_tokens_details"]["reasoning_tokens"].count,
    )


AGENT: DrivenAgent = ProgramAgent(
    package=AgentPackage(
        "pypi",
        "mini-swe-agent",
        "2.4.6",
        program="agent",
        probe=("-m", "minisweagent.run.mini", "--help"),
        also=("litellm==1.106.2", "mcp==2.3.0"),  # LiteLLM imports mcp without declaring it
    ),
    wires=tuple(LITELLM),
    start=_build_command,
    read=_read_transcript,
)
