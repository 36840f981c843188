"""Whole runs of agent folders: what a pipe into `tee` hides, and every published folder with its real program.

The programs run in `make test-agents`; one that cannot be had here is skipped, with the reason.
"""

import subprocess
from pathlib import Path

import pytest

from tests.agents.agent_runs import DRIVER_KEY, DRIVER_MODEL, AgentRun, serve_http_driver
from tests.helpers.run_launcher import RunLauncher

NOTHING = '[[step]]\nend = "Nothing to do."\n'
HIDDEN = 'no-such-program --print "Begin." 2>&1 | tee "$WORKSPACE/agent.jsonl"\nexit $?\n'
ASKING = """\
curl -s "$OPENAI_BASE_URL/chat/completions" -H "Content-Type: application/json" \\
  -d '{"model": "'"$LLM_MODEL"'", "messages": [{"role": "user", "content": "Well?"}]}'
"""
SUBMITTING = """\
cp -r "$MODEL_PATH" "$OUTPUT_DIR/copy"
curl -s -X POST "$GRADING_SERVER_URL/submit" -H "Content-Type: application/json" \\
  -d '{"model_path": "'"$OUTPUT_DIR/copy"'"}'
"""


def write_script_folder(place: Path, script: str) -> Path:
    folder = place / "folder"
    folder.mkdir()
    (folder / "config.yaml").write_text("name: Mine\nstart: start.sh\nenv_vars: {}\n", encoding="utf-8")
    (folder / "start.sh").write_text(script, encoding="utf-8")
    return folder


def run_folder(
    folder: Path, script: str, place: Path, cache: Path, *options: str, **environment: str
) -> AgentRun:
    """A whole run of a folder, named by its path."""
    home = place / "home"
    home.mkdir()
    launcher = RunLauncher(place / "runs", cache, home)
    with serve_http_driver(script, place) as at:
        asked = ("--agent", str(folder), "--driver", f"{DRIVER_MODEL}@{at.url}", *options)
        command = launcher.command("run", "--task", "gsm8k-mini", "--json", "--continues", "0", *asked)
        variables = launcher.environment(AGENT2RL_DRIVER_KEY=DRIVER_KEY, **environment)
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, cwd=home, env=variables)
        return AgentRun(launcher.finish(process), at, launcher)


def test_an_agent_whose_pipe_hides_that_it_never_started_has_failed(tmp_path: Path) -> None:
    folder = write_script_folder(tmp_path, HIDDEN)
    done = run_folder(folder, NOTHING, tmp_path, tmp_path / "cache", "--budget", "20m")
    result = done.run.result
    assert result.ending == "failed"
    assert "sent no request to its driver and submitted nothing" in result.reason
    assert str(done.run.paths.agent_log) in result.reason
    assert "no-such-program: command not found" in result.reason
    assert done.run.code == 1


@pytest.mark.parametrize("script", [ASKING, SUBMITTING], ids=["asks its driver", "submits"])
def test_an_agent_that_did_something_has_completed(script: str, tmp_path: Path) -> None:
    folder = write_script_folder(tmp_path, script)
    done = run_folder(folder, NOTHING, tmp_path, tmp_path / "cache", "--budget", "20m")
    assert (done.run.result.ending, done.run.result.reason) == ("completed", "")
