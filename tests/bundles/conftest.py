"""A finished run of an earlier version, with a report, to bundle in a moment."""

import shutil
from pathlib import Path

import pytest

from agent2rl.record.paths import RunPaths
from agent2rl.report.run_report import write_report
from tests.helpers.bundle_files import unpack_earlier_run


@pytest.fixture(scope="session")
def reported_run(tmp_path_factory: pytest.TempPathFactory) -> RunPaths:
    paths = unpack_earlier_run(tmp_path_factory.mktemp("reported"))
    write_report(paths)
    return paths


@pytest.fixture
def earlier_run(reported_run: RunPaths, tmp_path: Path) -> RunPaths:
    """A copy, to change."""
    copy = tmp_path / "runs" / reported_run.run_id
    shutil.copytree(reported_run.root, copy)
    return RunPaths(copy)
