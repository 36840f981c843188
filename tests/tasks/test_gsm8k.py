"""The official data, from a directory and from the hub's cache."""

import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import pytest

from agent2rl import registry
from agent2rl.analysis import statistics
from agent2rl.core.errors import UserError
from agent2rl.core.grading_records import EvalSettings
from agent2rl.core.task import Example, Task
from agent2rl.engines.scripted import ScriptedEngine
from agent2rl.evaluators.scorers import final_answer
from agent2rl.tasks.gsm8k import EVALUATOR, HUB_REVISION, SHOTS, TASK
from agent2rl.tasks.gsm8k.mini import TASK as MINI

ROWS = [
    {"question": f"What is {n} + 1?", "answer": f"{n} + 1 = <<{n}+1={n + 1}>>{n + 1}\n#### {n + 1}"}
    for n in range(9)
]


def write(directory: Path, split: str, rows: list[dict[str, str]]) -> None:
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (directory / f"{split}.jsonl").write_text(text, encoding="utf-8")


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    write(tmp_path, "train", ROWS)
    write(tmp_path, "test", ROWS)
    return tmp_path


def test_the_registry_knows_the_task_and_its_miniature() -> None:
    assert registry.find_task("gsm8k") is TASK
    assert registry.find_task("gsm8k-mini").evaluator is TASK.evaluator


def test_a_directory_with_the_official_files_is_read(data_dir: Path) -> None:
    splits = TASK.load(data_dir)
    assert splits.train[7] == Example("gsm8k-train-0007", ROWS[7]["question"], ROWS[7]["answer"])
    assert (len(splits.train), len(splits.feedback), len(splits.heldout)) == (9, 4, 5)


def test_feedback_and_heldout_divide_the_test_set_and_never_change(data_dir: Path) -> None:
    splits = TASK.load(data_dir)
    assert [example.id[-4:] for example in splits.feedback] == ["0000", "0002", "0004", "0006"]
    together = {example.id for example in (*splits.feedback, *splits.heldout)}
    assert together == {f"gsm8k-test-{n:04d}" for n in range(9)}


@pytest.mark.parametrize("split", ["train", "test"])
def test_a_missing_file_is_named(data_dir: Path, split: str) -> None:
    (data_dir / f"{split}.jsonl").unlink()
    with pytest.raises(UserError, match=rf"no {split}\.jsonl"):
        TASK.load(data_dir)


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "no question and answer"),
        ('{"question": "How many?"}', "no question and answer"),
        ('{"question": "How many?", "answer": 3}', "must be text"),
        ('{"question": "How many?", "answer": "3"}', "does not end in ####"),
        (r'{"question": "\ud800", "answer": "#### 3"}', "not JSON"),
    ],
)
def test_a_malformed_row_is_named_by_its_line(data_dir: Path, line: str, fault: str) -> None:
    path = data_dir / "test.jsonl"
    path.write_text(path.read_text(encoding="utf-8") + "\n" + line + "\n", encoding="utf-8")
    with pytest.raises(UserError, match=rf"test\.jsonl, line 11.*{fault}"):
        TASK.load(data_dir)


def test_bytes_that_are_no_text_are_the_users_error(data_dir: Path) -> None:
    (data_dir / "train.jsonl").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match=r"Cannot read .*train\.jsonl"):
        TASK.load(data_dir)


def test_too_few_problems_cannot_be_divided(data_dir: Path) -> None:
    write(data_dir, "test", ROWS[:1])
    with pytest.raises(UserError, match="fewer than two"):
        TASK.load(data_dir)


def test_the_description_states_what_the_model_is_asked() -> None:
    chat = EVALUATOR.chat(Example("e", "How many?", "#### 1"), templated=True)
    question, instruction = chat[0].content.split("\n\n")
    assert question == "How many?"
    assert instruction in TASK.description
    assert not any(letter.isdigit() for letter in instruction)


def test_a_model_without_a_chat_template_goes_on_after_eight_worked_problems() -> None:
    (message,) = EVALUATOR.chat(Example("e", "How many?", "#### 1"), templated=False)
    assert message.content == SHOTS + "\nQuestion: How many?\nAnswer:"
    assert message.content.count("Question: ") == message.content.count("\nAnswer:") == 9
    assert "\n\n\n" not in message.content


PLAIN = {
    "prompting": "plain",
    "shots": 8,
    "samples": 1,
    "temperature": 0.0,
    "max_tokens": 512,
    "stop": ["\nQuestion:"],
}
CHAT = {**PLAIN, "prompting": "chat", "shots": 0, "stop": []}


@pytest.mark.parametrize("templated", [True, False])
def test_how_it_was_asked_is_recorded_with_the_score(templated: bool) -> None:
    class Plain(ScriptedEngine):
        @property
        def templated(self) -> bool:
            return templated

    examples = (Example("e", "How many?", "#### 5"),)
    engine = Plain(lambda _: " Five.\n#### 5\n\nQuestion: And then?\nAnswer: #### 6")
    found = EVALUATOR.evaluate(engine, examples, EvalSettings())
    score = statistics.score_evaluation(found, "feedback")
    assert score.value == 100
    assert score.how == (CHAT if templated else PLAIN)
    assert ("And then?" in found.results[0].output) == templated


def test_the_strict_rule_ranks_and_the_flexible_one_is_reported_beside_it() -> None:
    replies = iter(["#### 5", "The answer is 5.", r"So \boxed{5}", "#### 5\nI took 2 steps.", "none"])
    examples = tuple(Example(f"e{number}", "How many?", "#### 5") for number in range(5))
    found = EVALUATOR.evaluate(ScriptedEngine(lambda _: next(replies)), examples, EvalSettings())
    score = statistics.score_evaluation(found, "feedback")
    assert score.value == 40
    assert score.metrics["flexible"] == 60


def shots() -> list[tuple[str, str]]:
    """Question and answer of each worked problem."""
    found = [shot.partition("\nAnswer: ") for shot in SHOTS.strip().split("\n\n")]
    return [(question.removeprefix("Question: "), answer) for question, _, answer in found]


def value(sum_: str) -> Fraction:
    """What a sum of plain numbers comes to, exactly."""
    assert re.fullmatch(r"[0-9.+*/-]+", sum_)
    return Fraction(eval(re.sub(r"[0-9.]+", lambda number: f"Fraction('{number[0]}')", sum_)))


def test_every_calculation_of_the_worked_problems_is_right_and_follows_from_what_is_known() -> None:
    assert len(shots()) == EVALUATOR.prompt.shots == 8
    for question, answer in shots():
        *lines, last = answer.split("\n")
        assert 2 <= len(lines) <= 5
        known = {Fraction(n) for n in re.findall(r"[0-9]+(?:\.[0-9]+)?", question)}
        known |= {Fraction(n) for word, n in MEANT.items() if word in question.lower()}
        for line in lines:
            (step,) = re.findall(r"([0-9.+*/-]+) = \$?<<(.*)=(.*)>>([0-9]+(?:\.[0-9]+)?)", line)
            shown, calculation, result, told = map(value, step)
            assert shown == calculation == result == told, line
            assert {value(number) for number in re.findall(r"[0-9.]+", step[1])} <= known, line
            known.add(result)
        assert final_answer(last) == result
    assert len({tuple(re.findall(r"[-+*/]", answer)) for _, answer in shots()}) > 5


MEANT = {"twice": 2, "half": 2, "third": 3, "quarter": 4, "%": 100}
"""Numbers that a question says in words."""


def grams(text: str, size: int = 8) -> set[tuple[str, ...]]:
    """Every run of so many words; calculations in brackets only repeat numbers."""
    words = re.findall(r"[a-z0-9]+", re.sub("<<.*?>>", "", text.lower()))
    return {tuple(words[start : start + size]) for start in range(len(words) - size + 1)}


def test_the_worked_problems_share_no_words_with_the_official_ones(shared_data: Path) -> None:
    official: set[tuple[str, ...]] = set()
    for split in ("train", "test"):
        for line in (shared_data / "gsm8k" / f"{split}.jsonl").read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            official |= grams(row["question"]) | grams(row["answer"])
    assert official
    assert not official & grams(SHOTS)


def test_the_worked_problems_share_no_words_with_the_miniature() -> None:
    splits = MINI.load(None)
    generated = {
        gram
        for example in (*splits.train, *splits.feedback, *splits.heldout)
        for text in (example.prompt, example.target)
        for gram in grams(text)
    }
    assert not generated & grams(SHOTS)


def gold_score(task: Task, examples: tuple[Example, ...]) -> float:
    answers: Iterator[str] = iter([example.target for example in examples])
    engine = ScriptedEngine(lambda _: next(answers))
    results = task.evaluator.evaluate(engine, examples, EvalSettings()).results
    return sum(result.score for result in results) / len(results)


def test_the_official_files_load_and_gold_answers_are_right(shared_data: Path) -> None:
    splits = TASK.load(shared_data / "gsm8k")
    assert (len(splits.train), len(splits.feedback), len(splits.heldout)) == (7473, 659, 660)
    assert gold_score(TASK, splits.feedback) == gold_score(TASK, splits.heldout) == 1.0


LOAD = """
import sys
from agent2rl.core.errors import Agent2RLError
from agent2rl.tasks.gsm8k import TASK
assert not any(map(sys.modules.get, ("huggingface_hub", "pyarrow")))
try:
    splits = TASK.load(None)
    print(len(splits.train), len(splits.feedback), len(splits.heldout), splits.train[3].target)
except Agent2RLError as error:
    print(type(error).__name__, error)
"""


def load_from_hub(cache: Path, before: str = "") -> str:
    """In a process of its own: the hub's library reads its environment when it is imported."""
    environment = {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_CACHE": str(cache),
        "HF_HOME": str(cache),
    }
    done = subprocess.run(
        [sys.executable, "-c", before + LOAD], env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_the_hubs_cache_is_read_at_the_pinned_revision(tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub")
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    repository = tmp_path / "datasets--openai--gsm8k"
    snapshot = repository / "snapshots" / HUB_REVISION / "main"
    snapshot.mkdir(parents=True)
    (repository / "blobs").mkdir()
    for split, rows in (("train", ROWS), ("test", ROWS[:4])):
        blob = repository / "blobs" / hashlib.sha256(split.encode()).hexdigest()
        parquet.write_table(pyarrow.Table.from_pylist(rows), blob)
        (snapshot / f"{split}-00000-of-00001.parquet").symlink_to(Path("../../../blobs") / blob.name)
    assert load_from_hub(tmp_path) == f"9 2 2 {ROWS[3]['answer']}"


def test_an_unreachable_hub_is_the_worlds_fault_and_the_mend_names_the_way_out(tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub")
    pytest.importorskip("pyarrow")
    said = load_from_hub(tmp_path)
    assert said.startswith("ExternalServiceError")
    assert "--data-dir" in said


def test_without_the_extra_the_mend_names_it(tmp_path: Path) -> None:
    said = load_from_hub(tmp_path, before="import sys; sys.modules['huggingface_hub'] = None\n").splitlines()[
        -1
    ]
    assert said.startswith("UserError")
    assert "agent2rl[hub]" in said
    assert "--data-dir" in said
