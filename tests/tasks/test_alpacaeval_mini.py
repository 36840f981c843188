"""The miniature: instructions with checkable qualities, the judge that ships, and the whole loop offline."""

import json
import re
import runpy
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from pydantic import JsonValue

from agent2rl import registry
from agent2rl.analysis import statistics
from agent2rl.core import task
from agent2rl.core.errors import UserError
from agent2rl.core.grading_records import EvalScore, EvalSettings
from agent2rl.core.task import Example
from agent2rl.engines.replay import ReplayEngine
from agent2rl.evaluators.pairwise import CONSTANTS, FOLDER
from agent2rl.evaluators.scorers import check_qualities, score_by_rubric
from agent2rl.tasks.alpacaeval.mini import NAMES, TASK, TOWNS, generate_instructions
from tests.helpers.run_launcher import RunLauncher

pytest.importorskip("sklearn", reason="length control needs agent2rl[judge]")

SPLITS = TASK.load(None)
ASKED: dict[str, JsonValue] = {
    "value": "Dover",
    "others": ["31", "Kent"],
    "language": "English",
    "length": "1 sentences",
    "form": "plain",
}


def test_the_right_answer_has_all_qualities_and_the_reference_all_but_one() -> None:
    for part in (SPLITS.train, SPLITS.feedback, SPLITS.heldout):
        assert {score_by_rubric(one.target, one) for one in part} == {1.0}
        assert {score_by_rubric(str(one.meta["reference"]), one) for one in part} == {0.8}
    lost = Counter(
        name
        for one in SPLITS.train
        for name, kept in check_qualities(str(one.meta["reference"]), one.meta).items()
        if not kept
    )
    assert set(lost) == {"language", "length", "form"}
    assert min(lost.values()) > 500


def test_nobody_goes_with_the_same_value_in_two_splits() -> None:
    pairs = [
        {(one.prompt.split()[0], str(one.meta["value"])) for one in part}
        for part in (SPLITS.train, SPLITS.feedback, SPLITS.heldout)
    ]
    assert not pairs[0] & pairs[1]
    assert not pairs[0] & pairs[2]
    assert not pairs[1] & pairs[2]
    assert [one.prompt for one in generate_instructions("feedback", 20)] == [
        one.prompt for one in SPLITS.feedback[:20]
    ]


@pytest.mark.parametrize(
    ("answer", "lacks"),
    [
        ("Mia lives in Dover.", set()),
        ("Mia lives in Kent.", {"answers"}),
        ("Mia, who is 31, lives in Dover.", {"answers"}),
        ("Mia lives in Dover, Kent.", {"answers"}),
        ("Mia lives in Dover or 12.", {"answers"}),
        ("Mia wohnt in Dover.", {"language"}),
        ("Mia lives in Dover. That is it.", {"length"}),
        ("- Mia lives in Dover.", {"form"}),
        ("MIA LIVES IN DOVER.", {"form"}),
        ("Sorry, I cannot say that Mia lives in Dover.", {"willing"}),
        ("I do not know.", {"answers", "willing"}),
        ("", {"answers", "language", "length", "form"}),
    ],
)
def test_each_quality_can_be_lacking(answer: str, lacks: set[str]) -> None:
    assert {name for name, kept in check_qualities(answer, ASKED).items() if not kept} == lacks


def test_a_long_row_of_marks_is_read_in_a_moment() -> None:
    begin = time.thread_time()
    assert not check_qualities("!" * 300_000 + "x", ASKED)["answers"]
    assert time.thread_time() - begin < 10


def test_nothing_is_worth_nothing_and_constants_win_nothing() -> None:
    assert score_by_rubric(" \n", Example("one", "", "", ASKED)) == 0
    gold = ReplayEngine({one.id: [one.target] for one in SPLITS.feedback})
    found = TASK.evaluator.evaluate(gold, SPLITS.feedback, EvalSettings())
    assert {result.score for result in found.results} == {1.0}
    assert found.how["judge"] == "rubric-2"
    assert found.how["constants"] == {"examples": 100, **dict.fromkeys(CONSTANTS, 0.0)}
    halfway = ReplayEngine({one.id: [str(one.meta["reference"])] for one in SPLITS.feedback})
    drawn = TASK.evaluator.evaluate(halfway, SPLITS.feedback, EvalSettings())
    assert {result.score for result in drawn.results} == {0.5}


def styled(one: Example, text: str) -> str:
    """A text in the form that is asked for, which needs no reading of the facts."""
    second = {"English": " That is it.", "German": " Das ist so."}[str(one.meta["language"])]
    text += second if one.meta["length"] == "2 sentences" else ""
    forms = {"plain": text, "capitals": text.upper(), "dash": f"- {text}", "quotes": f'"{text}"'}
    return forms[str(one.meta["form"])]


@pytest.mark.parametrize("values", [[], TOWNS, NAMES, range(12, 80), range(1930, 2010), [*TOWNS, *NAMES]])
def test_form_alone_wins_nothing_and_neither_does_naming_every_value(values: Sequence[object]) -> None:
    begin = {"English": "That is it", "German": "Das ist so"}
    for one in SPLITS.heldout:
        answer = ", ".join([begin[str(one.meta["language"])], *map(str, values)]) + "."
        assert score_by_rubric(styled(one, answer), one) < score_by_rubric(str(one.meta["reference"]), one)


def test_length_is_controlled_for_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = SPLITS.evaluator_folders[FOLDER]
    assert not isinstance(folder, Path)
    (tmp_path / FOLDER).mkdir()
    folder(tmp_path / FOLDER)
    monkeypatch.setenv(task.FOLDER_VARIABLE, str(tmp_path))

    def graded(answer: Callable[[int, Example], str]) -> EvalScore:
        said = ReplayEngine({one.id: [answer(n, one)] for n, one in enumerate(SPLITS.heldout)})
        return statistics.score_evaluation(
            TASK.evaluator.evaluate(said, SPLITS.heldout, EvalSettings()), "heldout"
        )

    gold = graded(lambda _, one: one.target)
    assert gold.how["score"] == "length_controlled"
    assert gold.value == pytest.approx(100, abs=0.1)
    assert gold.ci.low == pytest.approx(97.5, abs=0.1), "150 wins of 150 leave something open"
    assert graded(lambda _, one: str(one.meta["reference"])).value == pytest.approx(50, abs=0.1)
    padded = graded(lambda n, one: one.target + " That is it." * (n % 3))
    assert padded.value != padded.metrics["win_rate"]
    assert padded.ci.low <= padded.value <= padded.ci.high


def test_the_agent_has_the_rubric_as_a_reward() -> None:
    evaluate = runpy.run_path(str(TASK.exposes["eval.py"]))["evaluate"]
    one = SPLITS.train[0]
    row = {"question": one.prompt, "reference_answer": one.target, **one.meta}
    assert evaluate(model_answer=one.target, **row) == 1
    assert evaluate(model_answer=row["reference"], **row) == 0.8


@pytest.mark.thorough
def test_its_own_check_passes_in_the_real_sandbox(launcher: RunLauncher) -> None:
    done = launcher.cli("check", "alpacaeval-mini", "--json")
    found = {one["name"]: one for one in json.loads(done.stdout)}
    assert done.returncode == 0, found
    assert found["gold answers, heldout"]["detail"] == "150 of 150 score 100"
    assert found["wrong answers, feedback"]["detail"] == "150 of 150 score 0"


def test_it_is_generated_and_has_a_rule_so_that_no_judge_is_needed() -> None:
    with pytest.raises(UserError, match="generated"):
        TASK.load(Path())
    assert registry.find_task("alpacaeval-mini") is TASK
    assert not TASK.judged
    assert re.fullmatch(r"alpacaeval-mini-2-rubric-2\+\w{12}", TASK.evaluator.version)
