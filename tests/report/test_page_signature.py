"""A report's page is shown again only if this user made it, for the record as it is."""

from pathlib import Path

import pytest

from agent2rl.record.paths import RunPaths
from agent2rl.report.page_signature import find_page_key, read_signed_page, sign_page


@pytest.fixture
def run(tmp_path: Path) -> RunPaths:
    paths = RunPaths(tmp_path / "run")
    paths.report.mkdir(parents=True)
    paths.ledger_head.write_text("1 abc\n")
    paths.report_page.write_text("a page")
    return paths


def test_a_page_that_this_user_made_is_read_again(run: RunPaths, tmp_path: Path) -> None:
    assert read_signed_page(run, tmp_path / "cache") is None
    sign_page(run, tmp_path / "cache")
    assert read_signed_page(run, tmp_path / "cache") == "a page"
    assert find_page_key(tmp_path / "cache").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("changed", ["report_page", "ledger_head", "page_signature"])
def test_a_page_that_was_changed_or_is_out_of_date_is_not_shown(
    changed: str, run: RunPaths, tmp_path: Path
) -> None:
    sign_page(run, tmp_path)
    path: Path = getattr(run, changed)
    path.write_text(path.read_text().replace("a", "b", 1))
    assert read_signed_page(run, tmp_path) is None


def test_a_page_without_what_was_added_later_is_not_shown(run: RunPaths, tmp_path: Path) -> None:
    sign_page(run, tmp_path)
    run.additions_head.write_text("1 def\n")
    assert read_signed_page(run, tmp_path) is None
    sign_page(run, tmp_path)
    assert read_signed_page(run, tmp_path) == "a page"


def test_a_page_of_another_user_or_another_run_is_not_shown(run: RunPaths, tmp_path: Path) -> None:
    sign_page(run, tmp_path / "theirs")
    sign_page(RunPaths(run.root), tmp_path / "theirs")
    assert read_signed_page(run, tmp_path / "mine") is None
    sign_page(run, tmp_path / "mine")
    other = RunPaths(run.root.rename(tmp_path / "other"))
    assert read_signed_page(other, tmp_path / "mine") is None
