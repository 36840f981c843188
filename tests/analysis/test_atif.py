"""Transcripts as ATIF, and the command that prints them. The rules are those of ATIF's own validator."""

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from agent2rl import registry
from agent2rl.analysis.atif import build_trajectory
from agent2rl.core.agent import DrivenAgent
from agent2rl.core.llm import TokenCounts
from agent2rl.core.self_reports import AgentToolCall, ToolObservation, Transcript, TranscriptStep
from agent2rl.record.files import write_record
from tests.helpers.bundle_files import unpack_earlier_run
from tests.helpers.run_launcher import RunLauncher

LOGS = Path(__file__).parents[1] / "agents" / "agent_logs"
OF_AGENTS_ALONE = {"reasoning_content", "tool_calls", "metrics", "model_name"}
KNOWN = {"step_id", "timestamp", "source", "message", "observation"} | OF_AGENTS_ALONE


def exported(transcript: Transcript) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(build_trajectory(transcript, "run-1").json_text)
    return found


@pytest.mark.parametrize("name", ["claude-code", "codex", "gemini-cli", "opencode", "openhands"])
def test_a_recorded_log_becomes_a_valid_trajectory(name: str) -> None:
    agent = registry.find_agent(name)
    assert isinstance(agent, DrivenAgent)
    found = exported(agent.transcript(LOGS / f"{name}.jsonl", Path("nowhere")))
    assert found["schema_version"] == "ATIF-v1.7"
    assert found["agent"] == {"name": name, "version": agent.package.version} | (
        {"model_name": "driver-model"} if "model_name" in found["agent"] else {}
    )
    assert [step["step_id"] for step in found["steps"]] == list(range(1, len(found["steps"]) + 1))
    assert found["final_metrics"]["total_steps"] == len(found["steps"])
    for step in found["steps"]:
        assert set(step) <= KNOWN
        assert step["source"] == "agent" or not OF_AGENTS_ALONE & set(step)
        assert "timestamp" not in step or datetime.fromisoformat(step["timestamp"]).tzinfo
        calls = {call["tool_call_id"] for call in step.get("tool_calls", ())}
        assert {
            seen["source_call_id"] for seen in step.get("observation", {"results": []})["results"]
        } <= calls


def test_what_a_transcript_says_a_trajectory_says() -> None:
    step = TranscriptStep(
        source="agent",
        text="I look.",
        reasoning="Where is it?",
        calls=(
            AgentToolCall(id="a", name="shell", arguments={"command": "ls"}),
            AgentToolCall(id="b", name="odd", arguments=[1]),
        ),
        observations=(ToolObservation(call="a", text="no such file", failed=True),),
        tokens=TokenCounts(input=10, cached=4, output=3, reasoning=2),
        at=0.5,
    )
    whole = Transcript(
        agent="tiny", version="1", model="m", steps=(step,), tokens=step.tokens, error="It broke."
    )
    found = exported(whole)
    assert found["session_id"] == "run-1"
    assert found["notes"] == "It broke."
    assert found["final_metrics"] == {
        "total_prompt_tokens": 10,
        "total_completion_tokens": 3,
        "total_cached_tokens": 4,
        "total_steps": 1,
    }
    assert found["steps"] == [
        {
            "step_id": 1,
            "timestamp": "1970-01-01T00:00:00.500000+00:00",
            "source": "agent",
            "message": "I look.",
            "reasoning_content": "Where is it?",
            "tool_calls": [
                {"tool_call_id": "a", "function_name": "shell", "arguments": {"command": "ls"}},
                {"tool_call_id": "b", "function_name": "odd", "arguments": {"value": [1]}},
            ],
            "observation": {
                "results": [{"source_call_id": "a", "content": "no such file", "extra": {"failed": True}}]
            },
            "metrics": {
                "prompt_tokens": 10,
                "completion_tokens": 3,
                "cached_tokens": 4,
                "extra": {"reasoning_tokens": 2},
            },
        }
    ]


def test_a_run_s_transcript_is_printed_for_people_and_for_programs(launcher: RunLauncher) -> None:
    paths = unpack_earlier_run(launcher.runs)
    run_id = paths.run_id
    assert "has no transcript" in launcher.cli("transcript", run_id).stderr
    call = AgentToolCall(id="a", name="shell", arguments={"command": "ls"})
    seen = ToolObservation(call="a", text="\x1b[2Jtrain.py")
    steps = (
        TranscriptStep(source="user", text="Begin."),
        TranscriptStep(source="agent", calls=(call,), observations=(seen,)),
    )
    written = Transcript(agent="tiny", version="1", steps=steps, tokens=TokenCounts(input=1200, output=7))
    write_record(paths.transcript, written)
    shown = launcher.cli("transcript", run_id).stdout
    assert "> shell ls" in shown
    assert "train.py" in shown
    assert "\x1b" not in shown
    assert "1,200 tokens in, 7 out" in shown
    assert Transcript.model_validate_json(launcher.cli("transcript", run_id, "--json").stdout) == written
    assert json.loads(launcher.cli("transcript", run_id, "--atif").stdout) == exported(written) | {
        "session_id": run_id
    }
