"""Runs as Inspect logs. tests/interop/test_with_inspect.py opens them with Inspect itself."""

import json
from pathlib import Path
from typing import Any

import pytest

from agent2rl.analysis.inspect_log import build_logs
from agent2rl.core.llm import TokenCounts
from agent2rl.core.records import Budget, RunSpec
from agent2rl.core.self_reports import AgentToolCall, ToolObservation, Transcript, TranscriptStep
from agent2rl.record.files import write_record
from agent2rl.record.paths import RunPaths
from agent2rl.record.reader import read_run
from tests.helpers.run_launcher import FinishedRun, RunLauncher

TRANSCRIPT = Transcript(
    agent="claude-code",
    steps=(
        TranscriptStep(source="user", text="Begin.", at=1_700_000_000.0),
        TranscriptStep(
            source="agent",
            text="I look.",
            reasoning="Where is it?",
            calls=(AgentToolCall(id="a", name="shell", arguments=["ls"]),),
            observations=(ToolObservation(call="a", text="no such file", failed=True),),
            tokens=TokenCounts(input=10, output=3),
        ),
    ),
)


@pytest.fixture(scope="module")
def run(shared_launcher: RunLauncher) -> FinishedRun:
    done = shared_launcher.run('submit(OUTPUT / "nothing"); submit(trained("a"))')
    write_record(done.paths.transcript, TRANSCRIPT)
    return done


@pytest.fixture(scope="module")
def logs(run: FinishedRun, shared_launcher: RunLauncher) -> dict[str, Any]:
    """Each log of the run, by what it is of."""
    folder = shared_launcher.home / "logs"
    done = shared_launcher.cli("export", "inspect", run.result.run_id, "-o", str(folder))
    assert done.returncode == 0, done.stderr
    parsed = [json.loads(path.read_text()) for path in folder.iterdir()]
    return {log["eval"]["metadata"]["log"]: log for log in parsed}


def test_a_run_gives_a_log_of_its_agent_and_of_each_grading(run: FinishedRun, logs: dict[str, Any]) -> None:
    best = run.result.best
    assert best is not None
    gradings = {"baseline-feedback", "baseline-heldout"}
    gradings |= {f"submission-{best.id}-feedback", f"submission-{best.id}-heldout"}
    assert set(logs) == {"agent", *gradings}
    assert {log["status"] for log in logs.values()} == {"success"}


def test_the_log_of_the_agent_has_the_scores_of_the_run(run: FinishedRun, logs: dict[str, Any]) -> None:
    (sample,) = logs["agent"]["samples"]
    assert sample["scores"]["score"]["value"] == run.result.score
    assert sample["scores"]["improvement"]["value"] == run.result.improvement
    assert logs["agent"]["eval"]["solver"] == "script:agent.py"  # and no path of this machine


def test_the_log_of_the_agent_has_its_transcript(logs: dict[str, Any]) -> None:
    begin, look, result = logs["agent"]["samples"][0]["messages"]
    assert begin == {"id": "step-1", "role": "user", "content": "Begin."} | {
        "metadata": {"at": "2023-11-14T22:13:20+00:00"}
    }
    assert look["role"] == "assistant"
    assert look["tool_calls"] == [{"id": "a", "function": "shell", "arguments": {"value": ["ls"]}}]
    assert look["metadata"] == {"reasoning": "Where is it?"}
    assert result["role"] == "tool"
    assert result["tool_call_id"] == "a"
    assert result["error"]["message"] == "no such file"


def test_the_log_of_a_grading_has_each_answer_and_the_score(run: FinishedRun, logs: dict[str, Any]) -> None:
    log, score = logs["baseline-heldout"], run.result.baseline_heldout
    assert score is not None
    assert len(log["samples"]) == log["eval"]["dataset"]["samples"] == score.n
    shares = [sample["scores"]["agent2rl"]["value"] for sample in log["samples"]]
    assert sum(shares) / len(shares) == pytest.approx(score.value / 100)
    assert log["results"]["scores"][0]["metrics"]["mean"]["value"] == pytest.approx(score.value / 100)


def test_a_run_without_a_result_has_no_score(tmp_path: Path) -> None:
    spec = RunSpec(
        task="gsm8k-mini", agent="nop", model="abacus", engine="replay", budget=Budget(wall_seconds=60)
    )
    paths = RunPaths(tmp_path / "run-1")
    paths.root.mkdir()
    write_record(paths.spec, spec)
    (log,) = (json.loads(log.json_text) for log in build_logs(read_run(paths)))
    assert log["status"] == "error"
    assert "scores" not in log["samples"][0]
    assert log["results"]["scores"] == []


def test_an_export_does_not_replace_a_file(run: FinishedRun, shared_launcher: RunLauncher) -> None:
    file = shared_launcher.home / "file"
    file.write_text("mine")
    done = shared_launcher.cli("export", "inspect", run.result.run_id, "-o", str(file))
    assert done.returncode == 2
    assert "is not a folder" in done.stderr
    assert file.read_text() == "mine"
