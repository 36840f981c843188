"""Task folders in the published formats run unchanged: rl-smith folders and benchmark folders."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from agent2rl import registry
from agent2rl.core.engine import Chat
from agent2rl.core.errors import GradingError, UserError
from agent2rl.core.grading_records import EvalSettings
from agent2rl.engines.scripted import ScriptedEngine
from agent2rl.evaluators.published.model_evaluator import read_score
from agent2rl.evaluators.single_turn import QuestionPrompt, SingleTurn
from agent2rl.record.reader import read_run
from agent2rl.tasks import benchmark, smith
from tests.helpers.published_folders import (
    DATA,
    EVALUATOR,
    PROBLEMS,
    format_rows,
    write_benchmark_folder,
    write_files,
    write_smith_folder,
)
from tests.helpers.run_launcher import FinishedRun, RunLauncher
from tests.helpers.tiny_models import write_tiny_llama

TRAIN_AND_SUBMIT = """
rows = [json.loads(line) for line in (DATA / "train.jsonl").read_text().splitlines()]
submitted = submit(trained("better", problems=len(rows)))
say(
    rows=len(rows),
    questions=[row["question"] for row in rows],
    verdict=submitted["verdict"],
    files=sorted(path.name for path in WORKSPACE.iterdir()),
    data=sorted(path.name for path in DATA.iterdir()),
    linked=(WORKSPACE / "eval.py").is_symlink(),
    description=(WORKSPACE / "description.md").read_text(),
)
"""


def run_folder(launcher: RunLauncher, folder: Path, *options: str) -> FinishedRun:
    return launcher.run(TRAIN_AND_SUBMIT, "--task", str(folder), *options)


def test_an_rl_smith_folder_runs_unchanged(launcher: RunLauncher) -> None:
    run = run_folder(launcher, write_smith_folder(launcher.home))
    assert run.code == 0, run.errors
    assert run.said["verdict"] == "scored", run.said
    assert run.result.baseline is not None
    assert run.result.best_heldout is not None
    assert run.result.heldout is not None
    assert run.result.heldout.improvement > 20
    assert run.result.best_heldout.how["max_tokens"] == 2048
    assert "warning" not in run.result.best_heldout.how
    assert run.said["rows"] == 48
    assert {"eval.py", "description.md"} <= set(run.said["files"])
    assert not run.said["linked"]
    assert run.said["description"] == "# smith-birds\n\nCount birds.\n"


@pytest.mark.thorough
def test_under_the_papers_protocol_an_rl_smith_folder_is_scored_on_its_training_data_with_a_warning(
    launcher: RunLauncher,
) -> None:
    run = run_folder(launcher, write_smith_folder(launcher.home), "--protocol", "paper")
    assert run.said["rows"] == len(PROBLEMS)
    assert run.result.best is not None
    assert run.result.best.score is not None
    assert run.result.best.score.n == len(PROBLEMS)
    assert run.result.contaminated is False
    report = launcher.report(run)
    assert "tested on its training data" in report
    shown = launcher.cli("show", str(run.paths.root)).stdout
    assert "WARNING" in shown
    board = launcher.cli("leaderboard", "--protocol", "paper")
    assert "WARNING, 1 run: The model is tested on its training data" in " ".join(board.stdout.split())
    (row,) = map(json.loads, launcher.cli("export", "jsonl").stdout.splitlines())
    assert row["warning"].startswith("The model is tested on its training data")


def test_a_benchmark_folder_runs_unchanged(launcher: RunLauncher) -> None:
    """data.py writes the data in a sandbox; the evaluator class scores rows that the agent does not have."""
    folder = write_benchmark_folder(launcher.home)
    run = run_folder(launcher, folder)
    assert run.code == 0, run.errors
    assert run.said["verdict"] == "scored", run.said
    assert run.said["rows"] == 48
    assert run.said["data"] == ["notes.txt", "train.jsonl"]
    assert "eval.py" in run.said["files"]
    assert not run.said["linked"]
    assert run.said["description"] == "# Birds\n\nCount them.\n"
    assert run.result.best_heldout is not None
    assert run.result.baseline is not None
    assert run.result.heldout is not None
    assert (run.result.baseline.n, run.result.best_heldout.n) == (16, 16)
    assert run.result.heldout.improvement > 20
    assert run.result.heldout.ci.method == "newcombe"
    assert launcher.cli("verify", str(run.paths.root)).returncode == 0
    assert "+" in launcher.report(run)
    assert not (folder / "data").exists()
    assert not (folder.parent.parent / "log").exists()


@pytest.mark.thorough
def test_under_the_papers_protocol_a_benchmark_that_scores_training_rows_has_a_warning(
    launcher: RunLauncher,
) -> None:
    run = run_folder(launcher, write_benchmark_folder(launcher.home), "--protocol", "paper")
    assert run.said["rows"] == len(PROBLEMS)
    assert run.result.best is not None
    assert run.result.best.score is not None
    assert run.result.best.score.n == len(PROBLEMS)
    assert "tested on its training data" in launcher.report(run)


OWN_TEST_SET = EVALUATOR.replace(
    '(Path(workspace_path) / "data" / "train.jsonl").read_text()',
    '(Path(__file__).parent / "problems.jsonl").read_text()',
).replace("train.jsonl", "the training data")


@pytest.mark.thorough
def test_an_evaluator_with_its_own_test_set_leaves_all_training_rows_to_the_agent(
    launcher: RunLauncher,
) -> None:
    """Files in `.home` of the data are in the evaluator's home directory, and not in the agent's data."""
    cached = OWN_TEST_SET.replace("Path(__file__).parent /", "Path.home() / '.cache' / 'birds' /")
    folder = write_benchmark_folder(launcher.home, cached)
    rows = {"train.jsonl": PROBLEMS, ".home/.cache/birds/problems.jsonl": PROBLEMS[:10]}
    write_files(folder / "data", {name: format_rows(rows) for name, rows in rows.items()})
    run = run_folder(launcher, folder)
    assert run.said["rows"] == len(PROBLEMS)
    assert run.said["data"] == ["train.jsonl"]
    assert run.result.best_heldout is not None
    assert run.result.best_heldout.n == 10
    assert "same problems" in launcher.report(run)


HEAD = "from rdagent.scenarios.rl.autorl_bench.core.evaluator import BaseEvaluator\nimport os, sys, time\n"
BODY = "class E(BaseEvaluator):\n    def run_eval(self, model_path, workspace_path, **kwargs):\n        "


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("raise ValueError('the answer is 7')", "The evaluator failed: ValueError."),
        pytest.param("sys.exit(0)", "The evaluator failed: SystemExit.", marks=pytest.mark.thorough),
        ("os._exit(0)", "crashed (exit code 0)"),
        ("print({'score': 50.0})", "returned NoneType, not a dictionary"),
        ("import vllm_of_tomorrow", "it imports vllm_of_tomorrow, which is not installed"),
        ("return {'score': 0.0, 'accuracy_summary': {}, 'error': 'no vLLM'}", "reported an error: no vLLM"),
    ],
)
def test_a_benchmark_evaluator_that_fails_gives_no_score(
    launcher: RunLauncher, body: str, reason: str
) -> None:
    run = run_folder(launcher, write_benchmark_folder(launcher.home, HEAD + BODY + body + "\n"))
    assert run.result.baseline is None
    assert reason in run.result.reason
    assert "the answer is 7" not in run.result.reason


@pytest.mark.parametrize("score", [None, float("nan"), float("inf"), "100", True, -1.0, 250.0])
def test_a_result_without_a_score_from_0_to_100_is_an_error(score: object) -> None:
    with pytest.raises(GradingError, match=r"no finite score|outside 0 to 100"):
        read_score({"score": score, "accuracy_summary": {"total": 3}})
    with pytest.raises(GradingError, match="no finite score"):
        read_score({"accuracy_summary": {}})


@pytest.mark.thorough
def test_an_evaluator_that_fails_on_one_submission_costs_that_submission_only(launcher: RunLauncher) -> None:
    lucky = EVALUATOR.replace(
        'result["score"] = 100', 'assert right < len(rows), "surprised"\n        result["score"] = 100'
    )
    run = run_folder(launcher, write_benchmark_folder(launcher.home, lucky))
    assert run.said["verdict"] == "failed"
    assert run.result.baseline is not None
    assert run.result.best is None
    (submission,) = read_run(run.paths).submissions
    assert submission.score is None
    assert submission.message.startswith("The evaluator failed: AssertionError.")


def test_an_evaluator_that_hangs_is_a_failed_grading(launcher: RunLauncher) -> None:
    script = HEAD + BODY + "time.sleep(10000)\n"
    run = run_folder(launcher, write_benchmark_folder(launcher.home, script), "--grading-time", "10s")
    assert run.result.baseline is None
    assert "did not finish within 10 s" in run.result.reason


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("def evaluate(q, a, g): raise KeyError(g)\n", "The scorer failed on example .*KeyError"),
        ("def evaluate(q, a, g): raise SystemExit(0)\n", "The scorer exited on example"),
        ("def evaluate(q, a, g): return 2\n", "returned no number from 0 to 1"),
        ("def evaluate(q, a, g): print(1.0)\n", "returned no number from 0 to 1"),
    ],
)
def test_an_evaluate_that_raises_is_a_failed_grading_and_never_a_zero(
    tmp_path: Path, script: str, reason: str
) -> None:
    task = smith.parse(str(write_smith_folder(tmp_path, script)))
    examples = task.load(None).feedback
    with pytest.raises(GradingError, match=reason):
        task.evaluator.evaluate(ScriptedEngine(lambda _: "x"), examples, EvalSettings())


def test_a_question_is_the_whole_prompt_and_other_keys_are_passed_on(tmp_path: Path) -> None:
    evaluate = (
        "def evaluate(q, said, gold, unit):\n"
        "    return float((q, said, gold, unit) == ({'n': 1}, 'yes', 2, 'cm'))\n"
    )
    folder = write_smith_folder(tmp_path, evaluate)
    rows = [{"question": {"n": 1}, "answer": 2, "unit": "cm"}] + [{"question": str(n)} for n in range(5)]
    write_files(folder, {"data/train.jsonl": "".join(json.dumps(row) + "\n" for row in rows)})
    task = smith.parse(str(folder))
    rows_read = task.load(None).test
    assert rows_read is not None
    read: list[Chat] = []

    def answer(chat: Chat) -> str:
        read.append(chat)
        return "yes"

    evaluation = task.evaluator.evaluate(ScriptedEngine(answer), rows_read[:1], EvalSettings())
    assert [result.score for result in evaluation.results] == [1.0]
    assert read[0][0].content == '{"n": 1}'
    assert evaluation.how["prompting"] == "plain"


def test_the_split_of_the_training_rows_never_changes_and_keeps_equal_questions_together(
    tmp_path: Path,
) -> None:
    folder = write_smith_folder(tmp_path)
    write_files(folder, {"data/train.jsonl": format_rows([*PROBLEMS, *PROBLEMS])})
    splits = smith.parse(str(folder)).load(None)
    parts = [{row.prompt for row in part} for part in (splits.train, splits.feedback, splits.heldout)]
    assert [len(part) for part in parts] == [48, 16, 16]
    assert not parts[0] & parts[1]
    assert not parts[0] & parts[2]
    assert not parts[1] & parts[2]
    assert [row.id for row in splits.feedback][:3] == [
        row.id for row in smith.parse(str(folder)).load(None).feedback
    ][:3]


def test_a_download_script_fills_the_data_of_an_rl_smith_folder(launcher: RunLauncher) -> None:
    folder = write_smith_folder(launcher.home)
    rows = (folder / "data" / "train.jsonl").read_text()
    (folder / "data" / "train.jsonl").unlink()
    (folder / "data").rmdir()
    script = f"import os, pathlib\npathlib.Path('data/train.jsonl').write_text({rows!r})\n"
    write_files(folder, {"download_data.py": script})
    checked = launcher.cli("check", str(folder))
    assert "48 train, 16 feedback, 16 held-out" in checked.stdout, checked.stderr
    assert not (folder / "data").exists()


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (
            DATA.replace('logger.info(f"wrote', 'raise OSError("no route to host")\n    (f"wrote'),
            "no route to host",
        ),
        ("def download_train_data(target_dir): pass\n", "wrote nothing to data/"),
        (
            "def download_train_data(target_dir): (target_dir / 'a').symlink_to('/etc/passwd')\n",
            "wrote a, which is not a plain file",
        ),
        (
            "import socket\ndef download_train_data(_): socket.create_connection(('192.0.2.1', 80))\n",
            "sandbox without a network",
        ),
    ],
)
def test_a_data_script_that_fails_is_named_with_what_to_do(
    launcher: RunLauncher, script: str, reason: str
) -> None:
    folder = write_benchmark_folder(launcher.home)
    write_files(folder, {"data.py": script})
    checked = launcher.cli("check", str(folder))
    assert checked.returncode != 0
    assert reason in " ".join(checked.stderr.split())


def test_data_that_were_downloaded_before_are_used(launcher: RunLauncher, tmp_path: Path) -> None:
    folder = write_benchmark_folder(launcher.home)
    write_files(folder, {"data.py": "def download_train_data(target_dir): raise OSError('offline')\n"})
    write_files(tmp_path / "given", {"train.jsonl": format_rows(PROBLEMS[:20])})
    given = launcher.cli("check", str(folder), "--data-dir", str(tmp_path / "given"))
    assert "12 train" in given.stdout, given.stderr
    write_files(folder / "data", {"train.jsonl": format_rows(PROBLEMS[:10]), "test.jsonl": ""})
    assert "6 train" in launcher.cli("check", str(folder), "--data-dir", str(folder / "data")).stdout


def test_the_configuration_of_a_benchmark_is_read_without_running_it(tmp_path: Path) -> None:
    task = benchmark.parse(str(write_benchmark_folder(tmp_path)))
    assert task.id == "birds"
    assert sorted(task.exposes) == ["eval.py"]
    assert task.data_script is not None
    assert '{"max_steps": 7}' in task.evaluator.version


@pytest.mark.parametrize(
    ("files", "missing"),
    [
        ({}, "no eval.py"),
        ({"notes.txt": ""}, "no eval.py"),
        ({"config.yaml": "name: x\n"}, "no eval.py"),
        ({"data.py": "x = 1\n"}, "no eval.py"),
        ({"eval.py": "x = 1\n"}, "no config.yaml or data.py"),
    ],
)
def test_a_folder_in_no_format_names_the_missing_file_and_shows_the_layouts(
    launcher: RunLauncher, files: dict[str, str], missing: str
) -> None:
    folder = launcher.home / "mine"
    folder.mkdir()
    write_files(folder, files)
    failed = launcher.cli("run", "--task", str(folder), "--agent", "nop")
    assert failed.returncode == 2
    for text in (missing, "agent2rl:", "published, rl-smith:", "published, benchmark:"):
        assert text in failed.stderr, failed.stderr


@pytest.mark.parametrize(
    ("script", "fault"),
    [("def evaluate(", "is not Python"), ("x = 1\n", "defines no evaluator class")],
)
def test_a_benchmark_without_an_evaluator_class_is_the_users_error(
    tmp_path: Path, script: str, fault: str
) -> None:
    with pytest.raises(UserError, match=fault):
        benchmark.parse(str(write_benchmark_folder(tmp_path, script)))


def test_benchmarks_of_opencompass_are_refused_with_a_reason(tmp_path: Path) -> None:
    folder = write_benchmark_folder(tmp_path)
    config = 'BenchmarkConfig(id="birds", evaluator_class="rdagent.core.opencompass.OpenCompassEvaluator")\n'
    write_files(folder, {"__init__.py": config})
    with pytest.raises(UserError, match="OpenCompass, which agent2rl does not run"):
        benchmark.parse(str(folder))
    smith_folder = write_smith_folder(tmp_path)
    write_files(smith_folder, {"config.yaml": "name: birds\neval_mode: opencompass\n"})
    with pytest.raises(UserError, match="'opencompass' is not supported"):
        smith.parse(str(smith_folder))


def test_a_path_that_does_not_exist_is_named() -> None:
    with pytest.raises(UserError, match="no task folder 'tasks/none'"):
        registry.resolve_task_name("tasks/none", ())


def test_a_model_with_a_chat_template_reads_the_bare_question(tmp_path: Path) -> None:
    task = smith.parse(str(write_smith_folder(tmp_path)))
    assert isinstance(task.evaluator, SingleTurn)
    short = replace(task.evaluator, prompt=QuestionPrompt(sampling=replace(smith.SAMPLING, max_tokens=8)))
    examples = task.load(None).feedback[:3]
    outputs = []
    for templated in (True, False):
        model = write_tiny_llama(tmp_path / f"model-{templated}", chat_template=templated)
        with registry.find_engine("transformers")(model) as engine:
            results = short.evaluate(engine, examples, EvalSettings()).results
            outputs.append([result.output for result in results])
    assert outputs[0] == outputs[1]
