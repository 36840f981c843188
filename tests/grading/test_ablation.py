"""What files beside the weights gain by themselves does not count: whole runs with a model that a chat format
makes answer at all."""

import json
from pathlib import Path

import pytest

from agent2rl.core.engine import USUAL_FORMATS
from agent2rl.core.grading_records import Submission
from agent2rl.grading.verify import verify_run
from agent2rl.models.abacus import Abacus
from agent2rl.tasks.gsm8k.mini import TASK
from tests.helpers.run_launcher import FinishedRun, RunLauncher

REPOSITORY = Path(__file__).parents[2]
AGENT = """
from agent2rl.models.abacus import Abacus
import numpy as np
rows = [json.loads(line) for line in (DATA / "train.jsonl").read_text().splitlines()]
FORMAT = {"system": {}, "user": {}, "assistant": {}, "generation_prompt": "please"}

def saved(name, model, chat_format=FORMAT):
    model.save(OUTPUT / name)
    if chat_format:
        (OUTPUT / name / "chat_format.json").write_text(json.dumps(chat_format))
    return submit(OUTPUT / name)

base = Abacus.load(MODEL)
say(copied=saved("copied", base))
touched = Abacus(base.weight * np.float32(1.0001), base.bias)
say(touched=saved("touched", touched))
better = Abacus.load(MODEL)
more = rows[60:300]
better.fit([row["question"] for row in more], [row["answer"] for row in more])
say(unasked=saved("unasked", better, None), better=saved("better", better))
worse = Abacus(-base.weight, -base.bias)
say(worse=saved("worse", worse))
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> FinishedRun:
    """A base model that is good at the task and says nothing unless it is asked nicely."""
    place = tmp_path_factory.mktemp("ablation")
    (place / "home").mkdir()
    examples = TASK.load(None).train[:60]
    model = Abacus.base()
    model.fit([one.prompt for one in examples], [one.target for one in examples], epochs=2)
    model.save(place / "model")
    for path in (place / "model").iterdir():
        path.chmod(0o644)
    launcher = RunLauncher(place / "runs", cache, place / "home")
    engine = "scripted:tests.grading.format_dependent_abacus:open_format_dependent_abacus"
    run = launcher.run(AGENT, "--model", str(place / "model"), "--engine", engine, PYTHONPATH=str(REPOSITORY))
    assert run.result.ending == "completed", (run.result.reason, run.log)
    return run


def recorded(run: FinishedRun, name: str) -> Submission:
    path = run.paths.submission_paths(run.said[name]["submission_id"]).record
    return Submission.model_validate_json(path.read_bytes())


def test_the_base_models_own_weights_are_the_baseline_under_any_format(run: FinishedRun) -> None:
    answer = run.said["copied"]
    assert (answer["lineage"], answer["score"], answer["improvement"]) == ("copied", 0.0, 0.0)


def test_a_gain_that_the_format_makes_alone_is_rejected_with_both_figures(run: FinishedRun) -> None:
    answer, record = run.said["touched"], recorded(run, "touched")
    assert (answer["verdict"], answer["score"], answer["improvement"]) == ("rejected", None, None)
    assert record.ablated is not None
    assert record.ablated.value > 20
    assert answer["message"].startswith("The gain does not come from training.")
    assert f"own weights score {record.ablated.value:.2f} (baseline 0.00)" in answer["message"]


def test_of_a_trained_model_only_what_training_gained_counts(run: FinishedRun) -> None:
    answer, record = run.said["better"], recorded(run, "better")
    assert record.ablated is not None
    assert answer["verdict"] == "scored"
    assert answer["improvement"] == pytest.approx(answer["score"] - record.ablated.value)
    assert 0 < answer["improvement"] < answer["score"]
    assert "Only the difference counts" in answer["message"]


def test_the_same_files_beside_other_weights_are_graded_once_and_so_are_usual_formats(
    run: FinishedRun,
) -> None:
    entries = [json.loads(line) for line in run.paths.ledger.read_text().splitlines()]
    files = [entry["data"]["file"] for entry in entries if entry["kind"] == "results"]
    ablations = [name for name in files if name.startswith("ablations/")]
    assert len(ablations) == len(set(ablations)) == 2 * (1 + len(USUAL_FORMATS))


def test_a_submission_without_a_gain_needs_no_ablation(run: FinishedRun) -> None:
    assert recorded(run, "unasked").ablated is None
    assert (run.said["unasked"]["score"], run.said["unasked"]["improvement"]) == (0.0, 0.0)


def test_the_held_out_gain_is_counted_from_the_ablation_too(run: FinishedRun) -> None:
    result = run.result
    assert result.best is not None
    assert result.best.id == run.said["better"]["submission_id"]
    assert result.baseline_heldout is not None
    assert result.best_heldout is not None
    assert result.ablated_heldout is not None
    gain = result.best_heldout.value - result.ablated_heldout.value
    assert result.improvement == pytest.approx(gain)
    assert result.score == pytest.approx(result.baseline_heldout.value + gain)
    assert result.ablated_heldout.value > result.baseline_heldout.value == 0
    assert verify_run(run.paths).holds


def test_the_ledger_pins_the_answers_of_the_ablation(run: FinishedRun) -> None:
    entries = [json.loads(line) for line in run.paths.ledger.read_text().splitlines()]
    pinned = {entry["data"]["file"] for entry in entries if entry["kind"] == "results"}
    best = run.result.best
    assert best is not None
    assert {f"ablations/{best.ablation}/{split}.jsonl" for split in ("feedback", "heldout")} <= pinned
