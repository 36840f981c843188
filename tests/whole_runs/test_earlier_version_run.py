"""A run directory that an earlier version made, before names in the code changed, still opens everywhere."""

import json
import tarfile
import time
from pathlib import Path

import httpx
import pytest

from agent2rl.record.files import extract_archive
from agent2rl.record.paths import RunPaths
from tests.dashboard.conftest import serve_dashboard
from tests.helpers.run_launcher import RunLauncher

ARCHIVE = Path(__file__).with_name("earlier_version_run.tar.xz")


@pytest.fixture
def run_id(launcher: RunLauncher) -> str:
    with tarfile.open(ARCHIVE) as archive:
        extract_archive(archive, launcher.runs)
    return next(path.name for path in launcher.runs.iterdir() if path.is_dir())


def test_an_old_run_is_shown_verified_reported_ranked_and_not_resumed(
    launcher: RunLauncher, run_id: str
) -> None:
    shown = launcher.cli("show", run_id)
    assert "10.67 [6.7, 16.6] → 93.33 [88.2, 96.3]" in shown.stdout, shown.stderr
    verified = launcher.cli("verify", run_id)
    assert verified.stdout.endswith("the record holds\n")
    assert "closed by a version that did not pin it" in verified.stdout
    assert launcher.cli("report", run_id).returncode == 0
    report = json.loads((launcher.runs / run_id / "report" / "report.json").read_text())
    assert report["result"]["score"] == pytest.approx(93.33, abs=0.01)
    assert "+82.67" in launcher.cli("leaderboard").stdout
    before = (launcher.runs / run_id / "ledger.jsonl").read_bytes()
    assert launcher.cli("resume", run_id).returncode == 0
    assert (launcher.runs / run_id / "ledger.jsonl").read_bytes() == before, "a finished run stays as it is"


def test_an_old_run_that_was_interrupted_after_its_agent_is_graded_to_the_end(
    launcher: RunLauncher, run_id: str
) -> None:
    paths = RunPaths(launcher.runs / run_id)
    begun = interrupt_before_final_grading(paths)
    shown = launcher.cli("show", run_id)
    assert "crashed" in shown.stdout, shown.stderr
    resumed = launcher.cli("resume", run_id, "--no-report")
    assert "10.67 [6.7, 16.6] → 93.33 [88.2, 96.3]" in resumed.stdout, resumed.stderr
    assert paths.ledger.read_bytes().startswith(begun), "what was recorded stays as it is"
    assert launcher.cli("verify", run_id).returncode == 0


def interrupt_before_final_grading(paths: RunPaths) -> bytes:
    """Make the record one of a harness that died before the best submission had a held-out score."""
    lines = paths.ledger.read_bytes().splitlines(keepends=True)
    file = "submissions/3/heldout.jsonl"
    count = next(number for number, line in enumerate(lines) if json.loads(line)["data"].get("file") == file)
    last = json.loads(lines[count - 1])
    begun = b"".join(lines[:count])
    paths.ledger.write_bytes(begun)
    paths.ledger_head.write_text(json.dumps({"index": last["index"], "hash": last["hash"]}))
    paths.result.unlink()
    return begun


def test_the_dashboard_shows_the_record_of_an_old_run(
    launcher: RunLauncher, run_id: str, tmp_path: Path
) -> None:
    example = "gsm8k-mini-heldout-0048"
    expected = {
        "/": run_id,
        "/table": "93.33",
        f"/runs/{run_id}/now": "Best so far",
        f"/runs/{run_id}/code": "STAGES = ",
        f"/runs/{run_id}/examples": example,
        f"/runs/{run_id}/examples/{example}?submission=3&split=heldout": "20/10=2",
        f"/runs/{run_id}/transcript": "script",
        f"/runs/{run_id}/log": "v3: 400 problems, scored",
    }
    assert find_pages_without(expected, launcher, tmp_path) == []


@pytest.mark.thorough
def test_the_dashboard_analyses_an_old_run(launcher: RunLauncher, run_id: str, tmp_path: Path) -> None:
    expected = {
        f"/runs/{run_id}/analysis": "93.33",
        f"/runs/{run_id}/timeline/analysis": "Resources over the same period",
        "/leaderboard/analysis": "+82.67",
    }
    assert find_pages_without(expected, launcher, tmp_path) == []


def find_pages_without(expected: dict[str, str], launcher: RunLauncher, tmp_path: Path) -> list[str]:
    """Return the pages of a dashboard that lack their text."""
    with (
        serve_dashboard(launcher.runs, tmp_path / "dashboard") as board,
        httpx.Client(base_url=board.url, timeout=120) as client,
    ):
        return [path for path, text in expected.items() if text not in fetch_analysed_page(client, path)]


def fetch_analysed_page(client: httpx.Client, path: str) -> str:
    while "aria-busy" in (page := client.get(path).raise_for_status().text) and path.endswith("/analysis"):
        time.sleep(0.1)
    return page
