"""The grading service by itself, without an agent: what it takes in, answers and writes down."""

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import httpx
import pytest

from agent2rl import registry
from agent2rl.analysis.statistics import score_evaluation
from agent2rl.core.grading_records import EvalResult, EvalSettings, ExampleResult
from agent2rl.core.records import Budget, Limits, RunSpec
from agent2rl.grading.api import create_grading_app
from agent2rl.grading.base_model import read_base_model
from agent2rl.grading.grading_child import GradingChild
from agent2rl.grading.server import serve_on_socket
from agent2rl.grading.service import GradingService, GradingSetup
from agent2rl.models.abacus import Abacus
from agent2rl.record.ledger import read_ledger
from agent2rl.record.recorder import Recorder

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


def test_a_verdict_that_cannot_be_written_down_is_told_to_nobody(
    service: GradingService, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(recorder, "record_verdict", fail)
    with serve_on_socket(create_grading_app(service, "gsm8k-mini")) as socket:
        transport = httpx.HTTPTransport(uds=str(socket))
        with httpx.Client(transport=transport, base_url="http://grading", timeout=300) as client:
            answer = client.post("/submit", json={"model_path": "output/copy"})
            assert answer.status_code == 503
            assert "could not be recorded" in answer.json()["detail"]
            (listed,) = client.get("/submissions").json()
    assert (listed["verdict"], listed["score"]) == (None, None)
    assert service.find_best() is None
    service.finish_gradings()
