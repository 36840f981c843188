"""A run that keeps no weights: its record is whole, also if the harness dies when it drops the last ones."""

import json

import pytest

from agent2rl.core.records import RunResult
from agent2rl.grading.verify import verify_run
from tests.helpers.crashing_runs import CrashingRun, CrashPoint
from tests.helpers.run_launcher import RunLauncher

SUBMIT_ONE = 'submit(trained("v1", problems=60))'
KILLED = -9


@pytest.mark.thorough
def test_without_weights_the_score_the_record_and_the_report_are_there(launcher: RunLauncher) -> None:
    dying = CrashingRun(launcher, ("--sandbox", "local", "--keep", "none"), SUBMIT_ONE)
    assert dying.live(CrashPoint("dropped")) == KILLED, dying.errors
    assert dying.live() == 0, dying.errors
    result = RunResult.model_validate_json(dying.said)
    assert (result.ending, result.spec.keep, result.resumed) == ("completed", "none", 1)
    assert result.best is not None
    assert (result.best.id, result.best.kept) == (1, False)
    assert result.heldout is not None
    first = dying.paths.submission_paths(1)
    assert not first.model.exists()
    assert first.manifest.is_file()
    assert first.results_file("heldout").is_file()

    verified = verify_run(dying.paths)
    assert verified.holds, verified.fault
    assert any("weights were kept of no submission" in note for note in verified.notes)
    assert "weights kept" in launcher.cli("show", dying.paths.run_id).stdout
    assert launcher.cli("show", dying.paths.run_id, "--submission", "1").returncode == 0
    assert launcher.cli("report", dying.paths.run_id).returncode == 0
    for page in (dying.paths.report_text, dying.paths.report_page):
        assert "of no submission" in page.read_text(encoding="utf-8")
    row = json.loads(launcher.cli("export", "jsonl", dying.paths.run_id).stdout)
    assert (row["keep"], row["best_weights_kept"]) == ("none", False)
    again = launcher.cli("run", "--task", "gsm8k-mini", "--agent", "nop", "--model", str(first.model))
    assert "The run did not keep the weights of submission 1." in again.stderr
