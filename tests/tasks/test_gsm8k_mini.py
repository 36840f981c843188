"""The generated miniature: sound arithmetic, splits that share nothing, the same bytes each time."""

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import asdict
from itertools import combinations
from pathlib import Path

import pytest

from agent2rl.core.errors import UserError
from agent2rl.core.task import Example
from agent2rl.evaluators.scorers import final_answer
from agent2rl.tasks.gsm8k.mini import NAMES, RANGES, TASK, THINGS, VESSELS, WORDS, Part, read_stories

SPLITS = TASK.load(None)
PARTS: dict[Part, tuple[Example, ...]] = {
    "train": SPLITS.train,
    "feedback": SPLITS.feedback,
    "heldout": SPLITS.heldout,
}
EXAMPLES = [example for part in PARTS.values() for example in part]
FILLERS = [*NAMES, *THINGS, *WORDS, *(word for pair in VESSELS for word in pair)]


def disjoint(sets: Iterable[set[str]]) -> bool:
    return all(not left & right for left, right in combinations(list(sets), 2))


def steps(example: Example) -> list[tuple[int, str, int, int]]:
    found = re.findall(r"<<(\d+)([-+*/])(\d+)=(\d+)>>", example.target)
    return [(int(left), sign, int(right), int(result)) for left, sign, right, result in found]


def skeleton(question: str) -> str:
    """The question without its names, things and numbers."""
    return re.sub(rf"\b(\d+|{'|'.join(FILLERS)})\b", "_", question)


def numbers(example: Example) -> str:
    worked = steps(example)
    return str([worked[0][0], *(right for _, _, right, _ in worked)])


def test_the_splits_have_the_sizes_they_should() -> None:
    assert [len(part) for part in PARTS.values()] == [2000, 150, 150]


def test_the_problems_are_the_same_bytes_everywhere() -> None:
    """Whoever changes this digest changes the task: scores from before and after do not compare."""
    text = json.dumps([asdict(example) for example in EXAMPLES], sort_keys=True)
    assert hashlib.sha256(text.encode()).hexdigest() == (
        "12150c48d8d0bc13399ba7793c3996ef7ce68231cf2cfb1e515fb6b91d1445c4"
    )
    assert TASK.load(None) == SPLITS


def test_every_step_of_a_gold_answer_is_right_and_follows_from_the_one_before() -> None:
    for example in EXAMPLES:
        worked = steps(example)
        assert 1 <= len(worked) <= 2
        for left, sign, right, result in worked:
            right_result = {"+": left + right, "-": left - right, "*": left * right}.get(sign)
            assert result > 0
            assert right_result == result or (sign == "/" and result * right == left)
        assert [step[0] for step in worked[1:]] == [step[3] for step in worked[:-1]]
        assert final_answer(example.target) == worked[-1][3]


def test_a_question_holds_the_numbers_of_its_answer_in_order() -> None:
    values = {word: str(number) for number, word in enumerate(WORDS, start=2)}
    values |= {"twice": "2", "half": "2", "dozen": "12"}
    for example in EXAMPLES:
        found = re.findall(rf"\b(\d+|{'|'.join(values)})\b", example.prompt)
        assert str([int(values.get(word, word)) for word in found]) == numbers(example), example.prompt


def test_no_story_stands_in_two_splits() -> None:
    assert disjoint({skeleton(example.prompt) for example in part} for part in PARTS.values())
    assert disjoint({story for program in RANGES for story in read_stories(program, part)} for part in PARTS)


def test_no_numbers_stand_in_two_splits() -> None:
    assert disjoint({numbers(example) for example in part} for part in PARTS.values())


def test_no_question_is_asked_twice() -> None:
    assert len({example.prompt for example in EXAMPLES}) == len(EXAMPLES)
    assert len({example.id for example in EXAMPLES}) == len(EXAMPLES)


@pytest.mark.parametrize("program", RANGES)
def test_every_program_has_enough_stories_in_every_split(program: str) -> None:
    assert len(set(read_stories(program, "train"))) >= 8
    assert len(set(read_stories(program, "feedback"))) >= 4
    assert len(set(read_stories(program, "heldout"))) >= 4


def test_the_words_are_few_and_the_test_words_are_known_from_training() -> None:
    words = {
        name: set(re.findall(r"[a-z]+", " ".join(e.prompt.lower() for e in part)))
        for name, part in PARTS.items()
    }
    assert len(set().union(*words.values())) < 300
    for part in ("feedback", "heldout"):
        assert len(words[part] & words["train"]) > 0.7 * len(words[part])


def test_it_reads_no_files(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="generated"):
        TASK.load(tmp_path)
