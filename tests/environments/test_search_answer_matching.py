"""Answers are matched without a judge: 334 labelled pairs, and what must hold for any text."""

import csv
import random
from datetime import date, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent2rl.environments.search.answer_matching import (
    NOTHING,
    AnswerMarks,
    GoldAnswer,
    is_same_item,
    mark_answer,
    normalize_text,
    parse_gold_answer,
)
from agent2rl.environments.search.answer_values import parse_quantity

LABELLED = Path(__file__).with_name("labelled_search_answers.tsv").read_text(encoding="utf-8")
PAIRS = [(line + "\t").replace("\\n", "\n").split("\t") for line in LABELLED.split("\n") if line]
"""Right or wrong, Single or List, gold answer, predicted answer, alias: as a careful reader would judge."""
TOO_STRICT = {
    ("Talva, Norrland", "Talva"),
    ("0.5%", "half a percent"),
    ("Yes", "Yes, it did"),
    ("Anna, Bert, Carl", "Anna Bert Carl"),
}
"""Right answers that only a judge would know to be right."""

NAMES = st.sampled_from(["Ohio", "Utah", "Norton and Shelby", "Łódź", "1,200", "4 May 1999", "Welt (2010)"])


def judged(right: str, predicted: str, kind: str, alias: str) -> AnswerMarks:
    name, _, other = alias.partition("=")
    asked = parse_gold_answer(
        right, {"S": "Single Answer", "L": "Set Answer"}[kind], {name: [other]} if other else None
    )
    return mark_answer(predicted, asked)


def test_the_matcher_agrees_with_all_but_four_of_334_labelled_pairs() -> None:
    assert len(PAIRS) == 334
    differing = {
        (right, predicted)
        for label, kind, right, predicted, alias, *_ in PAIRS
        if judged(right, predicted, kind, alias).correct != (label == "1")
    }
    assert differing == TOO_STRICT


def test_nothing_wrong_is_taken_for_right() -> None:
    wrong = [pair for pair in PAIRS if pair[0] == "0"]
    assert len(wrong) >= 110
    assert not [
        pair
        for pair in wrong
        for _, kind, right, said, alias, *_ in [pair]
        if judged(right, said, kind, alias).correct
    ]


@pytest.mark.parametrize(
    ("said", "precision", "recall"),
    [
        ("Ohio, Utah, Maine", 1, 1),
        ("Ohio", 1, 1 / 3),
        ("Ohio, Iowa", 1 / 2, 1 / 3),
        ("Ohio, Utah, Maine, Iowa", 3 / 4, 1),
        ("Ohio, Trinidad and Tobago", 1 / 2, 1 / 3),
        ("Ohio and Iowa and Idaho and Texas and Kansas and Nevada and Oregon", 1 / 4, 1 / 3),
        ("Iowa", 0, 0),
        ("", 0, 0),
    ],
)
def test_part_of_a_set_is_worth_a_part(said: str, precision: float, recall: float) -> None:
    marks = mark_answer(said, parse_gold_answer("Ohio, Utah, Maine"))
    assert (marks.precision, marks.recall) == pytest.approx((precision, recall))
    assert marks.f1 == pytest.approx(
        2 * precision * recall / (precision + recall) if precision + recall else 0.0
    )


def test_naming_everything_does_not_pay() -> None:
    everything = ", ".join(f"thing {number}" for number in range(150)) + ", Ohio"
    assert mark_answer(everything, parse_gold_answer("Ohio")).f1 < 0.02
    assert mark_answer(everything.replace(", ", " and "), parse_gold_answer("Ohio")).f1 < 0.03
    assert mark_answer(everything * 3, parse_gold_answer("Ohio")).correct is False


def test_an_item_with_a_comma_can_be_given_as_it_is() -> None:
    asked = GoldAnswer((("Welt, Inc.",), ("Orin, NJ", "Orin")))
    assert mark_answer("Orin and Welt, Inc.", asked).correct
    assert mark_answer("Orin, NJ; Welt", asked).correct


def test_a_gold_answer_is_never_empty() -> None:
    with pytest.raises(ValueError, match="not empty"):
        parse_gold_answer("")
    with pytest.raises(ValueError, match="not empty"):
        GoldAnswer((("Ohio",), (" . ",)))


@given(st.text(max_size=300))
def test_any_text_is_marked_within_bounds(text: str) -> None:
    marks = mark_answer(text, parse_gold_answer("Ohio, Utah"))
    assert 0 <= marks.precision <= 1
    assert 0 <= marks.recall <= 1
    assert 0 <= marks.f1 <= 1
    assert marks.correct == (marks.precision == marks.recall == 1)


@given(st.text(max_size=100))
def test_a_text_without_a_word_is_never_correct(text: str) -> None:
    if not normalize_text(text):
        assert mark_answer(text, parse_gold_answer("None")) == NOTHING


@given(st.text(max_size=60), st.text(max_size=60))
def test_sameness_has_no_direction(one: str, other: str) -> None:
    assert is_same_item(one, other) == is_same_item(other, one)
    assert is_same_item(one, one) == bool(normalize_text(one))


@given(
    st.lists(NAMES, min_size=1, unique=True).flatmap(
        lambda names: st.tuples(st.just(names), st.permutations(names))
    ),
    st.sampled_from(["; ", "\n", "\n- "]),
)
def test_a_set_is_right_in_any_order_and_form(both: tuple[list[str], list[str]], mark_between: str) -> None:
    names, shuffled = both
    asked = GoldAnswer(tuple((name,) for name in names))
    assert mark_answer(mark_between.join(shuffled), asked).correct
    assert len(names) == 1 or not mark_answer(mark_between.join(shuffled[1:]), asked).correct


INTRODUCTIONS = st.sampled_from(
    ["", "Based on the search results, ", "According to the page, the answer is ", "The items are: ", "Both "]
)
CLOSINGS = st.sampled_from(["", ".", " meet the criteria.", " are the items that satisfy both conditions."])


@given(
    st.lists(NAMES, min_size=2, unique=True).flatmap(
        lambda names: st.tuples(st.just(names), st.permutations(names))
    ),
    INTRODUCTIONS,
    CLOSINGS,
)
def test_a_set_is_right_in_a_sentence(
    both: tuple[list[str], list[str]], introduction: str, closing: str
) -> None:
    names, shuffled = both
    asked = GoldAnswer(tuple((name,) for name in names))
    assert mark_answer(introduction + "; ".join(shuffled) + closing, asked).correct
    assert not mark_answer(introduction + "; ".join(shuffled[1:]) + closing, asked).correct
    assert not mark_answer(introduction + "; ".join([*shuffled, "Iowa City"]) + closing, asked).correct


FORMS = (
    "{}",
    "Based on the search results, the answer is {}.",
    "{} meet the criteria.",
    "According to a page, {}",
)


@pytest.mark.thorough
def test_official_answers_are_right_for_their_own_question_and_for_no_other(shared_data: Path) -> None:
    with (shared_data / "deepsearchqa" / "DSQA-full.csv").open(encoding="utf-8", newline="") as file:
        rows = [(row["answer"].strip().rstrip("."), row["answer_type"]) for row in csv.DictReader(file)]
    gold = [parse_gold_answer(*row) for row in rows]
    own = [mark_answer(form.format(rows[n][0]), gold[n]).correct for n in range(0, 900, 4) for form in FORMS]
    assert sum(own) >= 0.98 * len(own)
    dice = random.Random(0)
    for number in range(5000):
        one, other = dice.sample(range(len(rows)), 2)
        if gold[one] != gold[other]:
            said = FORMS[number % len(FORMS)].format(rows[other][0])
            assert not mark_answer(said, gold[one]).correct, (rows[one], said)


PROSE = ("Based on " * 50_000, "no " * 50_000, "the " * 50_000, "Ohio are the " * 50_000, "1. a " * 50_000)


def test_a_long_answer_is_marked_in_no_time() -> None:
    for text in (
        "a, " * 100_000,
        "(" * 100_000,
        "and " * 100_000,
        "1," * 100_000,
        "answer " * 50_000,
        *PROSE,
    ):
        assert not mark_answer(text, parse_gold_answer("Ohio, Utah")).correct


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("one hundred and twenty-three", 123),
        ("two thousand and five", 2005),
        ("twelve hundred", None),
        ("a million", 10**6),
        ("a hundred and one", 101),
        ("three million, two hundred thousand", 3_200_000),
        ("five and six", None),
        ("three twenty", None),
        ("nineteen ninety-nine", None),
        ("ten five", None),
        ("1.5 million people", 1_500_000),
        ("5, Chile", None),
        ("five, Chile", None),
        ("2010-2015", None),
        ("Chile", None),
        ("", None),
    ],
)
def test_a_number_is_read_as_a_whole_or_not_at_all(text: str, value: int | None) -> None:
    found = parse_quantity(text)
    assert (found.value if found else None) == value


@given(st.integers(0, 10**12))
def test_a_number_is_itself_however_it_is_written(number: int) -> None:
    for form in (str(number), f"{number:,}", f"{number}.00", f"${number:,}", f"{number / 1000:.3f}k"):
        assert mark_answer(form, parse_gold_answer(str(number), "Single Answer")).correct
    assert not mark_answer(str(number + 1), parse_gold_answer(str(number), "Single Answer")).correct


@given(st.dates(min_value=date(1000, 1, 1)))
def test_a_date_is_itself_however_it_is_written(day: date) -> None:
    asked = parse_gold_answer(f"{day.day} {day:%B} {day.year}", "Single Answer")
    for form in (
        day.isoformat(),
        f"{day:%B} {day.day}, {day.year}",
        f"{day:%b} {day.day} {day.year}",
        f"{day:%d/%m/%Y}",
    ):
        assert mark_answer(form, asked).correct
    assert not mark_answer((day + timedelta(days=1 if day.year < 9999 else -1)).isoformat(), asked).correct
