"""A whole run without bubblewrap: `--sandbox auto` goes on with `confined`, and everything says so."""

import json
import shutil

import pytest

from agent2rl import registry
from agent2rl.cli.terminal_output import describe_event
from agent2rl.core.events import TimelineEvent
from agent2rl.sandboxes import landlock
from agent2rl.system.packages import suggest_install
from tests.helpers.run_launcher import FinishedRun, RunLauncher

AGENT = """
def read(path):
    try:
        return pathlib.Path(path).read_text()
    except OSError as error:
        return error.strerror

root = WORKSPACE.parent
tasks = pathlib.Path(__import__("agent2rl").__file__).parent / "tasks"
say(
    answer=submit(trained("m")),
    ledger=read(root / "ledger.jsonl"),
    task=read(tasks / "gsm8k" / "mini.py"),
    runs=[read(path) for path in ("../ledger.jsonl", "../spec.json")],
)
"""


@pytest.fixture(scope="module")
def nowhere(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A PATH without bwrap and container engines."""
    if not landlock.read_version() or registry.find_sandbox("confined").check().broken:
        pytest.skip("the confined sandbox cannot run here")
    folder = tmp_path_factory.mktemp("programs")
    for name in ("chmod", "rm"):
        (folder / name).symlink_to(str(shutil.which(name)))
    return str(folder)


@pytest.fixture(scope="module")
def run(shared_launcher: RunLauncher, nowhere: str) -> FinishedRun:
    return shared_launcher.run(AGENT, "--budget", "20m", PATH=nowhere)


def test_the_run_is_graded_and_its_result_names_the_sandbox_and_the_reason(run: FinishedRun) -> None:
    assert run.result.ending == "completed", (run.result.reason, run.log)
    assert run.said["answer"]["verdict"] == "scored"
    assert run.result.score is not None
    assert run.result.isolation is not None
    assert (run.result.isolation.sandbox, run.result.isolation.level) == ("confined", "partial")
    assert run.result.isolation.reason.startswith("bubblewrap: ")
    assert "not installed" in run.result.isolation.reason
    assert run.result.spec.sandbox == "auto"


def test_the_agent_reads_neither_the_record_nor_the_evaluation_data(run: FinishedRun) -> None:
    said = [run.said["ledger"], run.said["task"], *run.said["runs"]]
    assert set(said) == {"Permission denied"}


def test_the_gaps_are_shown_in_the_run_the_report_and_the_leaderboard(
    run: FinishedRun, shared_launcher: RunLauncher
) -> None:
    events = map(TimelineEvent.model_validate_json, run.paths.events.read_text().splitlines())
    (line,) = [describe_event(event) for event in events if event.kind == "isolation"]
    assert "isolates IN PART" in line
    assert "Chosen because bubblewrap: " in line
    assert f"To get bubblewrap: {suggest_install('bubblewrap')}" in line
    shown = " ".join(shared_launcher.cli("show", run.result.run_id).stdout.split())
    assert "PARTIAL: confined" in shown
    report = shared_launcher.report(run)
    assert "isolates in part" in report
    board = shared_launcher.cli("leaderboard", "--format", "markdown").stdout
    assert "1 run ran in a sandbox that isolates in part" in board


def test_check_ends_with_a_verdict(shared_launcher: RunLauncher, nowhere: str) -> None:
    done = shared_launcher.cli("check", "--json", PATH=nowhere)
    findings = json.loads(done.stdout)
    assert done.returncode == 0, done.stdout
    assert findings[-1]["name"] == "verdict"
    assert "runs use the sandbox confined, which isolates in part" in findings[-1]["detail"]
    assert findings[-1]["hint"].startswith("To get bubblewrap: ")
    assert "not kept" in {finding["state"] for finding in findings}
