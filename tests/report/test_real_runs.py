"""Reports of real runs say what happened in them: agents that train, copy, crash, diverge and run out."""

import csv
import json
import shutil
from pathlib import Path

import pyarrow.parquet
import pytest

from agent2rl.analysis.findings import AttemptFindings
from agent2rl.engines.scripted import ScriptedEngine
from agent2rl.record.paths import RunPaths
from agent2rl.record.reader import read_run
from agent2rl.report import digests, export
from agent2rl.report.report_data import RunReport
from tests.helpers.openai_server import serve_engine
from tests.helpers.run_launcher import FinishedRun, RunLauncher

WORK = '''
COMMON = """
import atexit, json, os, pathlib, time
atexit.register(time.sleep, 1)  # a process that ends at once may end between two looks of a busy harness
from agent2rl.models.abacus import Abacus
rows = [json.loads(line) for line in (pathlib.Path(os.environ["DATA_PATH"]) / "train.jsonl").open()]
output = pathlib.Path(os.environ["OUTPUT_DIR"])
"""
SFT = COMMON + """
rows = rows[:40]
model = Abacus.load(os.environ["MODEL_PATH"])
model.fit([row["question"] for row in rows], [row["answer"] for row in rows], epochs=4, learning_rate=2.0,
          progress=lambda epoch, right: print(f"epoch {epoch} accuracy {right:.3f}"))
(output / "sft").mkdir(parents=True)
model.save(output / "sft")
"""
RL = COMMON + """
from agent2rl.evaluators.scorers import final_answer

gold = {row["question"]: final_answer(row["answer"]) for row in rows}

def reward(question, answer):
    return float(final_answer(answer) == gold[question])

model = Abacus.load(output / "sft")
model.reinforce(list(gold), reward, steps=60, learning_rate=2.0,
                progress=lambda step, right: print(f"step {step} reward {right:.3f}"))
(output / "rl").mkdir(parents=True)
model.save(output / "rl")
"""
HOT = COMMON + """
import shutil
import numpy as np
from safetensors.numpy import load_file, save_file

weights = load_file(output / "rl" / "model.safetensors")
bias, rate = weights["head.bias"].astype(np.float64), 40.0
target = np.eye(len(bias))[0]
with np.errstate(all="ignore"):
    for step in range(1, 61):
        chances = np.exp(bias) / np.exp(bias).sum()
        loss = -np.log(chances[0] + 1e-30) + (bias**2).sum()
        print(f"step {step} loss {loss:.4f}")
        bias = bias - rate * (chances - target + 2 * bias)
weights["head.bias"] = bias.astype(np.float32)
shutil.copytree(output / "rl", output / "hot")
save_file(weights, output / "hot" / "model.safetensors")
"""

def work(name, code):
    (WORKSPACE / "code" / name).write_text(code)
    return subprocess.run([sys.executable, f"code/{name}"], cwd=WORKSPACE).returncode
'''
BUSY = """
submit(MODEL)
work("broken.py", COMMON + "print(rows[0]['the answer'])\\n")
work("sft.py", SFT)
(WORKSPACE / "reports" / "summary.jsonl").write_text(json.dumps(
    {"attempt": 1, "route": "grpo", "what": "GRPO", "submission": 2, "score": 99.0, "learnt": "all"}) + "\\n")
submit("output/sft")
work("rl.py", RL)
submit("output/rl")
work("hot.py", HOT)
submit("output/hot")
"""


def analysed(paths: RunPaths, launcher: RunLauncher) -> RunReport:
    """Without drawing anything."""
    done = launcher.cli("show", str(paths.root), "--json")
    assert done.returncode == 0, done.stderr
    return RunReport.model_validate_json(done.stdout)


@pytest.fixture(scope="module")
def busy(shared_launcher: RunLauncher) -> FinishedRun:
    """Five things done one after the other."""
    return shared_launcher.run(WORK + BUSY, "--budget", "20m")


@pytest.fixture(scope="module")
def report(busy: FinishedRun, shared_launcher: RunLauncher) -> RunReport:
    done = shared_launcher.cli("report", str(busy.paths.root), "--json")
    assert done.returncode == 0, done.stderr
    return RunReport.model_validate_json(done.stdout)


def attempt(report: RunReport, number: int) -> AttemptFindings:
    return report.findings.attempts[number - 1]


def cited(report: RunReport, names: tuple[str, ...]) -> str:
    known = {each.id: f"{each.where}: {each.text}" for each in report.findings.evidence}
    return "\n".join(known[name] for name in names)


def test_each_submission_ends_an_attempt(report: RunReport) -> None:
    assert [each.submission for each in report.findings.attempts] == [1, 2, 3, 4]
    assert [each.outcome for each in report.findings.attempts] == ["copied", "improved", "improved", "failed"]


def test_a_copy_is_no_training(report: RunReport) -> None:
    first = attempt(report, 1)
    assert first.route
    assert first.route.routes == ("none",)
    assert first.failures[0].kind == "copied"


def test_supervised_training_is_told_by_its_code(report: RunReport) -> None:
    second = attempt(report, 2)
    assert second.route
    assert second.route.routes == ("sft",)
    assert "code/sft.py" in cited(report, second.route.evidence)
    settings = {each.name: each.value for each in second.settings}
    assert settings["learning_rate"] == 2.0
    assert settings["epochs"] == 4


def test_a_crash_on_the_way_is_told_with_its_last_frame(report: RunReport) -> None:
    (setback,) = (each for each in attempt(report, 2).failures if each.kind == "code-error")
    assert "KeyError" in setback.message
    assert "broken.py" in setback.message
    assert "rows[0]['the answer']" in cited(report, setback.evidence)


def test_reinforcement_goes_on_from_what_was_trained_before(report: RunReport) -> None:
    third = attempt(report, 3)
    assert third.route
    assert third.route.routes == ("sft", "policy-gradient")
    assert any(curve.name == "reward" and len(curve.points) > 5 for curve in third.curves)


def test_a_loss_that_is_no_number_any_more_diverged(report: RunReport) -> None:
    assert attempt(report, 4).failures[0].kind == "diverged"


def test_the_code_of_an_attempt_is_that_of_its_revision(
    report: RunReport, busy: FinishedRun, shared_launcher: RunLauncher
) -> None:
    third = attempt(report, 3)
    assert third.changed == 1
    done = shared_launcher.cli("revisions", str(busy.paths.root), "--diff", "0", str(third.revision))
    assert "+model.reinforce(" in done.stdout


def test_processes_and_weights_are_evidence(busy: FinishedRun) -> None:
    events = [json.loads(line) for line in busy.paths.events.read_text().splitlines()]
    commands = [each["data"]["command"] for each in events if each["kind"] == "began"]
    assert any("code/rl.py" in command for command in commands)
    assert {each["data"]["path"] for each in events if each["kind"] == "file"} >= {"output/sft", "output/rl"}


def test_what_the_agent_says_and_the_record_denies_is_marked(report: RunReport) -> None:
    denied = [each.claimed for each in report.findings.contradictions]
    assert any("99" in each for each in denied)
    assert any("grpo" in each.lower() for each in denied)


def test_the_gain_is_paired_and_real(report: RunReport, busy: FinishedRun) -> None:
    gain = report.findings.gain
    assert gain
    assert gain.split == "heldout"
    assert gain.real is True
    assert gain.better + gain.worse + gain.same == gain.n == 150
    assert busy.result.heldout == gain.comparison


def test_metrics_come_out_as_it_happened(report: RunReport) -> None:
    metrics = report.findings.metrics
    assert metrics.valid_submission_rate == 0.75
    assert metrics.copy_model_count == 1
    assert metrics.score_trajectory[-1] is None
    assert metrics.time_to_best
    assert metrics.time_to_first_improvement
    assert metrics.time_to_best > metrics.time_to_first_improvement


def test_every_citation_leads_to_evidence(report: RunReport) -> None:
    known = {each.id for each in report.findings.evidence}
    for each in report.findings.attempts:
        citing = [one.evidence for one in each.failures] + [one.evidence for one in each.settings]
        citing += [each.route.evidence] if each.route else []
        assert all(set(names) <= known for names in citing)


def test_the_report_is_written_for_people_programs_and_papers(busy: FinishedRun, report: RunReport) -> None:
    assert RunReport.model_validate_json(busy.paths.report_json.read_bytes()) == report
    assert "<html" in busy.paths.report_page.read_text()
    assert busy.paths.report_text.read_text().startswith("# ")
    by_figure: dict[str, set[str]] = {}
    for path in busy.paths.figures.iterdir():
        by_figure.setdefault(path.stem, set()).add(path.suffix)
    assert {"scores", "timeline", "resources"} <= by_figure.keys()
    assert all(suffixes == {".svg", ".png", ".csv"} for suffixes in by_figure.values()), by_figure
    with (busy.paths.figures / "scores.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["series"] == "submission" and row["low"]]
    scores = [each.score for each in report.submissions if each.score]
    assert [float(row["y"]) for row in rows] == [pytest.approx(score.value, abs=0.01) for score in scores]


def test_the_same_directory_elsewhere_gives_the_same_bytes(
    busy: FinishedRun, report: RunReport, shared_launcher: RunLauncher, tmp_path: Path
) -> None:
    copy = RunPaths(tmp_path / busy.paths.run_id)
    shutil.copytree(busy.paths.root, copy.root, symlinks=True)
    before = {path.name: path.read_bytes() for path in (busy.paths.report_json, busy.paths.report_page)}
    shutil.rmtree(copy.report)
    done = shared_launcher.cli("report", str(copy.root))
    assert done.returncode == 0, done.stderr
    assert {path.name: path.read_bytes() for path in (copy.report_json, copy.report_page)} == before


def test_a_damaged_file_costs_what_it_held_and_is_named(
    busy: FinishedRun, report: RunReport, shared_launcher: RunLauncher, tmp_path: Path
) -> None:
    copy = RunPaths(tmp_path / busy.paths.run_id)
    shutil.copytree(busy.paths.root, copy.root, symlinks=True)
    events = copy.events.read_text().splitlines()
    events[5] = events[5][: len(events[5]) // 2]
    copy.events.write_text("\n".join(events) + "\n")
    copy.submission_paths(2).results_file("feedback").write_text("{")
    shutil.rmtree(copy.revisions / "objects")
    again = analysed(copy, shared_launcher)
    notes = "\n".join(again.notes)
    assert "events.jsonl has 1 of" in notes
    assert "submissions/2/feedback.jsonl cannot be read" in notes
    assert "revisions cannot be read" in notes
    assert len(again.findings.attempts) == 4
    assert again.findings.gain == report.findings.gain


def test_supervised_training_where_only_reinforcement_is_allowed_is_flagged(
    shared_launcher: RunLauncher,
) -> None:
    run = shared_launcher.run(WORK + 'work("sft.py", SFT)\nsubmit("output/sft")\n', "--mode", "rl-only")
    compliance = analysed(run.paths, shared_launcher).findings.compliance
    assert compliance.verdict == "broken"
    assert compliance.evidence


@pytest.mark.thorough
def test_a_warm_up_before_reinforcement_keeps_the_mode_that_is_oriented_to_it(
    shared_launcher: RunLauncher,
) -> None:
    both = 'work("sft.py", SFT)\nwork("rl.py", RL)\nsubmit("output/rl")\n'
    run = shared_launcher.run(WORK + both, "--mode", "rl-oriented")
    report = analysed(run.paths, shared_launcher)
    compliance = report.findings.compliance
    assert (compliance.mode, compliance.verdict) == ("rl-oriented", "kept")
    assert "sft + policy-gradient" in compliance.message
    evidence = cited(report, compliance.evidence)
    assert all(name in evidence for name in ("code/sft.py", "code/rl.py", "process"))
    assert shared_launcher.cli("report", str(run.paths.root)).returncode == 0
    assert export.build_wide_row(read_run(run.paths))["compliance"] == "kept"
    assert digests.read_digest(run.paths).compliance == "kept"


def test_an_agent_that_crashes_before_it_submits_is_told_with_its_traceback(
    shared_launcher: RunLauncher,
) -> None:
    run = shared_launcher.run("raise RuntimeError('no idea')\n")
    report = analysed(run.paths, shared_launcher)
    (only,) = report.findings.attempts
    assert only.outcome == "not-submitted"
    assert only.failures[0].kind == "code-error"
    assert "RuntimeError: no idea" in only.failures[0].message


def test_an_agent_that_ran_out_of_memory_is_told_so(shared_launcher: RunLauncher) -> None:
    run = shared_launcher.run("held = bytearray(600 << 20)\ntime.sleep(20)\n", "--max-memory", "256M")
    assert run.result.ending == "out-of-memory"
    (only,) = analysed(run.paths, shared_launcher).findings.attempts
    assert only.failures[0].kind == "out-of-memory"


def test_results_csv_has_a_line_for_each_run(busy: FinishedRun, shared_launcher: RunLauncher) -> None:
    header, *lines = busy.paths.results_csv.read_text().splitlines()
    assert header.startswith("run_id,timestamp,task,agent,driver_model,base_model,baseline,best_score")
    assert sum(line.startswith(busy.paths.run_id) for line in lines) == 1


def test_runs_are_exported_as_rows(
    busy: FinishedRun, report: RunReport, shared_launcher: RunLauncher, tmp_path: Path
) -> None:
    done = shared_launcher.cli("export", "csv", busy.paths.run_id)
    assert done.stdout.splitlines()[1] in busy.paths.results_csv.read_text().splitlines()
    row = json.loads(shared_launcher.cli("export", "jsonl", busy.paths.run_id).stdout)
    assert row["route"] == "sft + policy-gradient"
    assert row["improvement"] == busy.result.improvement
    assert row["real"] is True
    target = tmp_path / "runs.parquet"
    assert shared_launcher.cli("export", "parquet", "-o", str(target)).returncode == 0
    table = pyarrow.parquet.read_table(target).to_pylist()
    assert row in [json.loads(json.dumps(each)) for each in table]


def test_trajectories_are_exported_only_where_there_are_some(
    busy: FinishedRun, shared_launcher: RunLauncher, tmp_path: Path
) -> None:
    done = shared_launcher.cli("export", "atif", busy.paths.run_id, "-o", str(tmp_path / "atif"))
    assert done.returncode == 2
    assert "None of these runs has a transcript" in done.stderr


def test_a_run_that_is_reported_on_again_keeps_its_one_line(busy: FinishedRun) -> None:
    before = busy.paths.results_csv.read_bytes()
    export.update_results_csv(busy.paths)
    export.update_results_csv(busy.paths)
    after = busy.paths.results_csv.read_text().splitlines()
    assert sorted(after) == sorted(before.decode().splitlines())


def test_a_model_sums_up_and_is_held_against_the_evidence(
    busy: FinishedRun, report: RunReport, shared_launcher: RunLauncher, tmp_path: Path
) -> None:
    copy = RunPaths(tmp_path / busy.paths.run_id)
    shutil.copytree(busy.paths.root, copy.root, symlinks=True)
    said = "It copied the model first [E1]. Then it won 12345 prizes [E999]."
    with serve_engine(ScriptedEngine(lambda _: said), "sums") as model:
        done = shared_launcher.cli("report", str(copy.root), "--summariser", f"sums@{model.url}")
    assert done.returncode == 0, done.stderr
    (question,) = model.questions
    assert "FINDINGS" in str(question.messages[0])
    again = RunReport.model_validate_json(copy.report_json.read_bytes())
    assert again.llm_summary
    assert again.llm_summary.text == said
    assert again.llm_summary.model == f"sums@{model.url}"
    assert again.llm_summary.problems == (
        "Cites E999, which does not exist.",
        "Contains numbers that are not in the findings: 12345.",
    )
    assert again.findings == report.findings
    assert said in done.stdout
    page = copy.report_page.read_text()
    assert "won 12345 prizes" in page
    assert "E999, which does not exist" in page
