"""`agent2rl rejudge`: kept outputs graded again by another judge or rule, through the real command line."""

import hashlib
import json
from pathlib import Path

import pytest

from agent2rl.core.engine import Chat
from agent2rl.engines.scripted import ScriptedEngine
from agent2rl.evaluators.pairwise import Pairwise
from agent2rl.record.paths import RunPaths
from agent2rl.run.rejudging import Rejudgement
from tests.helpers import short_alpacaeval
from tests.helpers.bundle_files import BundleParts, unpack_earlier_run
from tests.helpers.openai_server import serve_engine
from tests.helpers.run_launcher import FinishedRun, RunLauncher

ROOT = Path(__file__).resolve().parents[2]
TASK = "tests.helpers.short_alpacaeval:TASK"
LOCAL = ("--sandbox", "local")
EVALUATOR = short_alpacaeval.TASK.evaluator
assert isinstance(EVALUATOR, Pairwise)
REFERENCES = {EVALUATOR.reference(example) for example in short_alpacaeval.load_splits(None).feedback}


def prefer_the_model(chat: Chat) -> str:
    """A judge that likes every answer better than the reference."""
    first = json.loads(next(line for line in chat[-1].content.splitlines() if line.startswith('"')))
    return "B" if first in REFERENCES else "A"


def hash_files(paths: RunPaths) -> dict[str, str]:
    files = [path for path in paths.root.rglob("*") if path.is_file()]
    return {paths.relative_name(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.fixture(scope="module")
def run(shared_launcher: RunLauncher) -> FinishedRun:
    """A run that the task's rule graded, of the base model alone."""
    finished = shared_launcher.run("pass", "--task", TASK, *LOCAL, PYTHONPATH=str(ROOT))
    assert finished.result.baseline is not None, finished.errors
    return finished


def test_another_judge_grades_the_same_outputs_and_both_scores_are_shown(
    shared_launcher: RunLauncher, run: FinishedRun
) -> None:
    before = hash_files(run.paths)
    with serve_engine(ScriptedEngine(prefer_the_model)) as judge:
        command = ("rejudge", run.result.run_id, "--judge", f"openai-api:tiny@{judge.url}", *LOCAL)
        done = shared_launcher.cli(*command, "--json", PYTHONPATH=str(ROOT))
        assert done.returncode == 0, done.stderr
        assert judge.questions
    rejudged = Rejudgement.model_validate_json(done.stdout)
    (score,) = rejudged.scores
    assert run.result.baseline is not None
    assert (score.submission, score.split, score.old.value) == (0, "feedback", run.result.baseline.value)
    assert score.new.value == 100
    assert str(score.new.how["judge"]).startswith("tiny@")
    assert score.difference.improvement == pytest.approx(100 - score.old.value)
    assert score.difference.ci.method == "paired-bootstrap"
    assert rejudged.old_rule == "the task's rule"
    assert "judged by openai-api:tiny@" in rejudged.new_rule
    assert hash_files(run.paths) == before


def test_the_old_rule_gives_the_old_scores(tmp_path: Path, launcher: RunLauncher) -> None:
    paths = unpack_earlier_run(tmp_path / "runs")
    done = launcher.cli("rejudge", str(paths.root), "--rule", "task", "--submission", "1", *LOCAL, "--json")
    assert done.returncode == 0, done.stderr
    rejudged = Rejudgement.model_validate_json(done.stdout)
    assert [(each.submission, each.split) for each in rejudged.scores] == [
        (0, "feedback"),
        (0, "heldout"),
        (1, "feedback"),
    ]
    assert [each.old.value for each in rejudged.scores] == [each.new.value for each in rejudged.scores]
    (gain,) = rejudged.gains
    assert gain.old == gain.new
    assert gain.old.improvement > 0
    assert rejudged.notes == rejudged.not_graded == ()


@pytest.mark.thorough
def test_what_cannot_be_graded_again_is_said(
    launcher: RunLauncher, shared_launcher: RunLauncher, run: FinishedRun, tmp_path: Path
) -> None:
    def refuse(*arguments: str) -> str:
        done = launcher.cli("rejudge", *arguments, *LOCAL, PYTHONPATH=str(ROOT))
        assert done.returncode == 2, done.stdout
        return done.stderr

    paths = unpack_earlier_run(tmp_path / "received")
    name = str(paths.root)
    assert "Choose a judge or a rule" in refuse(name)
    assert "is scored by a rule, not a judge" in refuse(name, "--judge", "model:abacus")
    assert "has no submission 9" in refuse(name, "--rule", "task", "--submission", "9")
    assert "The task here has no example" in refuse(name, "--rule", "task", "--task", "humaneval-mini")
    bundle = str(tmp_path / "run.tar.zst")
    done = launcher.cli("bundle", str(run.paths.root), "-o", bundle)
    assert done.returncode == 0, done.stderr
    assert "Name the task here" in refuse(bundle, "--rule", "task")
    parts = BundleParts.read(Path(bundle).read_bytes())
    spec = json.dumps({**json.loads(parts.files["spec.json"]), "task": str(tmp_path)})  # a folder here
    Path(bundle).write_bytes(parts.with_file("spec.json", spec.encode()).build())
    assert "Name the task here" in refuse(bundle, "--rule", "task")
    mine = paths.spec.read_text(encoding="utf-8")
    for task in ("imported_when_named:TASK", f"folder:{tmp_path}", str(tmp_path)):
        marker = tmp_path / "imported"
        (launcher.home / "imported_when_named.py").write_text(f"open({str(marker)!r}, 'w')", encoding="utf-8")
        paths.spec.write_text(json.dumps({**json.loads(mine), "task": task}), encoding="utf-8")
        assert "Name the task here" in refuse(name, "--rule", "task")
        assert not marker.exists()
    paths.spec.write_text(mine, encoding="utf-8")
    for file in (paths.baseline.root.glob("*.jsonl"), paths.submissions.glob("*/*.jsonl")):
        for path in file:
            path.unlink()
    assert "Nothing of" in refuse(name, "--rule", "task")
