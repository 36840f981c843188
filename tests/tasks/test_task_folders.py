"""Task folders in the published format."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from agent2rl import registry
from agent2rl.core.errors import GradingError, UserError
from agent2rl.core.grading_records import EvalSettings, ExampleResult
from agent2rl.core.task import Example, Task
from agent2rl.engines.scripted import ScriptedEngine
from agent2rl.tasks.folder import parse
from tests.helpers.run_launcher import RunLauncher

EVAL = """
from __future__ import annotations
from dataclasses import dataclass

@dataclass
class Seen:
    worth: float

def evaluate(question, model_answer, reference_answer, **kwargs):
    right = model_answer.strip() == reference_answer
    return Seen(kwargs.get("points", 1.0) if right else 0.0).worth
"""
ROWS = [{"question": f"Say {n}.", "answer": str(n)} for n in range(10)]


def write(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")


def lines(rows: list[Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "echo"
    files = {
        "config.yaml": "name: echo\nauthor: somebody\ntimeout: 3\n",
        "eval.py": EVAL,
        "data/train.jsonl": lines(ROWS[:3]),
        "data/test.jsonl": lines(ROWS),
    }
    write(folder, files)
    return folder


def test_a_question_with_unusual_line_ends_is_still_one_line_of_training_data(
    folder: Path, launcher: RunLauncher
) -> None:
    """Official GSM8K has one, and programs read such files with splitlines."""
    odd = "Say\u2028a\u2029b\x85c\u2028."
    write(folder, {"data/train.jsonl": lines([{"question": odd, "answer": "1"}])})
    run = launcher.run(
        "say(rows=[json.loads(line) for line in (DATA / 'train.jsonl').read_text().splitlines()])",
        "--task",
        "echo",
        "--tasks-dir",
        str(folder.parent),
    )
    assert [row["question"] for row in run.said["rows"]] == [odd]


def answers(task: Task, examples: tuple[Example, ...], suffix: str = "") -> tuple[ExampleResult, ...]:
    engine = ScriptedEngine(lambda chat: chat[-1].content.removeprefix("Say ").removesuffix(".") + suffix)
    return task.evaluator.evaluate(engine, examples, EvalSettings()).results


def test_a_published_folder_is_a_task(folder: Path) -> None:
    task = registry.find_task(registry.resolve_folder_name("echo", (folder.parent,)))
    splits = task.load(None)
    assert (task.id, task.description) == ("echo", "# echo\n")
    assert [example.prompt for example in splits.train] == ["Say 0.", "Say 1.", "Say 2."]
    assert {example.prompt for example in (*splits.feedback, *splits.heldout)} == {
        r["question"] for r in ROWS
    }
    assert len(splits.feedback) == len(splits.heldout) == 5
    assert {result.score for result in answers(task, splits.feedback)} == {1.0}
    assert {result.score for result in answers(task, splits.heldout, "!")} == {0.0}


def test_the_division_of_the_test_rows_never_changes(folder: Path) -> None:
    feedback = parse(str(folder)).load(None).feedback
    assert [example.id[-4:] for example in feedback] == ["0000", "0001", "0002", "0006", "0007"]


def test_the_description_comes_from_its_file_or_from_the_configuration(folder: Path) -> None:
    write(folder, {"config.yaml": "name: echo\ndescription: Repeat it.\nexpose_files:\n"})
    assert parse(str(folder)).description == "# echo\n\nRepeat it.\n"
    write(folder, {"description.md": "Repeat *it*.\n"})
    assert parse(str(folder)).description == "Repeat *it*.\n"


def test_eval_py_runs_only_when_an_answer_is_scored(folder: Path) -> None:
    mark = folder.parent / "ran"
    leave_mark = f"with open({str(mark)!r}, 'a') as file: file.write('x')\n"
    write(folder, {"eval.py": leave_mark + "def evaluate(**kwargs): return 1.0\n"})
    task = parse(str(folder))
    splits = task.load(None)
    assert not mark.exists()
    answers(task, splits.feedback)
    answers(task, splits.heldout)
    assert mark.read_text() == "x"
    assert not list(folder.rglob("__pycache__"))


def test_the_grading_child_builds_the_task_from_its_code_files_alone(folder: Path, tmp_path: Path) -> None:
    write(folder, {"config.yaml": "name: echo\nexpose_files: [eval.py, data/notes.txt]\n"})
    write(folder, {"description.md": "Repeat it.\n", "data/notes.txt": "a note"})
    task = parse(str(folder))
    examples = task.load(None).feedback
    assert {path.name for path in task.code} == {"config.yaml", "eval.py", "description.md"}
    for path in folder.rglob("*"):
        if path.is_file() and path not in task.code:
            path.unlink()
    (folder / "data").rmdir()
    again = parse(str(folder))
    assert again.evaluator.version == task.evaluator.version
    assert again.description == task.description
    assert {result.score for result in answers(again, examples)} == {1.0}


def test_further_keys_of_a_row_are_passed_on(folder: Path) -> None:
    rows = [{**row, "points": 0.25, "not an identifier": None} for row in ROWS]
    write(folder, {"data/test.jsonl": lines(rows)})
    task = parse(str(folder))
    assert {result.score for result in answers(task, task.load(None).feedback)} == {0.25}


def test_a_question_that_is_an_object_becomes_text_and_an_answer_stays_what_it_is(folder: Path) -> None:
    rows = [{"question": {"say": "caf\u00e9"}, "answer": ["a", "b"]}] * 2
    check = (
        "def evaluate(question, model_answer, reference_answer):\n    return reference_answer == ['a', 'b']\n"
    )
    write(folder, {"data/test.jsonl": lines(rows), "eval.py": check})
    task = parse(str(folder))
    (example,) = task.load(None).feedback
    assert (example.prompt, example.target) == ('{"say": "caf\u00e9"}', '["a", "b"]')
    assert [result.score for result in answers(task, (example,))] == [1.0]


def test_the_version_changes_with_eval_py(folder: Path) -> None:
    before = parse(str(folder)).evaluator.version
    write(folder, {"eval.py": EVAL + "\n# changed\n"})
    assert parse(str(folder)).evaluator.version != before


IMPORT_HELPER = """
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

def evaluate(question, model_answer, reference_answer):
    from echo_scoring.compare import compare
    return compare(model_answer, reference_answer, (HERE / "rubric.txt").read_text())
"""
HELPER = "def compare(answer, reference, rubric): return float(answer.strip() == reference)\n"


@pytest.mark.parametrize("name", ["echo_scoring/compare.py", "rubric.txt", "prompts/judge.jinja"])
def test_the_version_changes_with_every_file_that_eval_py_may_use(folder: Path, name: str) -> None:
    write(folder, {"eval.py": IMPORT_HELPER, name: "first = 1\n"})
    before = parse(str(folder)).evaluator.version
    write(folder, {name: "second = 2\n"})
    changed = parse(str(folder)).evaluator.version
    (folder / name).rename((folder / name).with_stem("other"))
    renamed = parse(str(folder)).evaluator.version
    assert len({before, changed, renamed}) == 3


def test_the_version_ignores_data_hidden_files_and_the_description(folder: Path) -> None:
    before = parse(str(folder)).evaluator.version
    write(
        folder,
        {
            "description.md": "Repeat it.\n",
            "data/make_data.py": "pass\n",
            ".venv/lib/module.py": "pass\n",
            "__pycache__/module.py": "pass\n",
        },
    )
    assert parse(str(folder)).evaluator.version == before


def test_eval_py_may_import_a_module_of_its_folder_during_a_run(folder: Path, launcher: RunLauncher) -> None:
    write(folder, {"eval.py": IMPORT_HELPER, "echo_scoring/compare.py": HELPER, "rubric.txt": "Be exact.\n"})
    run = launcher.run("pass", "--task", "echo", "--tasks-dir", str(folder.parent))
    assert run.result.baseline is not None, run.errors


def test_a_data_directory_of_the_users_choice_is_read_instead(folder: Path, tmp_path: Path) -> None:
    write(tmp_path / "more", {"train.jsonl": lines(ROWS[:1]), "test.jsonl": lines(ROWS[:4])})
    assert len(parse(str(folder)).load(tmp_path / "more").heldout) == 2


def test_a_folder_with_training_data_only_is_refused(folder: Path) -> None:
    (folder / "data" / "test.jsonl").unlink()
    with pytest.raises(UserError, match=r"no test\.jsonl .* training data would mean nothing"):
        parse(str(folder)).load(None)


@pytest.mark.parametrize(
    ("name", "text", "fault"),
    [
        ("data/test.jsonl", lines(ROWS[:1]), "fewer than two rows"),
        ("data/test.jsonl", lines(ROWS) + '{"question": "?"}', r"test\.jsonl, line 11"),
        ("data/test.jsonl", lines([{**ROWS[0], "model_answer": "x"}] * 2), "line 1: the key 'model_answer'"),
        ("data/train.jsonl", "nonsense", r"train\.jsonl, line 1 is not JSON"),
    ],
)
def test_bad_data_is_named_when_it_is_loaded(folder: Path, name: str, text: str, fault: str) -> None:
    write(folder, {name: text})
    task = parse(str(folder))
    with pytest.raises(UserError, match=fault):
        task.load(None)


@pytest.mark.parametrize(
    ("config", "fault"),
    [
        ("", "no keys and values"),
        ("- a\n- b\n", "no keys and values"),
        ("a: [", "not YAML"),
        ("description: no name\n", "name: Field required"),
        ("name: ../up\n", "name: String should match"),
        ("name: echo\nexpose_files: eval.py\n", "expose_files"),
        ("name: echo\neval_mode: opencompass\n", "'opencompass' is not supported.*per_sample"),
    ],
)
def test_a_bad_configuration_is_the_users_error(folder: Path, config: str, fault: str) -> None:
    write(folder, {"config.yaml": config})
    with pytest.raises(UserError, match=fault):
        parse(str(folder))


@pytest.mark.parametrize("name", ["config.yaml", "eval.py"])
def test_a_missing_file_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(UserError, match=name):
        parse(str(folder))


def expose(folder: Path, name: str) -> Task:
    write(folder, {"config.yaml": json.dumps({"name": "echo", "expose_files": [name]})})
    return parse(str(folder))


def test_exposed_files_are_named_as_the_folder_names_them(folder: Path) -> None:
    write(folder, {"hints/one.md": "a hint"})
    assert expose(folder, "./hints/one.md").exposes == {"hints/one.md": folder / "hints" / "one.md"}


@pytest.mark.parametrize("name", ["../other", "/etc/passwd", "data", ".", "link", "linked/secret"])
def test_nothing_outside_the_folder_is_exposed(folder: Path, name: str) -> None:
    write(folder.parent / "outside", {"secret": "x"})
    (folder / "link").symlink_to(folder.parent / "outside" / "secret")
    (folder / "linked").symlink_to(folder.parent / "outside")
    with pytest.raises(UserError, match="is not a file inside"):
        expose(folder, name)


@pytest.mark.parametrize("name", ["data/test.jsonl", "./data/../data/test.jsonl", "soft", "hard"])
def test_the_test_data_is_never_exposed(folder: Path, name: str) -> None:
    (folder / "soft").symlink_to("data/test.jsonl")
    os.link(folder / "data" / "test.jsonl", folder / "hard")
    with pytest.raises(UserError, match="test data"):
        expose(folder, name)


def test_an_exposed_file_that_is_missing_is_named_when_the_data_is_loaded(folder: Path) -> None:
    task = expose(folder, "absent.md")
    with pytest.raises(UserError, match=r"absent\.md"):
        task.load(None)


@pytest.mark.parametrize(
    ("script", "kind", "fault"),
    [
        ("def evaluate(", UserError, "does not run: SyntaxError"),
        ("import no_such_module_at_all", UserError, "does not run: ModuleNotFoundError"),
        ("x = 1", UserError, "defines no function evaluate"),
        ("def evaluate(**kwargs): return 1 / 0", GradingError, "echo-test-.*ZeroDivisionError"),
        ("def evaluate(**kwargs): return None", GradingError, "no number from 0 to 1"),
        (
            "def evaluate(**kwargs): return float('nan')",
            GradingError,
            "no number from 0 to 1 for example echo-test-",
        ),
    ],
)
def test_an_eval_py_that_fails_never_gives_a_number(
    folder: Path, script: str, kind: type[Exception], fault: str
) -> None:
    write(folder, {"eval.py": script})
    task = parse(str(folder))
    examples = task.load(None).feedback
    with pytest.raises(kind, match=fault):
        answers(task, examples)
