"""The effect of training on other tasks: base model and best submission, both graded after the run."""

import csv
import json
from pathlib import Path

import pytest

from agent2rl.grading.verify import verify_run
from agent2rl.record.paths import RunPaths
from agent2rl.report import run_report
from tests.helpers.run_launcher import FinishedRun, RunLauncher

ROOT = Path(__file__).resolve().parents[2]
OTHER, BROKEN = "tests.helpers.short_gsm8k:TASK", "tests.helpers.short_gsm8k:UNGRADABLE"
PANEL = ("--also", f"train,{OTHER},{BROKEN}")


@pytest.fixture(scope="module")
def run(shared_launcher: RunLauncher) -> FinishedRun:
    finished = shared_launcher.run('submit(trained("v1"))', *PANEL, PYTHONPATH=str(ROOT))
    assert finished.result.ended_well, finished.errors
    return finished


def test_both_models_are_graded_elsewhere_and_the_score_is_that_of_the_run(run: FinishedRun) -> None:
    result = run.result
    train, other, _ = result.also
    assert [each.task for each in result.also] == ["train", OTHER, BROKEN]
    assert train.baseline is not None
    assert train.best is not None
    assert train.change is not None
    assert (train.baseline.split, train.baseline.n, train.best.n) == ("train", 100, 100)
    assert train.change.improvement == pytest.approx(train.best.value - train.baseline.value)
    assert train.best.value > train.baseline.value
    assert other.baseline is not None
    assert (other.baseline.split, other.baseline.n, other.reason) == ("heldout", 4, "")
    assert result.best_heldout is not None
    assert result.score == result.best_heldout.value
    assert verify_run(run.paths).holds
    assert (run.paths.panel_paths(2, "best").root / "heldout.jsonl").exists()


def test_a_grading_that_fails_has_a_reason_and_no_number(run: FinishedRun) -> None:
    broken = run.result.also[2]
    assert (broken.baseline, broken.best, broken.change) == (None, None, None)
    assert "could not be graded" in broken.reason


def test_the_agent_is_not_told_which_tasks_these_are(run: FinishedRun) -> None:
    for path in run.paths.workspace.rglob("*"):
        if path.is_file() and path.suffix in (".md", ".json", ".txt", ".py"):
            assert "short_gsm8k" not in path.read_text(encoding="utf-8", errors="replace")


def test_reports_exports_and_leaderboards_show_the_change(
    shared_launcher: RunLauncher, run: FinishedRun
) -> None:
    change = run.result.also[0].change
    assert change is not None
    points = f"{change.improvement:+.2f}"
    text = shared_launcher.report(run)
    assert "## Effect on other tasks (regression panel)" in text
    assert points in text
    train, unseen = run.result.also[0].best, run.result.best_heldout
    assert train is not None
    assert unseen is not None
    found = json.loads(run.paths.report_json.read_text(encoding="utf-8"))["findings"]["generalisation"]
    assert found["best"]["train_gap"]["value"] == pytest.approx(train.value - unseen.value, abs=1e-5)
    assert found["world"] is False
    assert "Effect on other tasks (regression panel)" in run.paths.report_page.read_text(encoding="utf-8")
    assert "also train" in shared_launcher.cli("show", run.result.run_id).stdout
    (row,) = map(json.loads, shared_launcher.cli("export", "jsonl").stdout.splitlines())
    assert [each["change"] for each in row["also"]] == [
        pytest.approx(change.improvement),
        pytest.approx(row["also"][1]["best"] - row["also"][1]["baseline"]),
        None,
    ]
    board = shared_launcher.cli("leaderboard", "--format", "csv").stdout
    (line,) = csv.DictReader(board.splitlines())
    assert float(line["also:train"]) == pytest.approx(change.improvement, abs=1e-3)
    assert f"also:{BROKEN}" not in line
    assert f"train {points}" in shared_launcher.cli("leaderboard", "--format", "markdown").stdout


def test_the_next_run_takes_the_untouched_models_results_from_the_cache(
    shared_launcher: RunLauncher, run: FinishedRun
) -> None:
    again = shared_launcher.run("pass", "--agent", "nop", "--also", OTHER, PYTHONPATH=str(ROOT))
    (other,) = again.result.also
    assert other.baseline == run.result.also[1].baseline
    assert other.best is None
    # Of this file's first run, or of another file's that has measured the same meanwhile.
    assert find_measuring_run(again, 1) != again.result.run_id


def find_measuring_run(finished: FinishedRun, place: int) -> str:
    """The run that graded the untouched model on the panel's task: this one or an earlier one."""
    entries = [json.loads(line) for line in finished.paths.ledger.read_text().splitlines()]
    pins = {entry["data"]["file"]: entry["data"] for entry in entries if entry["kind"] == "results"}
    measured = pins[f"also/{place}/baseline/heldout.jsonl"].get("measured")
    return str(measured["run_id"] if measured else finished.result.run_id)


@pytest.mark.thorough
def test_a_reproduction_does_not_repeat_the_panel(shared_launcher: RunLauncher, run: FinishedRun) -> None:
    done = shared_launcher.cli("reproduce", run.result.run_id, "--json", PYTHONPATH=str(ROOT))
    assert done.returncode == 0, done.stderr
    (folder,) = run.paths.reproductions.iterdir()
    assert run_report.gather_report_data(RunPaths(folder)).view.spec.also == ()


@pytest.mark.parametrize(
    ("panel", "message"),
    [
        ("gsm8k-mini", "graded on gsm8k-mini anyway"),
        ("gsm8k-mimi", "There is no task named 'gsm8k-mimi'"),
        ("deepsearchqa", "its grading needs a search backend"),
    ],
)
def test_a_task_that_the_panel_cannot_have_is_refused(
    launcher: RunLauncher, panel: str, message: str
) -> None:
    done = launcher.cli("run", "--task", "gsm8k-mini", "--also", panel)
    assert done.returncode == 2
    assert message in done.stderr
    assert not launcher.runs.exists() or not list(launcher.runs.iterdir())
