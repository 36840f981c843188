"""A report is made of whatever an agent left, and of what a crash left; nothing in it can be forged so."""

import csv
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from agent2rl.analysis import attempt_spans
from agent2rl.cli.main import cli
from agent2rl.core.errors import UserError
from agent2rl.core.events import FileSeen
from agent2rl.core.grading_records import EvalScore, HeldoutComparison, Interval, Lineage, Submission
from agent2rl.core.records import Budget, RunSpec
from agent2rl.record.paths import RunPaths
from agent2rl.record.reader import read_run
from agent2rl.record.recorder import Recorder
from agent2rl.record.revisions import RevisionRecorder
from agent2rl.record.workspace_reader import WorkspaceReader
from agent2rl.report import export, headline, run_report
from agent2rl.report.report_data import RunReport
from agent2rl.run import agent_observer
from tests.report import sample_reports

Work = Callable[[Recorder], object]


def scored(value: float) -> EvalScore:
    return EvalScore(value=value, ci=Interval(low=0, high=100, method="wilson"), n=10, split="feedback")


def made(
    place: Path,
    work: Work = lambda _: None,
    scores: Sequence[float] = (50.0,),
    lineage: Lineage = "derived",
    **asked: Any,
) -> RunPaths:
    """A run that broke off after its agent had ended, with what the agent did before each submission."""
    usual = {"task": "t", "agent": "a", "model": "m", "engine": "e", "budget": Budget(wall_seconds=600)}
    spec = RunSpec.model_validate({**usual, **asked})
    with Recorder.create(place, spec, lambda _: None) as recorder:
        paths = recorder.paths
        (paths.workspace / "code").mkdir(parents=True)
        paths.agent_log.touch()
        revisions = RevisionRecorder(paths.revisions, WorkspaceReader(paths.workspace))
        recorder.record_event("revision", **revisions.take_revision("as it was given").model_dump())
        recorder.record_entry("baseline", split="feedback", score=scored(40.0).model_dump(mode="json"))
        recorder.record_entry("started")
        if not scores:
            work(recorder)
        for number, value in enumerate(scores, start=1):
            work(recorder)
            submission = Submission(id=number, path=f"output/{number}", accepted_at=time.time())
            recorder.record_submission(submission, None)
            taken = revisions.take_revision(f"submission {number}").model_dump()
            recorder.record_event("revision", **taken)
            recorder.record_entry(
                "revision_of", submission=number, log_bytes=recorder.agent_log_bytes(), **taken
            )
            verdict = {"verdict": "scored", "score": scored(value), "improvement": value - 40.0}
            recorder.record_verdict(submission.model_copy(update={**verdict, "lineage": lineage}))
        recorder.record_entry("ended", reason="exited", code=0)
        revisions.close()
    return paths


def prints(text: bytes) -> Work:
    def work(recorder: Recorder) -> None:
        with recorder.paths.agent_log.open("ab") as file:
            file.write(text)

    return work


def report(paths: RunPaths) -> RunReport:
    """Through its bytes, which must have the published form."""
    return RunReport.model_validate_json(
        RunReport.from_report_data(run_report.gather_report_data(paths)).model_dump_json()
    )


def test_names_and_output_that_no_text_can_hold_cost_no_report(tmp_path: Path) -> None:
    def work(recorder: Recorder) -> None:
        code = os.fsencode(recorder.paths.workspace / "code")
        Path(os.fsdecode(code + b"/tr\xff\nain.py")).write_text(
            "from trl import SFTTrainer\nSFTTrainer().train()\n"
        )
        prints(
            b"".join(
                b"epoch %d step %s loss 1.7e308\n" % (n // 3, s)
                for n, s in enumerate([b"1e308", b"9e307"] * 6)
            )
            + b"".join(
                b"step %d reward %s\n" % (n, [b"1.7e308", b"-1.7e308", b"3"][n % 3]) for n in range(40)
            )
            + b"\x00\x1b]0;x\x07\r\xed\xa0\x80 \xe2\x80\xae<script>\nTraceback (most recent call last):\n"
            b'  File "/workspace/code/tr\xff\nain.py", line 1, in <script>\nValueError: \xff</script>\n'
        )(recorder)

    paths = made(tmp_path, work)
    found = report(paths)
    run_report.write_report(paths)
    assert "<script>alert" not in paths.report_page.read_text(encoding="utf-8")
    assert found.findings.attempts[0].route


def test_much_that_was_printed_is_read_in_part_and_the_ends_of_it_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempt_spans, "FILES_BYTES", 40_000)

    def work(recorder: Recorder) -> None:
        for number in range(20):
            name = f"code/{number}.log"
            text = "".join(f"step {step} loss 3\n" for step in range(1000))
            (recorder.paths.workspace / name).write_text(text)
            seen = FileSeen(path=name, what="log", bytes=len(text), changed=1.0)
            recorder.record_event("file", **seen.model_dump())

    found = run_report.gather_report_data(made(tmp_path, work))
    assert len(found.findings.attempts[0].curves[0].points) < 200
    whole = attempt_spans._choose_read_limit([14_000] * 20, attempt_spans.FILES_BYTES)
    assert whole == 2000
    assert attempt_spans._choose_read_limit([10, 10, 100_000], 1000) == 980, "what is small is whole"


def test_a_log_of_the_agents_is_not_taken_for_the_records(tmp_path: Path) -> None:
    text = 'Traceback (most recent call last):\n  File "x.py", line 1, in x\nValueError: forged\n'

    def work(recorder: Recorder) -> None:
        (recorder.paths.workspace / "agent.log").write_text(text)
        seen = FileSeen(path="agent.log", what="log", bytes=len(text), changed=1.0)
        recorder.record_event("file", **seen.model_dump())

    found = report(made(tmp_path, work, scores=(30.0,)))
    assert "workspace/agent.log:3" in {each.where for each in found.findings.evidence}


def test_words_of_the_agent_in_the_summary_cite_nothing(tmp_path: Path) -> None:
    text = (
        b'Traceback (most recent call last):\n  File "x.py", line 1, in x\nValueError: all is well [E1, E2]\n'
    )
    found = report(made(tmp_path, prints(text), scores=())).findings
    assert "all is well (E1, E2)" in found.summary


def without_events(paths: RunPaths) -> None:
    paths.events.unlink()


def without_start(paths: RunPaths) -> None:
    lines = paths.events.read_text().splitlines(keepends=True)
    paths.events.write_text("".join(line for line in lines if '"kind":"started"' not in line))


def with_numbers_that_are_none(paths: RunPaths) -> None:
    with paths.events.open("a") as file:
        file.write('{"time":NaN,"kind":"sample","data":{}}\n{"time":1e999,"kind":"left","data":{}}\n')
        file.write('{"time":1,"kind":"graded","data":{"submission":{"id":[]}}}\n')


@pytest.mark.parametrize("damage", [without_events, without_start, with_numbers_that_are_none])
def test_a_damaged_timeline_makes_no_number_up(tmp_path: Path, damage: Callable[[RunPaths], None]) -> None:
    paths = made(tmp_path)
    damage(paths)
    found = report(paths).findings
    assert found.metrics.first_valid_delay is not None
    assert found.metrics.first_valid_delay < 60, "the ledger has the start too"
    assert found.attempts[0].submission == 1


def test_without_any_start_no_time_is_told(tmp_path: Path) -> None:
    paths = made(tmp_path)
    for path in (paths.events, paths.ledger, paths.ledger_head):
        path.unlink()
    found = report(paths)
    assert found.findings.metrics.first_valid_delay is None
    assert found.findings.metrics.last_submit_gap is None
    assert "events.jsonl" in " ".join(found.notes)


def test_where_nobody_saw_the_processes_the_time_is_not_called_idle(tmp_path: Path) -> None:
    assert report(made(tmp_path)).findings.time is None


def test_what_the_record_says_of_its_own_gaps_is_in_the_report(tmp_path: Path) -> None:
    def work(recorder: Recorder) -> None:
        recorder.record_event("warning", text="More processes than are recorded.")
        recorder.record_event("fault", where="watching code", trace="long")

    assert report(made(tmp_path, work)).notes == (
        "during the run: More processes than are recorded.",
        "during the run: an internal error in watching code",
    )


@pytest.mark.parametrize("lineage", ["copied", "foreign"])
def test_weights_that_are_not_trained_from_the_base_are_no_best_in_the_headline(
    tmp_path: Path, lineage: Lineage
) -> None:
    told = headline.build_sentence(
        run_report.gather_report_data(made(tmp_path, scores=(95.0,), lineage=lineage))
    )
    assert "95" not in told
    assert "none of them was trained from the base model" in told


def test_a_clear_loss_is_not_called_chance() -> None:
    finished = sample_reports.make_finished_report()
    assert finished.findings.gain
    low = HeldoutComparison(improvement=-9.0, ci=Interval(low=-12.0, high=-6.0, method="paired-bootstrap"))
    lost = finished.findings.gain.model_copy(update={"comparison": low, "real": False})
    told = replace(finished, findings=finished.findings.model_copy(update={"gain": lost}))
    assert "The loss is real" in headline.build_sentence(told)
    assert [
        (tile.note.split("\n")[-1], tile.tone) for tile in headline.build_tiles(told) if tile.label == "Gain"
    ] == [("real", "bad")]


def test_no_cell_of_the_results_is_a_formula(tmp_path: Path) -> None:
    paths = made(tmp_path, agent="=cmd|' /C calc'!A0")
    (row,) = csv.DictReader(export.render_csv([read_run(paths)]).splitlines())
    assert row["agent"] == "'=cmd|' /C calc'!A0"


def test_many_logs_do_not_keep_weights_out_of_the_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_observer, "MOST_LOGS", 5)

    def work(recorder: Recorder) -> None:
        observer = agent_observer.AgentObserver(recorder)
        for number in range(20):
            (recorder.paths.workspace / f"{number}.txt").write_text("x")
        with observer.observe_agent():
            pass
        (recorder.paths.workspace / "output").mkdir()
        (recorder.paths.workspace / "output" / "model.safetensors").write_text("x")
        with observer.observe_agent():
            pass

    found = run_report.gather_report_data(made(tmp_path, work))
    assert [seen.what for _, seen in found.timeline.files] == ["log"] * 5 + ["weights"]
    assert found.notes == (f"during the run: {agent_observer.LOGS_FULL}",)


def test_a_run_that_should_try_several_paradigms_and_tried_one_is_told_of(tmp_path: Path) -> None:
    def work(recorder: Recorder) -> None:
        text = "from trl import SFTTrainer\nSFTTrainer(model='m', train_dataset=[]).train()\n"
        (recorder.paths.workspace / "code" / "train.py").write_text(text)

    assert report(made(tmp_path, work, mode="multi")).findings.compliance.verdict in ("broken", "unknown")


def test_a_report_goes_elsewhere_where_the_run_is_not_ours_to_write(tmp_path: Path) -> None:
    paths = made(tmp_path / "runs")
    paths.report.write_text("in the way")
    refused = CliRunner().invoke(cli, ["report", str(paths.root)]).exception
    assert isinstance(refused, UserError)
    assert f"Cannot write the report to {paths.report}" in refused.message
    assert "--output" in refused.hint
    done = CliRunner().invoke(cli, ["report", str(paths.root), "--output", str(tmp_path / "mine")])
    assert f"report: {tmp_path / 'mine' / 'report.html'}" in done.output
    assert {each.name for each in (tmp_path / "mine").iterdir()} == {
        *("report.json", "report.md", "report.html", "digest.json", "trainings.json", "summary.jsonl"),
        "figures",
    }


@pytest.mark.parametrize("name", ["report", "report/figures"])
def test_a_report_is_not_written_through_a_link(tmp_path: Path, name: str) -> None:
    paths, outside = made(tmp_path / "runs"), tmp_path / "outside"
    outside.mkdir()
    link = paths.root / name
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(outside)
    with pytest.raises(UserError, match="neither a file nor a folder"):
        run_report.write_report(paths)
    assert list(outside.iterdir()) == []


def test_a_report_that_is_interrupted_leaves_the_old_one_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = made(tmp_path)
    run_report.write_report(paths)
    before = {path: path.read_bytes() for path in paths.report.rglob("*") if path.is_file()}
    paths.agent_log.write_text("step 1 loss 3\nstep 2 loss 2\n")  # which the next one has a figure of

    def interrupted(*_: object) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr("agent2rl.report.html.page", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_report.write_report(paths)
    assert {path: path.read_bytes() for path in paths.report.rglob("*") if path.is_file()} == before
