"""A run directory that an earlier version made, before names in the code changed, still opens everywhere."""

import json
import tarfile
from pathlib import Path

import pytest

from tests.helpers.run_launcher import RunLauncher

ARCHIVE = Path(__file__).with_name("earlier_version_run.tar.xz")


@pytest.fixture
def run_id(bench: RunLauncher) -> str:
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(bench.runs, filter="data")
    return next(path.name for path in bench.runs.iterdir() if path.is_dir())


def test_an_old_run_is_shown_verified_reported_ranked_and_not_resumed(
    bench: RunLauncher, run_id: str
) -> None:
    shown = bench.cli("show", run_id)
    assert "10.67 [6.7, 16.6] → 93.33 [88.2, 96.3]" in shown.stdout, shown.stderr
    verified = bench.cli("verify", run_id)
    assert verified.stdout.endswith("the record holds\n")
    assert "closed by a version that did not pin it" in verified.stdout
    assert bench.cli("report", run_id).returncode == 0
    report = json.loads((bench.runs / run_id / "report" / "report.json").read_text())
    assert report["result"]["score"] == pytest.approx(93.33, abs=0.01)
    assert "+82.67" in bench.cli("leaderboard").stdout
    before = (bench.runs / run_id / "ledger.jsonl").read_bytes()
    assert bench.cli("resume", run_id).returncode == 0
    assert (bench.runs / run_id / "ledger.jsonl").read_bytes() == before, "a finished run stays as it is"
