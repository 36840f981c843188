"""A finished run whose report is on disk is shown at once."""

from pathlib import Path

import httpx

from agent2rl.record.paths import RunPaths
from agent2rl.report.page_signature import sign_page
from tests.dashboard import example_runs
from tests.dashboard.conftest import serve_dashboard

REPORT = '<nav aria-label="Contents"><ol></ol></nav>\n<main id="main"><p>What was found</p></main>'


def test_a_report_on_disk_is_shown_without_another_analysis(finished: RunPaths, tmp_path: Path) -> None:
    paths = example_runs.copy_run_as(finished, tmp_path / "runs", example_runs.FINISHED)
    paths.report.mkdir(exist_ok=True)
    paths.report_page.write_text(REPORT)
    sign_page(paths, tmp_path / "cache")
    with serve_dashboard(tmp_path / "runs", tmp_path / "cache") as board:
        page = httpx.get(f"{board.url}/runs/{paths.run_id}", timeout=120).text
    assert "What was found" in page
    assert "Analysing" not in page
    assert "data-stale" not in page
