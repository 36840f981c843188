"""OpenHands, by its own command line, headless."""

from pathlib import Path, PurePosixPath

from agent2rl.core.agent import LITELLM, Brief, Driven, Package, Program
from agent2rl.core.llm import Tokens
from agent2rl.core.sandbox import Command
from agent2rl.core.transcript import Transcript
from agent2rl.store import foreign
from agent2rl.store.foreign import Node
from agent2rl.store.transcripts import Notes, from_lines

PROMPT, LAUNCHER = ".config/agent2rl/prompt.md", ".config/agent2rl/launch.py"
START = f'exec "$0" ~/{LAUNCHER} "$@" --file ~/{PROMPT}'
CONVERSATIONS = PurePosixPath(".openhands/conversations")
LAUNCH = f"""\
# OpenHands keeps what it prints until there is a lot of it, and ends with code 0 also where its driver
# failed. That it has done its 500 steps is no failure.
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


def _start(brief: Brief) -> Command:
    model, url = brief.driver.litellm
    again = ("--resume", "--last") if brief.resumed else ()
    return Command(
        argv=("sh", "-c", START, brief.program("agent"), *FLAGS, *again),
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


def _read(log: Path, home: Path) -> Transcript:
    """What was used stands only in what it keeps of each conversation."""
    notes = from_lines("openhands", log, _event)
    for name in foreign.names(home, CONVERSATIONS):
        notes.session = name
        state = foreign.document(home, CONVERSATIONS / name / "base_state.json")
        for _, metrics in (state or Node())["stats"]["usage_to_metrics"].entries:
            notes.model = metrics["model_name"].text or notes.model
            _used(metrics["accumulated_token_usage"], notes)
    return notes.transcript()


def _event(event: Node, notes: Notes) -> None:
    key, at = event["id"].text, event["timestamp"].when
    match event["kind"].text:
        case "MessageEvent":
            told = event["source"].text == "user"
            turn = notes.turn("user" if told else "agent", key, at)
            notes.say(turn, event["llm_message"]["content"].shown)
        case "ActionEvent":
            turn = notes.turn("agent", event["llm_response_id"].text or key, at)
            notes.think(turn, event["reasoning_content"].text)
            notes.say(turn, event["thought"].shown)
            notes.call(
                turn,
                event["tool_call_id"].text,
                event["tool_name"].text,
                event["tool_call"]["arguments"].unpacked,
            )
        case "ObservationEvent":
            seen = event["observation"]
            notes.observe(event["tool_call_id"].text, seen["content"].shown, seen["is_error"].true)
        case "AgentErrorEvent":
            notes.observe(event["tool_call_id"].text, event["error"].text, failed=True)
        case "ConversationErrorEvent":
            notes.error = event["detail"].text or event["code"].text
        case _:
            notes.unread += 1


def _used(usage: Node, notes: Notes) -> None:
    notes.count(
        Tokens(
            input=usage["prompt_tokens"].count,
            cached=usage["cache_read_tokens"].count,
            written=usage["cache_write_tokens"].count,
            output=usage["completion_tokens"].count,
            reasoning=usage["reasoning_tokens"].count,
        )
    )


AGENT: Driven = Program(
    package=Package(
        "pypi",
        "openhands",
        "1.16.0",
        program="agent",
        probe=("-m", "openhands_cli.entrypoint", "--version"),
        also=("litellm==1.106.2", "openhands-sdk==1.21.0", "openhands-tools==1.21.0"),
        python="3.12",
    ),
    wires=tuple(LITELLM),
    start=_start,
    read=_read,
)
