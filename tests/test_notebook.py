"""`agent2rl.load_runs` and `agent2rl.compare`, as they are used in a notebook."""

import gc
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import agent2rl
from agent2rl.bundles.packing import write_bundle
from agent2rl.bundles.secret_scan import SecretScanner
from agent2rl.core.errors import UserError
from agent2rl.record.paths import RunPaths
from agent2rl.report.run_report import write_report
from tests.helpers.bundle_files import unpack_earlier_run


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> RunPaths:
    paths = unpack_earlier_run(tmp_path_factory.mktemp("earlier"))
    write_report(paths)
    return paths


def test_runs_are_loaded_filtered_and_shown_as_a_table(earlier: RunPaths, tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    runs = agent2rl.load_runs(earlier.root.parent)
    assert len(runs) == 1
    assert runs.unreadable == ()
    frame = runs.to_frame()
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame["run_id"]) == [earlier.run_id]
    assert frame["gain"][0] == pytest.approx(82.67, abs=0.01)
    assert frame["excluded"][0] is None
    assert (len(runs.filter(task="gsm8k-mini", model="abacus")), len(runs.filter(task="none"))) == (1, 0)
    assert runs.filter(seed=0)[0].id == earlier.run_id
    with pytest.raises(UserError, match="no field 'sead'"):
        runs.filter(sead=0)


def test_a_run_has_its_result_its_findings_and_its_answers(earlier: RunPaths) -> None:
    (run,) = agent2rl.load_runs(earlier.root)
    assert run.result is not None
    assert run.result.score == pytest.approx(93.33, abs=0.01)
    assert run.findings.gain is not None
    answers = run.examples(submission=3, split="heldout")
    assert sum(answer.score for answer in answers) == 140
    with pytest.raises(UserError, match="has no heldout results"):
        run.examples(submission=1, split="heldout")


def test_two_runs_are_compared_on_the_same_examples_and_two_groups_by_their_gains(
    earlier: RunPaths, tmp_path: Path
) -> None:
    (run,) = agent2rl.load_runs(earlier.root)
    same = agent2rl.compare(run, run)
    assert (same.split, same.n, same.difference.improvement) == ("heldout", 150, 0)
    copy = tmp_path / "runs" / earlier.run_id
    shutil.copytree(earlier.root, copy)
    spec = json.loads((copy / "spec.json").read_text())
    (copy / "spec.json").write_text(json.dumps(spec | {"task": "humaneval-mini"}))
    (copy / "report" / "digest.json").unlink()
    (other,) = agent2rl.load_runs(tmp_path / "runs")
    with pytest.raises(UserError, match="different tasks"):
        agent2rl.compare(run, other)
    both = agent2rl.load_runs(earlier.root, earlier.root)
    difference = agent2rl.compare(both, both[:1])
    assert difference.difference is not None
    assert difference.difference.value == 0
    assert difference.n == (2, 1)


def test_a_bundle_is_loaded_and_its_folder_goes_with_the_collection(
    earlier: RunPaths, tmp_path: Path
) -> None:
    write_bundle(earlier, tmp_path / "run.tar.zst", SecretScanner({}))
    with agent2rl.load_runs(tmp_path / "run.tar.zst") as runs:
        folder = runs[0].paths.root
        assert agent2rl.compare(runs[0], agent2rl.load_runs(earlier.root)[0]).difference.improvement == 0
    assert not folder.exists()
    runs = agent2rl.load_runs(tmp_path / "run.tar.zst")
    chosen, folder = runs.filter(seed=0), runs[0].paths.root
    del runs
    assert chosen[0].result is not None
    assert folder.exists()
    del chosen
    gc.collect()
    assert not folder.exists()


def test_what_cannot_be_read_is_listed_or_an_error(earlier: RunPaths, tmp_path: Path) -> None:
    (tmp_path / "runs" / "broken").mkdir(parents=True)
    (tmp_path / "runs" / "broken" / "spec.json").write_text("{")
    runs = agent2rl.load_runs(tmp_path / "runs", earlier.root)
    assert [run.id for run in runs] == [earlier.run_id]
    assert "broken" in runs.unreadable[0]
    with pytest.raises(UserError, match="There is no directory"):
        agent2rl.load_runs(tmp_path / "nothing")


def test_importing_the_package_loads_nothing_else() -> None:
    code = "import agent2rl, sys; assert not {'numpy', 'pydantic', 'agent2rl.notebook'} & {*sys.modules}"
    subprocess.run([sys.executable, "-c", f"{code}; assert 'load_runs' in dir(agent2rl)"], check=True)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        getattr(agent2rl, "nothing")  # noqa: B009
