"""The grading service by itself, without an agent: what it takes in, answers and writes down."""

import json
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

import httpx
import numpy as np
import pytest

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
    find_best_submission,
)
from agent2rl.core.records import Budget, Limits, RunSpec
from agent2rl.grading.api import create_grading_app
from agent2rl.grading.base_model import read_base_model
from agent2rl.grading.grading_child import GradingChild, SplitFile
from agent2rl.grading.lineage import LineageReport, WeightsOrigin, trace_weights
from agent2rl.grading.server import serve_on_socket
from agent2rl.grading.service import GradingService, GradingSetup
from agent2rl.grading.untrusted_model_files import weights_sha256
from agent2rl.models.abacus import Abacus
from agent2rl.record.ledger import read_ledger
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
        transport = httpx.HTTPTransport(uds=str(socket))
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
    service.meter.begin()
    service.meter.stepped(won=False)
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
    at_two = replace(service.graded, gpus=("2", "3"))
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


def write_trained(recorder: Recorder, name: str) -> str:
    """Write the abacus with other weights, and return the path to submit."""
    model = Abacus.base()
    model.weight[:] += np.random.default_rng(0).normal(0, 0.01, model.weight.shape).astype("float32")
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
    monkeypatch.setattr("agent2rl.grading.service.trace_weights", wait_and_trace)
    examples = registry.find_task("gsm8k-mini").load(None).feedback[:5]
    splits: dict[Split, SplitFile] = {"feedback": write_split_file(examples, tmp_path / "splits")}
    graded = replace(service.graded, child=replace(service.graded.child, splits=splits))
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
    monkeypatch.setattr("agent2rl.grading.service.SPARE_BYTES", 10**18)
    monkeypatch.setattr("agent2rl.grading.freeze.share_blocks", lambda *_: False)
    with connect(service) as client:
        answer = client.post("/submit", json={"model_path": "output/second"}).json()
    service.finish_gradings()
    assert answer["verdict"] == "rejected"
    assert "does not fit on the disk" in answer["message"]
    assert answer["message"].endswith("so you can delete it. You submitted: output/first.")
