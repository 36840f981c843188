"""Exact numbers out of answers: a table of hard cases, properties, and every official answer."""

import json
import re
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent2rl.core.task import Example
from agent2rl.evaluators.scorers import (
    exact_number,
    final_answer,
    last_number,
    same_last_number,
    same_published_number,
)

SAME_NUMBER = [
    ("#### 18", 18),
    ("####18", 18),
    ("####\n18", 18),
    ("It is 3 * 6 = <<3*6=18>>18.\n#### 18\n", 18),
    ("#### 18.00", 18),
    ("#### 018", 18),
    ("#### 18.", 18),
    ("#### 18.50", Fraction(37, 2)),
    ("#### .5", Fraction(1, 2)),
    ("#### -7", -7),
    ("#### \u22127", -7),
    ("#### - 7", -7),
    ("#### +7", 7),
    ("#### -0", 0),
    ("#### 1,080", 1080),
    ("#### 109,200,000", 109_200_000),
    ("#### 1,080.50", Fraction(2161, 2)),
    ("#### 1,080, and no more", 1080),
    ("#### $1,080", 1080),
    ("#### $ 1080", 1080),
    ("#### -$5", -5),
    ("#### $-5", -5),
    ("#### \u20ac3.20", Fraction(16, 5)),
    ("#### 3.20 \u20ac", Fraction(16, 5)),
    ("#### \u00a340", 40),
    ("#### 40\u00a3", 40),
    ("#### 1/2", Fraction(1, 2)),
    ("#### 5 / 2", Fraction(5, 2)),
    ("#### -1/2", Fraction(-1, 2)),
    ("#### 2 1/2", Fraction(5, 2)),
    ("#### -2 1/2 hours", Fraction(-5, 2)),
    ("#### 1,000/4", 250),
    ("#### 50%", 50),
    ("#### 42 apples.", 42),
    ("#### 42km", 42),
    ("#### 42 m2", 42),
    ("#### 5 / day", 5),
    ("#### 10-pack", 10),
    ("#### 42\n43", 42),
    ("#### 1 #### 2", 1),
    ("#### x #### 18", 18),
    ("##### 18", 18),
    ("#### **18**", 18),
    ("#### **$18**", 18),
    ("#### **-$18**", -18),
    ("#### __18__", 18),
    (r"#### \boxed{18}", 18),
    (r"#### $\boxed{18}$", 18),
    (r"#### \boxed{\$1,800}", 1800),
    (r"#### \$18", 18),
    (r"#### \(18\)", 18),
    (r"#### \text{Answer: } 18", 18),
    ("#### Answer: 18", 18),
    ("#### The answer is 18.", 18),
    ("#### **Final Answer:** 18 eggs", 18),
    ("#### Answer:\n18", 18),
    ("####: 18", 18),
    ("#### (18)", 18),
    ("#### = 18", 18),
    ("#### \u2248 18", 18),
    ("#### 9 * 2 = 18", 18),
    ("#### $9 * 2 = $18.00", 18),
    ("#### (4 + 5) x 2 = 9 * 2 = 18 eggs", 18),
    ("#### 9 * 2 = <<9*2=18>>18", 18),
    ("#### 50% * 36 = 18", 18),
    ("#### Rs. 1800", 1800),
    ("#### USD 1,800", 1800),
    ("#### \u20b91800", 1800),
    ("#### 18 (as 9 * 2 = 18)", 18),
    ("#### 18 and x = 5", 18),
    ("#### **5** #### 18", 18),
    ("#### **5** #### **18**", 5),
    ("<think>maybe #### 5</think> #### 18", 18),
    ("maybe #### 5</think>\n#### 18", 18),
]

NO_NUMBER = [
    "",
    "18",
    "### 18",
    "####",
    "#### ",
    "#### $",
    "#### .",
    "#### -",
    "#### eighteen",
    "#### Step 18",
    "#### Answer: eighteen, not 19",
    "#### 18 </think>",
    "#### 1,08 #### 18",
    "#### 3-4\n#### 18",
    "#### **1,08** #### x",
    r"#### \boxed{1,08}",
    "#### 9 * 2 = 3 * 6",
    "#### 18 = x",
    "#### 1,08",
    "#### 1,0800",
    "#### 10,80,000",
    "#### 1080,000",
    "#### 0,123",
    "#### 1.080,50",
    "#### 1 080",
    "#### 1  080",
    "#### 1'080",
    "#### 1_080",
    "#### 1.2.3",
    "#### 12:30",
    "#### 1e9",
    "#### 1E-9",
    "#### 0x1F",
    "#### 3-4",
    "#### 3 - 4",
    "#### 3 + $4",
    "#### 3 x 4",
    "#### 3^2",
    "#### --3",
    "#### -$-3",
    "#### 7/0",
    "#### 7 / 0",
    "#### 1/2/3",
    "#### 2 3/2",
    "#### 2 1/0",
    "#### 1.5/2",
    "#### 4\u0662",
    "#### " + "9" * 41,
    "#### " + "9" * 1_000_000,
    "#### 1/" + "9" * 1_000_000,
    "#### " + "1,000" * 100_000,
]


def test_a_task_can_use_a_scorer_of_numbers_as_its_score() -> None:
    example = Example("sum-test-0000", "What is 9 + 9?", "9 + 9 = 18\n#### 18")
    for score in (exact_number, same_last_number, same_published_number):
        assert score("#### 18", example) == score("#### 18", example.target) == 1
        assert score("#### 17", example) == score("#### 17", example.target) == 0


@pytest.mark.parametrize(("text", "number"), SAME_NUMBER)
def test_a_number_is_read_however_it_is_written(text: str, number: Fraction | int) -> None:
    assert final_answer(text) == number


@pytest.mark.parametrize("text", NO_NUMBER, ids=lambda text: ascii(text[:24]))
def test_what_is_no_plain_number_is_no_answer(text: str) -> None:
    assert final_answer(text) is None


STRICT = re.compile(r"#### (\-?[0-9\.\,]+)")
"""What the authors of GSM8K and, as their strict rule, lm-evaluation-harness and verl search a reply for."""


def strict(text: str) -> str | None:
    found = STRICT.search(text)
    return found[1].replace(",", "") if found else None


@pytest.mark.parametrize(
    ("text", "theirs", "ours"),
    [
        ("#### 5 apples", "5", 5),
        ("#### 42%", "42", 42),
        ("#### -3", "-3", -3),
        ("#### 1 #### 2", "1", 1),
        ("#### Step 1: add\n1 + 1 = 2\n#### Answer\n#### 2", "2", 2),
        ("### Solution\n#### 5 boxes of 2\n#### 10", "5", 5),
        ("#### 1. Add\n2 + 2 = 4\n#### 4", "1.", 1),
        ("##### 42", "42", 42),
        ("#### (1) Add\n2 + 2 = 4\n#### 4", "4", 4),
        ("#### x = 5", None, None),
        ("#### \uff14\uff12", None, None),
        ("### 42", None, None),
        ("The answer is 42.", None, None),
    ],
)
def test_an_answer_is_looked_for_where_the_published_strict_graders_look(
    text: str, theirs: str | None, ours: int | None
) -> None:
    assert strict(text) == theirs
    assert final_answer(text) == ours


@pytest.mark.parametrize(
    ("text", "theirs", "ours"),
    [
        ("####42", None, 42),
        ("####  42", None, 42),
        ("####\n42", None, 42),
        ("#### $1,000.00.", None, 1000),
        ("#### \u22125", None, -5),
        ("#### 3.0", "3.0", 3),
        ("#### 1000.", "1000.", 1000),
        ("#### .50", ".50", Fraction(1, 2)),
        ("#### 1/2", "1", Fraction(1, 2)),
        ("#### **42**", None, 42),
        (r"#### \boxed{42}", None, 42),
        ("#### Answer: 5", None, 5),
        ("#### 3-4", "3", None),
        ("#### 12:30", "12", None),
        ("#### 1,08", "108", None),
        ("#### 5 + 6 = 11", "5", 11),
        ("#### ...", "...", None),
    ],
)
def test_a_number_is_read_by_its_value_where_the_strict_graders_compare_letters(
    text: str, theirs: str | None, ours: Fraction | int | None
) -> None:
    assert strict(text) == theirs
    assert final_answer(text) == ours


@given(st.text(), st.integers(-(10**9), 10**9), st.text())
def test_headings_before_the_answer_and_text_after_it_change_nothing(
    heading: str, number: int, rest: str
) -> None:
    before = re.sub(r"\d", "", heading)
    assert final_answer(f"#### {before}.\n#### {number}\n\nSo it is. {rest}") == number


@pytest.mark.parametrize(
    "text",
    [
        "#### 5" + " " * 200_000 + "x",
        "####" + " " * 200_000,
        "#### " * 50_000,
        "#" * 200_000,
        "1" + "." * 200_000,
        "#### " + "the " * 200_000,
        "####(" * 50_000,
        "#### " + "1 = " * 200_000,
        "#### 1" + " =" * 200_000,
        "#### 1 <<" * 50_000,
    ],
)
def test_long_runs_of_one_character_take_no_time(text: str) -> None:
    final_answer(text)
    last_number(text)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("So 3 * 6 = 18.", 18),
        ("She pays $1,080.50 in 2 parts", 2),
        ("She pays $1,080.50.", Fraction(2161, 2)),
        ("16-3-4=9", 9),
        ("It falls to -4", -4),
        ("That is 2 1/2.", Fraction(5, 2)),
        ("In 2020 5 of them", 5),
        ("The answer is 18.", 18),
        (r"So \boxed{18}", 18),
        ("#### 5\n#### 18", 18),
        ("#### 18\nI checked it 2 times", 2),
        ("<think>18</think> It is 9 eggs.", 9),
        ("Is it 1,08?", None),
        ("none at all", None),
        ("18</think> none", None),
    ],
)
def test_the_flexible_rule_takes_the_last_number(text: str, number: Fraction | int | None) -> None:
    assert last_number(text) == number


@given(st.text() | st.text("0123456789#.,/-+ $e\n%=*(<>\\{"))
def test_no_text_is_too_strange(text: str) -> None:
    for answer in (text, f"#### {text}"):
        assert isinstance(final_answer(answer), Fraction | None)
        assert isinstance(last_number(answer), Fraction | None)


around = st.sampled_from(
    [
        "{}",
        "**{}**",
        r"\boxed{{{}}}",
        "$\\boxed{{{}}}$",
        "({})",
        ": {}",
        "= {}",
        "Answer: {}",
        "Rs. {}",
        "**Answer: {}.**",
    ]
)


@given(st.integers(-(10**9), 10**9), around, st.sampled_from(["", " eggs", "\n\nSo 5 are left."]))
def test_a_number_survives_what_is_around_it(number: int, form: str, rest: str) -> None:
    text = f"3 + 4 = 7\n#### {form.format(number)}{rest}"
    assert final_answer(text) == number


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=4), st.integers(-(10**6), 10**6))
def test_of_a_calculation_the_result_counts(numbers: list[int], result: int) -> None:
    assert final_answer(f"#### {' + '.join(map(str, numbers))} = {result}") == result


@given(
    number=st.integers(-(10**12), 10**12),
    separated=st.booleans(),
    currency=st.sampled_from(["", "$", "\u20ac", "\u00a3"]),
    zeros=st.integers(0, 4),
    unit=st.sampled_from(["", ".", " apples", "%", " dollars.", "\nmore 5"]),
)
def test_an_integer_survives_its_decorations(
    number: int, separated: bool, currency: str, zeros: int, unit: str
) -> None:
    digits = f"{abs(number):,}" if separated else str(abs(number))
    decimals = "." + "0" * zeros if zeros else ""
    text = f"#### {'-' if number < 0 else ''}{currency}{digits}{decimals}{unit}"
    assert final_answer(text) == number
    assert exact_number(text, f"#### {number}") == 1.0
    assert exact_number(text, f"#### {number + 1}") == 0.0


@given(st.integers(-(10**9), 10**9), st.integers(1, 10**9))
def test_a_fraction_is_exact(top: int, bottom: int) -> None:
    assert final_answer(f"#### {top}/{bottom}") == Fraction(top, bottom)


def test_a_target_without_a_number_is_an_error_and_not_a_zero() -> None:
    with pytest.raises(ValueError, match="no number"):
        exact_number("#### 1", "about one")


@pytest.mark.parametrize("split", ["train", "test"])
def test_every_official_answer_is_right_and_its_neighbour_wrong(split: str, shared_data: Path) -> None:
    lines = (shared_data / "gsm8k" / f"{split}.jsonl").read_text(encoding="utf-8").splitlines()
    for line in lines:
        answer = json.loads(line)["answer"]
        number = final_answer(answer)
        assert number is not None, answer
        assert exact_number(answer, answer) == 1.0
        assert exact_number(f"#### {number + 1}", answer) == 0.0
