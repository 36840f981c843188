"""Whole runs of agent folders: what a pipe into `tee` hides, and each published folder with its program.

The programs run in `make test-agents`; one that cannot be had here is skipped, with the reason.
"""

import os
import subprocess
from pathlib import Path

import pytest

from agent2rl import registry
from agent2rl.core.agent import ProgramAgent
from agent2rl.record.reader import read_run
from tests.agents.agent_runs import (
    AGENT_CACHE,
    DRIVER_KEY,
    DRIVER_MODEL,
    AgentRun,
    find_files_containing,
    install_package_or_skip,
    run_agent,
    serve_http_driver,
)
from tests.agents.published_folders import (
    LOOP_SCRIPT,
    PIPELINE_SCRIPT,
    PROMPTED_SCRIPT,
    copy_published_pipeline,
    find_published_folder,
    write_folder,
    write_pipeline,
)
from tests.helpers.run_launcher import RunLauncher

NOTHING = '[[step]]\nend = "Nothing to do."\n'
HIDDEN = """\
no-such-program --print "Begin." 2>&1 | tee "$WORKSPACE/agent.jsonl"
status=$?
echo "The program exited with code $status"
exit $status
"""
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


@pytest.mark.thorough
def test_an_agent_whose_pipe_hides_that_it_never_started_has_failed(tmp_path: Path, cache: Path) -> None:
    folder = write_script_folder(tmp_path, HIDDEN)
    done = run_folder(folder, NOTHING, tmp_path, cache, "--budget", "20m")
    result = done.run.result
    assert result.ending == "failed"
    assert "sent no request to its driver and submitted nothing" in result.reason
    assert str(done.run.paths.agent_log) in result.reason
    assert "no-such-program: command not found" in result.reason
    assert done.run.code == 1


@pytest.mark.parametrize(
    "script",
    [ASKING, pytest.param(SUBMITTING, marks=pytest.mark.thorough)],
    ids=["asks its driver", "submits"],
)
def test_an_agent_that_did_something_has_completed(script: str, tmp_path: Path, cache: Path) -> None:
    folder = write_script_folder(tmp_path, script)
    done = run_folder(folder, NOTHING, tmp_path, cache, "--budget", "20m")
    assert (done.run.result.ending, done.run.result.reason) == ("completed", "")


SCRIPTS = {
    "claude": PROMPTED_SCRIPT,
    "codex": PROMPTED_SCRIPT,
    "gemini": PROMPTED_SCRIPT,
    "opencode": PIPELINE_SCRIPT,
    "openhands": PIPELINE_SCRIPT,
    "rdagent": LOOP_SCRIPT,
}
PIPELINES = ("opencode", "openhands")
ENDINGS = ("completed", "deadline")
"""The published pipelines repeat themselves more often than a test can wait."""


def find_or_write_folder(name: str, place: Path) -> tuple[Path, dict[str, str]]:
    """Return the real folder if there is a checkout, else one that behaves like it; and its variables."""
    variable = f"{name.upper()}_RL_ROOT"
    real = find_published_folder(name)
    if name not in PIPELINES:
        return real or write_folder(name, place / "agents"), {}
    if real is None:
        return write_folder(name, place / "agents"), {variable: str(write_pipeline(name, place))}
    if variable not in os.environ:
        pytest.skip(f"The published folder {name!r} needs {variable}.")
    return real, {variable: str(copy_published_pipeline(name, Path(os.environ[variable]), place))}


def install_folder_or_skip(folder: Path) -> None:
    agent = registry.find_agent(f"folder:{folder}")
    assert isinstance(agent, ProgramAgent)
    install_package_or_skip(agent.installed_as, agent.package)


@pytest.mark.agents
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_published_folder_trains_submits_reads_the_score_improves_and_submits_again(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, variables = find_or_write_folder(name, tmp_path)
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    install_folder_or_skip(folder)
    done = run_folder(folder, SCRIPTS[name], tmp_path, AGENT_CACHE, "--budget", "6m", **variables)
    result = done.run.result
    scores = [one.score.value for one in read_run(done.run.paths).submissions if one.score]
    assert result.ending in ENDINGS, (result.reason, done.run.log[-3000:])
    assert len(scores) >= 2, done.run.log[-3000:]
    assert scores[1] > scores[0]
    assert result.improvement is not None
    assert result.improvement > 20
    assert result.usage
    assert result.usage.answered >= 3
    assert result.usage.tokens == done.driver.said
    assert find_files_containing(done.run.paths.root, DRIVER_KEY.encode()) == []


@pytest.mark.agents
@pytest.mark.timeout(1200)
def test_the_example_folder_trains_with_trl_and_submits_without_a_driver(
    tmp_path: Path, launcher: RunLauncher
) -> None:
    pytest.importorskip("trl")
    folder = write_folder("example_agent", tmp_path / "agents")
    options = ("--model", "seedling", "--continues", "0", "--budget", "20m", "--json", "--no-report")
    done = launcher.cli("run", "--task", "gsm8k-mini", "--agent", str(folder), *options)
    run = launcher.ended(done.returncode, done.stdout, done.stderr)
    assert run.result.ending == "completed", run.log[-3000:]
    (submission,) = read_run(run.paths).submissions
    assert (submission.verdict, submission.lineage) == ("scored", "derived"), run.log[-3000:]
    assert "'verdict': 'scored'" in run.log


@pytest.mark.agents
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("agent", "script"), [("openhands", PROMPTED_SCRIPT), ("rdagent", LOOP_SCRIPT)])
def test_openhands_and_rdagent_do_a_whole_run_as_agents_of_their_own(
    agent: str, script: str, tmp_path: Path
) -> None:
    done = run_agent(agent, script, tmp_path, "--budget", "3m", "--continues", "0")
    scores = [one.score.value for one in read_run(done.run.paths).submissions if one.score]
    assert done.run.result.ending in ENDINGS, (done.run.result.reason, done.run.log[-3000:])
    assert len(scores) >= 2, done.run.log[-3000:]
    assert scores[1] > scores[0]
    assert done.transcript.steps
