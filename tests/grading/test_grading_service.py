"""The grading service by itself, without an agent: what it takes in, answers and writes down."""

import json
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path, PurePosixPath
from typing import Any

import httpx
import numpy as np
import pytest
from safetensors.numpy import save_file

from agent2rl import registry
from agent2rl.analysis.statistics import score_evaluation
from agent2rl.core.grading_records import (
    EvalResult,
    EvalScore,
    EvalSettings,
    ExampleResult,
    Interval,
    Lineage,
    Split,
    Submission,
    describe_kept_weights,
    find_best_submission,
)
from agent2rl.core.records import Budget, KeptWeights, Limits, RunSpec
from agent2rl.grading.api import create_grading_app
from agent2rl.grading.base_model import read_base_model
from agent2rl.grading.grading_child import GradingChild, SplitFile
from agent2rl.grading.lineage import LineageReport, WeightsOrigin, trace_weights
from agent2rl.grading.server import serve_on_socket
from agent2rl.grading.service import GradingService
from agent2rl.grading.untrusted_model_files import weights_sha256
from agent2rl.grading.verdict_maker import GradingSetup
from agent2rl.grading.verify import verify_run
from agent2rl.models.abacus import Abacus
from agent2rl.net.keyed_transports import KeyedTransport
from agent2rl.record.ledger import read_ledger
from agent2rl.record.reader import read_run
from agent2rl.record.recorder import Recorder
from agent2rl.run.assets import write_split_file

WORKSPACE = PurePosixPath("/workspace")


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[Recorder]:
    budget = Budget(wall_seconds=600)
    spec = RunSpec(task="gsm8k-mini", agent="nop", model="abacus", engine="scripted", budget=budget)
    with Recorder.create(tmp_path / "runs", spec, lambda _: None) as recorder:
        (recorder.paths.workspace / "output").mkdir(parents=True)
        yield recorder


@pytest.fixture
def service(tmp_path: Path, recorder: Recorder) -> GradingService:
    """Open for submissions, with the untrained abacus as the base model and a baseline of 0."""
    Abacus.base().save(tmp_path / "base")
    child = GradingChild(
        sandbox=registry.find_sandbox("local"),
        task="gsm8k-mini",
        engine="scripted:agent2rl.models.abacus:solver",
        settings=EvalSettings(),
        splits={},
        limits=Limits(memory_bytes=1 << 30, disk_bytes=1 << 30, processes=100),
        seconds=60,
    )
    wrong = EvalResult(results=(ExampleResult(id="1", output="", score=0.0),))
    setup = GradingSetup(
        seen_at=WORKSPACE,
        base=read_base_model(tmp_path / "base"),
        base_seen_at=PurePosixPath("models/abacus"),
        baseline=score_evaluation(wrong, "feedback"),
        child=child,
    )
    service = GradingService(setup, Budget(wall_seconds=600), recorder, threading.Event())
    service.start()
    shutil.copytree(tmp_path / "base", recorder.paths.workspace / "output" / "copy")
    return service


@contextmanager
def connect(service: GradingService, has_world: bool = False) -> Iterator[httpx.Client]:
    with serve_on_socket(create_grading_app(service, "gsm8k-mini", has_world)) as socket:
        transport = KeyedTransport(socket)
        with httpx.Client(transport=transport, base_url="http://grading", timeout=300) as client:
            yield client


def test_a_copy_of_the_base_model_gets_the_baseline_and_is_on_the_record(
    service: GradingService, recorder: Recorder
) -> None:
    number = service.submit("output/copy").id
    service.finish_gradings()
    done = service.find_submission(number)
    assert done is not None
    assert (done.verdict, done.lineage, done.improvement) == ("scored", "copied", 0.0)
    ledger = read_ledger(recorder.paths.ledger, recorder.paths.ledger_head)
    assert [entry.kind for entry in ledger.entries] == ["opened", "submitted", "graded"]


def test_nothing_in_the_directory_is_rejected_with_what_to_do(service: GradingService) -> None:
    refused = service.submit("output/none")
    service.finish_gradings()
    assert refused.verdict == "rejected"
    assert "Save the model, then submit again." in refused.message


def test_a_request_that_no_text_can_hold_is_malformed_and_not_an_error_of_the_service(
    service: GradingService,
) -> None:
    bodies = (
        b'{"model_path": "output/copy", "\\ud800": 1}',
        b'{"model_path": "\\ud800"}',
        b'{"model_path": "output/copy", "gpu": "\\udfff"}',
        b'{"model_path": NaN}',
        b"[" * 30_000,
        b"\xff\xfe",
    )
    with connect(service) as client:
        for body in bodies:
            answer = client.post("/submissions", content=body, headers={"Content-Type": "application/json"})
            assert answer.status_code == 400, body
    service.finish_gradings()
    assert not service.list_submissions()


def test_a_verdict_that_cannot_be_written_down_is_told_to_nobody(
    service: GradingService, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(recorder, "record_verdict", fail)
    with connect(service) as client:
        answer = client.post("/submit", json={"model_path": "output/copy"})
        assert answer.status_code == 503
        assert "could not be recorded" in answer.json()["detail"]
        (listed,) = client.get("/submissions").json()
    assert (listed["verdict"], listed["score"]) == (None, None)
    assert service.find_best() is None
    service.finish_gradings()


def test_the_lineage_of_a_submission_is_pending_until_it_is_graded(
    service: GradingService, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_record = threading.Event()
    record = recorder.record_verdict

    def wait_and_record(submission: Submission) -> None:
        may_record.wait(60)
        record(submission)

    monkeypatch.setattr(recorder, "record_verdict", wait_and_record)
    with connect(service) as client:
        accepted = client.post("/submissions", json={"model_path": "output/copy"}).json()
        assert (accepted["verdict"], accepted["lineage"]) == (None, "pending")
        may_record.set()
        assert client.get("/submissions/1?wait=60").json()["lineage"] == "copied"
    service.finish_gradings()


def test_the_clock_shows_steps_played_and_left_even_without_a_limit(service: GradingService) -> None:
    service.meter.begin_episode()
    service.meter.count_step(won=False)
    with connect(service, has_world=True) as client:
        clock = client.get("/time").json()
    assert clock["environment_steps_left"] is None
    assert clock["environment_steps"] == {"played": 1, "served": 1, "claimed": 0, "left": "unlimited"}
    with connect(service) as client:
        assert client.get("/time").json()["environment_steps"] is None
    service.finish_gradings()


def test_the_best_submission_is_the_earliest_of_those_with_the_largest_improvement() -> None:
    def graded(number: int, score: float, improvement: float, lineage: Lineage = "derived") -> Submission:
        ci = Interval(low=0, high=100, method="wilson")
        return Submission(
            id=number,
            path=f"output/v{number}",
            accepted_at=0,
            verdict="scored",
            score=EvalScore(value=score, ci=ci, n=10, split="feedback"),
            improvement=improvement,
            lineage=lineage,
        )

    waiting = Submission(id=1, path="output/v1", accepted_at=0)
    gained = [graded(3, 50, 40), graded(2, 50, 40), graded(4, 60, 20), graded(5, 70, 70, "foreign")]
    best = find_best_submission([waiting, *gained])
    assert best is not None
    assert best.id == 2
    assert find_best_submission([waiting, graded(2, 0, -5)]) is not None
    assert find_best_submission([waiting, graded(6, 10, 0, "copied")]) is None


def test_a_list_of_gpus_is_taken_and_the_first_one_grades(
    service: GradingService, recorder: Recorder
) -> None:
    at_two = replace(service.setup, gpus=("2", "3"))
    service = GradingService(at_two, service.budget, recorder, threading.Event())
    service.start()
    with connect(service) as client:
        for gpu in ("3,2", "3, 2", "3", 3):
            client.post("/submissions", json={"model_path": "output/none", "gpu": gpu}).raise_for_status()
        refused = client.post("/submit", json={"model_path": "output/none", "gpu": "2,7"})
    service.finish_gradings()
    assert [submission.gpu for submission in service.list_submissions()] == ["3"] * 4
    assert refused.status_code == 400
    assert refused.json()["available_gpus"] == ["2", "3"]
    assert refused.json()["error"] == refused.json()["detail"]


def test_an_answer_has_an_error_exactly_when_there_is_no_score(service: GradingService) -> None:
    with connect(service) as client:
        failed = client.post("/submit", json={"model_path": "output/none"}).json()
        scored = client.post("/submit", json={"model_path": "output/copy"}).json()
        listed = client.get("/submissions").json()
    service.finish_gradings()
    assert failed["error"] == failed["message"]
    assert "error" not in scored
    assert ["error" in each for each in listed] == [True, False]


def test_the_best_is_an_object_even_before_there_is_one(service: GradingService) -> None:
    with connect(service) as client:
        answer = client.post("/submit", json={"model_path": "output/copy"}).json()
    service.finish_gradings()
    assert answer["best"]["baseline_score"] == 0.0
    assert {value for name, value in answer["best"].items() if name != "baseline_score"} == {None}


@pytest.mark.parametrize("spoilt", ["a folder", "a link", "no workspace"])
def test_a_scores_file_that_cannot_be_written_delays_no_verdict(
    service: GradingService, recorder: Recorder, tmp_path: Path, spoilt: str
) -> None:
    place, outside = recorder.paths.workspace / "scores.json", tmp_path / "outside"
    place.unlink(missing_ok=True)
    outside.write_text("kept")
    if spoilt == "a folder":
        (place / "deep").mkdir(parents=True)
    elif spoilt == "a link":
        place.symlink_to(outside)
    number = service.submit("output/copy").id
    if spoilt == "no workspace":
        recorder.paths.workspace.rename(tmp_path / "away")
    service.finish_gradings()
    graded = service.find_submission(number)
    assert graded is not None
    assert graded.verdict == "scored"
    assert outside.read_text() == "kept"
    if spoilt == "a link":
        assert [entry["submission_id"] for entry in json.loads(place.read_text())] == [number]
        assert not place.is_symlink()


def write_trained(recorder: Recorder, name: str, seed: int = 0) -> str:
    """Write the abacus with other weights, and return the path to submit."""
    model = Abacus.base()
    model.weight[:] += np.random.default_rng(seed).normal(0, 0.01, model.weight.shape).astype("float32")
    model.save(recorder.paths.workspace / "output" / name)
    return f"output/{name}"


def list_kinds(recorder: Recorder) -> list[str]:
    ledger = read_ledger(recorder.paths.ledger, recorder.paths.ledger_head)
    return [entry.kind for entry in ledger.entries]


def test_the_weights_are_compared_while_the_submission_is_graded(
    service: GradingService, recorder: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_results = threading.Event()
    record_results, trace = recorder.record_results, trace_weights

    def record_and_tell(*arguments: Any, **extra: Any) -> None:
        record_results(*arguments, **extra)
        has_results.set()

    def wait_and_trace(*arguments: Any) -> WeightsOrigin:
        assert has_results.wait(60), "the grading waits for the comparison"
        return trace(*arguments)

    monkeypatch.setattr(recorder, "record_results", record_and_tell)
    monkeypatch.setattr("agent2rl.grading.siblings.trace_weights", wait_and_trace)
    examples = registry.find_task("gsm8k-mini").load(None).feedback[:5]
    splits: dict[Split, SplitFile] = {"feedback": write_split_file(examples, tmp_path / "splits")}
    graded = replace(service.setup, child=replace(service.setup.child, splits=splits))
    service = GradingService(graded, service.budget, recorder, threading.Event())
    service.start()
    number = service.submit(write_trained(recorder, "trained")).id
    service.finish_gradings()
    done = service.find_submission(number)
    assert done is not None
    assert done.verdict == "scored", done.message
    assert done.weights_sha256 == weights_sha256(recorder.paths.submission_paths(number).model)
    assert list_kinds(recorder) == ["opened", "submitted", "results", "lineage", "graded"]
    origin = LineageReport.model_validate_json(recorder.paths.submission_paths(number).lineage.read_bytes())
    assert done.lineage == origin.verdict


def test_the_origin_of_weights_that_could_not_be_graded_is_on_the_record(
    service: GradingService, recorder: Recorder
) -> None:
    number = service.submit(write_trained(recorder, "trained")).id  # the service has no examples
    service.finish_gradings()
    done = service.find_submission(number)
    assert done is not None
    assert done.verdict == "failed"
    assert list_kinds(recorder) == ["opened", "submitted", "lineage", "graded"]


def test_a_submission_that_does_not_fit_on_the_disk_is_rejected_with_what_to_delete(
    service: GradingService, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("first", "second"):
        service.submit(write_trained(recorder, name))
    service.submit("output/none")
    monkeypatch.setattr("agent2rl.grading.submission_freezer.SPARE_BYTES", 10**18)
    monkeypatch.setattr("agent2rl.grading.freeze.share_blocks", lambda *_: False)
    with connect(service) as client:
        answer = client.post("/submit", json={"model_path": "output/second"}).json()
    service.finish_gradings()
    assert answer["verdict"] == "rejected"
    assert "does not fit on the disk" in answer["message"]
    assert answer["message"].endswith("so you can delete it. You submitted: output/first.")


def test_an_adapter_whose_merged_weights_do_not_fit_on_the_disk_is_rejected(
    service: GradingService, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_adapter(recorder, "adapter", outputs=Abacus.base().weight.shape[0])
    monkeypatch.setattr("agent2rl.grading.submission_freezer.SPARE_BYTES", 10**18)
    monkeypatch.setattr("agent2rl.grading.freeze.share_blocks", lambda *_: True)  # so the copy itself fits
    refused = service.submit(path)
    assert refused.verdict == "rejected"
    assert "the merged model does not fit on the disk" in refused.message
    assert "Delete files that you no longer need" in refused.message
    assert (refused.kept, refused.content_sha256) == (False, None)  # so that it can be submitted again
    assert list_copies(recorder) == []
    service.finish_gradings()


def test_an_adapter_of_another_model_is_rejected_with_what_does_not_fit(
    service: GradingService, recorder: Recorder
) -> None:
    wide = service.submit(write_adapter(recorder, "wide", outputs=7)).id
    elsewhere = service.submit(write_adapter(recorder, "elsewhere", outputs=7, module="tail")).id
    service.finish_gradings()
    for number, reason in ((wide, "incomplete or of a wrong shape"), (elsewhere, "not of the base model")):
        done = service.find_submission(number)
        assert done is not None
        assert done.verdict == "rejected"
        assert f"The adapter does not fit the base model. Its tensors are {reason}" in done.message


def write_adapter(recorder: Recorder, name: str, outputs: int, module: str = "head") -> str:
    """Write a LoRA adapter of the abacus, and return the path to submit."""
    directory = recorder.paths.workspace / "output" / name
    directory.mkdir()
    config = {"peft_type": "LORA", "r": 1, "lora_alpha": 1, "target_modules": [module]}
    (directory / "adapter_config.json").write_text(json.dumps(config))
    inputs = Abacus.base().weight.shape[1]
    layers = {"A": np.ones((1, inputs), "float32"), "B": np.ones((outputs, 1), "float32")}
    save_file(
        {f"base_model.model.{module}.lora_{part}.weight": layer for part, layer in layers.items()},
        directory / "adapter_model.safetensors",
    )
    return f"output/{name}"


# Which frozen copies are kept


@dataclass(frozen=True)
class PlannedChild(GradingChild):
    """Gives each model the next score."""

    scores: list[float] = field(default_factory=list)
    first_gpu_waits: threading.Event = field(default_factory=threading.Event)

    def grade_model(self, *_: object) -> EvalResult:
        if self.gpu == "0":
            assert self.first_gpu_waits.wait(60)
        return EvalResult(results=(ExampleResult(id="1", output="", score=self.scores.pop(0)),))


def plan_scores(
    service: GradingService, recorder: Recorder, scores: list[float], keep: KeptWeights, *gpus: str
) -> GradingService:
    own = {each.name: getattr(service.setup.child, each.name) for each in fields(GradingChild)}
    child = PlannedChild(**own, scores=scores)
    graded = replace(service.setup, child=child, gpus=gpus)
    service = GradingService(graded, service.budget, recorder, threading.Event(), keep=keep)
    service.start()
    return service


def list_copies(recorder: Recorder) -> list[int]:
    return sorted(int(path.parent.name) for path in recorder.paths.submissions.glob("*/model"))


def test_a_better_submission_takes_the_place_of_the_best_so_far(
    service: GradingService, recorder: Recorder
) -> None:
    service = plan_scores(service, recorder, [0.2, 0.1, 0.5], "best")
    for seed in range(3):
        service.submit(write_trained(recorder, f"v{seed}", seed))
    service.finish_gradings()
    best = service.find_best()
    assert best is not None
    assert (best.id, list_copies(recorder)) == (3, [3])
    assert [each.kept for each in service.list_submissions()] == [False, False, True]
    view = read_run(recorder.paths)
    assert [each.kept for each in view.submissions] == [False, False, True]
    dropped = [entry.data["submission"] for entry in view.chain.entries if entry.kind == "dropped"]
    assert [each["id"] for each in dropped if isinstance(each, dict)] == [1]
    assert all(recorder.paths.submission_paths(number).manifest.is_file() for number in (1, 2, 3))
    verified = verify_run(recorder.paths)
    assert verified.holds, verified.fault
    assert "weights were kept only of submission 3; of the others, manifests and results are checked" in (
        verified.notes
    )


def test_all_copies_are_kept_on_request_but_for_repeats(service: GradingService, recorder: Recorder) -> None:
    service = plan_scores(service, recorder, [0.2, 0.1], "all")
    for seed in (0, 1, 1):
        service.submit(write_trained(recorder, f"v{seed}", seed))
    service.finish_gradings()
    assert list_copies(recorder) == [1, 2]
    assert describe_kept_weights(service.list_submissions()) == "only of submissions 1, 2"


def test_of_equals_that_are_graded_at_once_the_earlier_is_the_best_and_kept(
    service: GradingService, recorder: Recorder
) -> None:
    service = plan_scores(service, recorder, [0.5, 0.5], "best", "0", "1")
    child = service.setup.child
    assert isinstance(child, PlannedChild)
    service.submit(write_trained(recorder, "first", 0), "0")
    with connect(service) as client:
        later = write_trained(recorder, "later", 1)
        assert client.post("/submit", json={"model_path": later, "gpu": "1"}).json()["verdict"] == "scored"
    assert list_copies(recorder) == [1, 2]
    child.first_gpu_waits.set()
    service.finish_gradings()
    best = service.find_best()
    assert best is not None
    assert (best.id, list_copies(recorder)) == (1, [1])


def test_a_copy_that_could_not_be_dropped_is_dropped_with_the_next_verdict(
    service: GradingService, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    drop, is_full = recorder.drop_copy, [True]

    def drop_or_fail(submission: Submission) -> Submission:
        if is_full.pop():
            is_full.append(False)
            raise OSError(28, "No space left on device")
        is_full.append(False)
        return drop(submission)

    monkeypatch.setattr(recorder, "drop_copy", drop_or_fail)
    service = plan_scores(service, recorder, [0.2, 0.5, 0.1], "best")
    with connect(service) as client:
        for seed in range(3):
            path = write_trained(recorder, f"v{seed}", seed)
            assert client.post("/submit", json={"model_path": path}).json()["verdict"] == "scored"
    service.finish_gradings()
    assert list_copies(recorder) == [2]
