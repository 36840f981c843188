"""`agent2rl score`: outputs of any model, graded in the real sandbox through the real command line."""

import json
import random
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from agent2rl import registry
from agent2rl.core.engine import ChatMessage, Sampling
from agent2rl.core.errors import GradingError
from agent2rl.core.grading_records import EvalSettings
from agent2rl.core.task import Example
from agent2rl.engines.replay import ReplayEngine
from agent2rl.run.output_scoring import OutputScores
from agent2rl.tasks.gsm8k import EVALUATOR
from tests.helpers.run_launcher import RunLauncher

SPLITS = registry.find_task("gsm8k-mini").load(None)
WRONG = "I do not know."


def write(path: Path, rows: Iterable[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def gold(examples: Iterable[Example]) -> list[dict[str, Any]]:
    return [{"id": example.id, "output": example.target} for example in examples]


def scored(launcher: RunLauncher, rows: Iterable[dict[str, Any]], *options: str) -> OutputScores:
    file = write(launcher.home / "outputs.jsonl", rows)
    done = launcher.cli("score", "gsm8k-mini", file, "--json", *options)
    assert done.returncode == 0, done.stderr
    scores = OutputScores.model_validate_json(done.stdout)
    assert scores.isolation is not None
    assert scores.isolation.sandbox in done.stderr
    return scores


def test_all_official_gold_answers_score_100(launcher: RunLauncher, shared_data: Path) -> None:
    rows = []
    for index, line in enumerate((shared_data / "gsm8k" / "test.jsonl").read_text().splitlines()):
        rows.append({"task_id": f"gsm8k-test-{index:04d}", "completion": json.loads(line)["answer"]})
    file = write(launcher.home / "gold.jsonl", rows)
    done = launcher.cli("score", "gsm8k", file, "--data-dir", str(shared_data / "gsm8k"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("100.00") == 2 * 3, "by both rules, in every row"
    assert "1,319 of 1,319" in done.stdout
    assert re.match(r"sandbox: \w+", done.stderr), "which one ran programs is said, and not on stdout"
    assert "sandbox: " not in done.stdout
    assert "no output" not in done.stdout


def test_each_output_goes_to_its_own_example_whatever_the_order(launcher: RunLauncher) -> None:
    examples = [*SPLITS.train[:20], *SPLITS.feedback, *SPLITS.heldout]
    right = {example.id for example in examples[::3]}
    rows = [{**row, "output": row["output"] if row["id"] in right else WRONG} for row in gold(examples)]
    random.Random(0).shuffle(rows)
    results = launcher.home / "results.jsonl"
    found = scored(launcher, rows, "--results", str(results))
    assert [(part.score.split, part.score.n, part.of) for part in found.parts] == [
        ("train", 20, 2000),
        ("feedback", 150, 150),
        ("heldout", 150, 150),
        ("test", 300, 300),
    ]
    assert found.parts[0].score.value == pytest.approx(100 * 7 / 20)
    assert found.parts[0].score.how == {"prompting": "given", "samples": 1, "evaluator": found.evaluator}
    assert found.evaluator == EVALUATOR.version
    told = [json.loads(line) for line in results.read_text().splitlines()]
    assert {row["id"] for row in told if row["score"] == 1} == right
    assert {row["id"]: row["output"] for row in told} == {row["id"]: row["output"] for row in rows}


def test_several_lines_with_one_id_are_samples(launcher: RunLauncher) -> None:
    one, two = SPLITS.feedback[:2]
    outputs = {one.id: [one.target, "#### 0", one.target], two.id: ["#### 0", two.target, "#### 0"]}
    rows = [{"id": name, "output": said[turn]} for turn in range(3) for name, said in outputs.items()]
    found = scored(launcher, rows).parts[0].score
    assert found.value == pytest.approx(50)
    assert found.metrics == pytest.approx(
        {"flexible": 50, "pass@1": 50, "pass@2": 250 / 3, "pass@3": 100, "maj@3": 50}
    )
    shown = launcher.cli("score", "gsm8k-mini", str(launcher.home / "outputs.jsonl")).stdout
    assert "maj@3" in shown
    assert "83.33" in shown


def test_what_has_no_output_is_said_and_does_not_count(launcher: RunLauncher) -> None:
    file = write(launcher.home / "outputs.jsonl", gold(SPLITS.feedback[1:]))
    shown = launcher.cli("score", "gsm8k-mini", file).stdout
    assert "149 of 150" in shown
    assert "151 of 300 test examples have no output and do not count: gsm8k-mini-feedback-0000" in shown
    assert "100.00" in shown


def test_an_output_is_graded_as_it_stands(launcher: RunLauncher) -> None:
    (example,) = SPLITS.feedback[:1]
    long = "so " * 5000 + "\n\nQuestion: what now?\nAnswer: \ud800\u2028" + example.target
    found = scored(launcher, [{"id": example.id, "output": long, "model": "any"}])
    assert found.parts[0].score.value == 100


def test_a_runs_own_record_can_be_scored_again(launcher: RunLauncher) -> None:
    run = launcher.run("submit(trained('m'))", "--budget", "20m")
    assert run.result.best is not None
    for split, first in (("feedback", run.result.best.score), ("heldout", run.result.best_heldout)):
        file = run.paths.submission_paths(1).root / f"{split}.jsonl"
        done = launcher.cli("score", "gsm8k-mini", str(file), "--json")
        again = OutputScores.model_validate_json(done.stdout).parts[0].score
        assert first is not None
        assert (again.value, again.ci, again.split) == (first.value, first.ci, split)


KNOWN = SPLITS.feedback[0].id


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "contains no outputs"),
        ("\n \n", "contains no outputs"),
        ("{", "line 1 is not JSON"),
        ("\n" + "[" * 100_000, "line 2 is not JSON"),
        ("[]", "line 1 is not an object"),
        ('{"output": "#### 1"}', "line 1 has no id"),
        (f'{{"id": "{KNOWN}"}}', "line 1 has no output"),
        (f'{{"id": "{KNOWN}", "output": null}}', "line 1: output is a NoneType"),
        ('{"id": 7, "output": "#### 1"}', "line 1: id is a int"),
        ('{"id": "gsm8k-test-0000", "output": ""}', "no example 'gsm8k-test-0000'"),
        ('{"id": "x", "output": ""}', "ids look like gsm8k-mini-train-0000, gsm8k-mini-feedback-0000"),
        (
            "".join(
                json.dumps({"id": f"gsm8k-mini-feedback-{n:04d}", "output": ""}) + "\n" for n in (0, 1, 1)
            ),
            "1 line for 'gsm8k-mini-feedback-0000' and 2 lines for 'gsm8k-mini-feedback-0001'",
        ),
    ],
    ids=lambda text: text[:20],
)
def test_what_is_wrong_with_a_file_is_said_with_exit_code_2(
    launcher: RunLauncher, text: str, says: str
) -> None:
    (launcher.home / "outputs.jsonl").write_text(text)
    done = launcher.cli("score", "gsm8k-mini", "outputs.jsonl")
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_bytes_that_are_no_text_and_files_that_are_not_there_are_the_users_error(
    launcher: RunLauncher,
) -> None:
    (launcher.home / "outputs.jsonl").write_bytes(b'{"id": "\xff\xfe"}\n')
    assert "line 1 is not JSON" in launcher.cli("score", "gsm8k-mini", "outputs.jsonl").stderr
    missing = launcher.cli("score", "gsm8k-mini", "nothing.jsonl")
    assert missing.returncode == 2
    assert "Cannot read nothing.jsonl" in missing.stderr
    file = write(launcher.home / "outputs.jsonl", gold(SPLITS.feedback[:1]))
    unwritable = launcher.cli("score", "gsm8k-mini", file, "--results", "no/such/place.jsonl")
    assert unwritable.returncode == 2
    assert "Cannot write no/such/place.jsonl" in unwritable.stderr


def task_folder(launcher: RunLauncher, evaluate: str) -> tuple[str, ...]:
    folder = launcher.home / "tasks" / "own"
    (folder / "data").mkdir(parents=True)
    (folder / "config.yaml").write_text("name: own\n")
    (folder / "eval.py").write_text(evaluate)
    for split in ("train", "test"):
        write(folder / "data" / f"{split}.jsonl", [{"question": str(n), "answer": str(n)} for n in range(2)])
    return ("score", "own", str(launcher.home / "outputs.jsonl"), "--tasks-dir", str(folder.parent))


def test_outputs_are_graded_inside_the_sandbox(launcher: RunLauncher) -> None:
    arguments = task_folder(
        launcher,
        "import pathlib\n"
        "def evaluate(model_answer, **_):\n"
        "    return float(pathlib.Path(model_answer).exists())\n",
    )
    outside = launcher.home / "outputs.jsonl"
    write(outside, [{"id": "own-test-0000", "output": str(outside)}])
    for sandbox, value in (("bubblewrap", 0), ("local", 100)):
        done = launcher.cli(*arguments, "--sandbox", sandbox, "--json")
        assert json.loads(done.stdout)["parts"][0]["score"]["value"] == value, done.stderr


def test_a_scorer_that_fails_gives_exit_code_1_and_its_own_last_words(launcher: RunLauncher) -> None:
    arguments = task_folder(launcher, "def evaluate(**_):\n    raise ValueError('a unit is missing')\n")
    write(launcher.home / "outputs.jsonl", [{"id": "own-test-0000", "output": "1"}])
    done = launcher.cli(*arguments)
    assert done.returncode == 1
    assert "The scorer failed on example own-test-0000" in done.stderr
    assert "ValueError: a unit is missing" in done.stderr
    checked = launcher.cli("check", "own", *arguments[3:])
    assert checked.returncode == 1
    assert "ValueError: a unit is missing" in checked.stdout


def test_a_task_that_is_not_graded_from_outputs_says_so(launcher: RunLauncher) -> None:
    (launcher.home / "acting.py").write_text(
        "from dataclasses import replace\n"
        "from agent2rl.tasks.gsm8k.mini import TASK as MINI\n"
        "class Episodes:\n"
        "    version = 'episodes-1'\n"
        "    def evaluate(self, engine, examples, settings): ...\n"
        "TASK = replace(MINI, id='acting', evaluator=Episodes())\n"
    )
    file = write(launcher.home / "outputs.jsonl", gold(SPLITS.feedback[:1]))
    done = launcher.cli("score", "acting:TASK", file, PYTHONPATH=str(launcher.home))
    assert done.returncode == 2
    assert "'acting' cannot be graded from outputs" in done.stderr


def test_an_evaluator_that_knows_nothing_of_given_outputs_gets_them_in_order() -> None:
    engine = ReplayEngine({"a": ["1", "2"], "b": ["3"]})
    chat = (ChatMessage("user", "?"),)
    assert [one.text for one in engine.generate([chat] * 2, Sampling(max_tokens=0))] == ["1", "2"]
    assert [one.text for one in engine.generate([chat], Sampling(stop=("3",)))] == ["3"]
    with pytest.raises(GradingError, match="fewer outputs"):
        engine.generate([chat], Sampling())


def test_given_answers_that_are_too_few_are_no_score() -> None:
    examples = [Example("a", "?", "#### 1"), Example("b", "?", "#### 1")]
    for outputs in ({"a": ["#### 1"]}, {"a": ["#### 1"], "b": ["#### 1"] * 2}):
        with pytest.raises(GradingError, match="do not have 1 answers"):
            EVALUATOR.evaluate(ReplayEngine(outputs), examples, EvalSettings())
