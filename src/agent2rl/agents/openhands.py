"""OpenHands, headless, through its own command line."""

from pathlib import Path, PurePosixPath

from agent2rl.core.agent import LITELLM, AgentPackage, Brief, DrivenAgent, ProgramAgent
from agent2rl.core.llm import TokenCounts
from agent2rl.core.sandbox import Command
from agent2rl.core.self_reports import Transcript
from agent2rl.record import untrusted_files
from agent2rl.record.transcript_builder import TranscriptBuilder, read_json_log
from agent2rl.record.untrusted_files import JsonNode

PROMPT, LAUNCHER = ".config/agent2rl/prompt.md", ".config/agent2rl/launch.py"
START = f'exec "$0" ~/{LAUNCHER} "$@" --file ~/{PROMPT}'
CONVERSATIONS = PurePosixPath(".openhands/conversations")
LAUNCH = f"""\
# OpenHands buffers its output, and exits with code 0 even if its driver failed. Reaching its limit of 500
# steps is not a failure.
import json
import pathlib
import sys

from openhands_cli.entrypoint import main

sys.stdout.reconfigure(line_buffering=True)
main()
conversations = pathlib.Path.home() / "{CONVERSATIONS}"
latest = max(conversations.glob("*/events"), key=lambda folder: folder.stat().st_mtime)
last = json.loads(max(latest.iterdir()).read_text())
failed = last["kind"] == "ConversationErrorEvent" and last["code"] != "MaxIterationsReached"
sys.exit(1 if failed else 0)
"""
FLAGS = ("--headless", "--json", "--override-with-envs")
QUIET = {
    "OPENHANDS_SUPPRESS_BANNER": "1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "TTY_INTERACTIVE": "0",
}


def _build_command(brief: Brief) -> Command:
    model, url = brief.driver.litellm
    again = ("--resume", "--last") if brief.resumed else ()
    return Command(
        argv=("sh", "-c", START, brief.program_path("agent"), *FLAGS, *again),
        environment={
            **brief.environment,
            **QUIET,
            "LLM_MODEL": model,
            "LLM_BASE_URL": url,
            "LLM_API_KEY": brief.driver.key,
        },
        files={PROMPT: brief.prompt, LAUNCHER: LAUNCH},
        interrupt="leader",
    )


def _read_transcript(log: Path, home: Path) -> Transcript:
    """Read the log; token usage is only in the stored state of each conversation."""
    notes = read_json_log("openhands", log, _read_event)
    for name in untrusted_files.list_names(home, CONVERSATIONS):
        notes.session = name
        state = untrusted_files.read_document(home, CONVERSATIONS / name / "base_state.json")
        for _, metrics in (state or JsonNode())["stats"]["usage_to_metrics"].entries:
            notes.model = metrics["model_name"].text or notes.model
            _count_usage(metrics["accumulated_token_usage"], notes)
    return notes.build_transcript()


def _read_event(event: JsonNode, notes: TranscriptBuilder) -> None:
    key, at = event["id"].text, event["timestamp"].when
    match event["kind"].text:
        case "MessageEvent":
            is_user = event["source"].text == "user"
            turn = notes.open_step("user" if is_user else "agent", key, at)
            notes.add_text(turn, event["llm_message"]["content"].shown)
        case "ActionEvent":
            turn = notes.open_step("agent", event["llm_response_id"].text or key, at)
            notes.add_reasoning(turn, event["reasoning_content"].text)
            notes.add_text(turn, event["thought"].shown)
            notes.add_tool_call(
                turn,
                event["tool_call_id"].text,
                event["tool_name"].text,
                event["tool_call"]["arguments"].unpacked,
            )
        case "ObservationEvent":
            result = event["observation"]
            notes.add_observation(
                event["tool_call_id"].text, result["content"].shown, result["is_error"].true
            )
        case "AgentErrorEvent":
            notes.add_observation(event["tool_call_id"].text, event["error"].text, failed=True)
        case "ConversationErrorEvent":
            notes.error = event["detail"].text or event["code"].text
        case _:
            notes.unread += 1


def _count_usage(usage: JsonNode, notes: TranscriptBuilder) -> None:
    notes.add_tokens(
        TokenCounts(
            input=usage["prompt_tokens"].count,
            cached=usage["cache_read_tokens"].count,
            written=usage["cache_write_tokens"].count,
            output=usage["completion_tokens"].count,
            reasoning=usage["reasoning_tokens"].count,
        )
    )


AGENT: DrivenAgent = ProgramAgent(
    package=AgentPackage(
        "pypi",
        "openhands",
        "1.16.0",
        program="agent",
        probe=("-m", "openhands_cli.entrypoint", "--version"),
        also=("litellm==1.106.2", "openhands-sdk==1.21.0", "openhands-tools==1.21.0"),
        python="3.12",
    ),
    wires=tuple(LITELLM),
    start=_build_command,
    read=_read_transcript,
)
