"""One question, one answer, one score, and nothing that is not a score."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agent2rl.core.engine import Chat, Completion, Message, Sampling
from agent2rl.core.errors import GradingError, UserError
from agent2rl.core.task import Evaluator, Example
from agent2rl.engines.scripted import Scripted, parse
from agent2rl.evaluators.single_turn import SingleTurn

EXAMPLES = tuple(Example(f"e{n}", f"question {n}", f"answer {n}") for n in range(5))


def echo(_: Path) -> Callable[[Chat], str]:
    return lambda chat: chat[-1].content.replace("question", "answer")


def same(output: str, example: Example) -> float:
    return float(output == example.target)


@dataclass(frozen=True)
class Listening(Scripted):
    """A scripted engine that remembers what it was asked."""

    asked: list[tuple[Sequence[Chat], Sampling]] = field(default_factory=list)

    def generate(self, chats: Sequence[Chat], sampling: Sampling) -> list[Completion]:
        self.asked.append((chats, sampling))
        return super().generate(chats, sampling)


def test_examples_are_asked_in_one_batch_and_scored_in_order() -> None:
    engine = Listening(echo(Path()))
    evaluator: Evaluator = SingleTurn("same-1", same, sampling=Sampling(max_tokens=7))
    results = evaluator.evaluate(engine, EXAMPLES, seed=3)
    assert [(result.id, result.output, result.score) for result in results] == [
        (example.id, example.target, 1.0) for example in EXAMPLES
    ]
    assert engine.asked == [
        ([(Message("user", example.prompt),) for example in EXAMPLES], Sampling(max_tokens=7, seed=3))
    ]


def test_the_instruction_follows_the_question_after_an_empty_line() -> None:
    evaluator = SingleTurn("same-1", same, instruction="Be {brief}.")
    assert evaluator.chat(EXAMPLES[0]) == (Message("user", "question 0\n\nBe {brief}."),)


def test_the_version_tells_every_setting_apart() -> None:
    evaluators = [
        SingleTurn("same-1", same),
        SingleTurn("same-2", same),
        SingleTurn("same-1", same, instruction="Be brief."),
        SingleTurn("same-1", same, sampling=Sampling(max_tokens=7)),
    ]
    assert len({evaluator.version for evaluator in evaluators}) == len(evaluators)
    assert SingleTurn("same-1", same).version == evaluators[0].version


@pytest.mark.parametrize("value", [True, 1, 0.5, np.float32(0.5), np.int64(1)])
def test_any_kind_of_number_from_0_to_1_is_a_score(value: Any) -> None:
    results = SingleTurn("any", lambda *_: value).evaluate(Scripted(echo(Path())), EXAMPLES, seed=0)
    assert {result.score for result in results} == {float(value)}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -0.1, 1.1, 100, None, "1.0", [1.0], 1j])
def test_what_is_no_score_fails_with_the_examples_name(value: Any) -> None:
    evaluator = SingleTurn("odd", lambda _, example: value if example.id == "e3" else 1.0)
    with pytest.raises(GradingError, match="e3"):
        evaluator.evaluate(Scripted(echo(Path())), EXAMPLES, seed=0)


def test_a_scorer_that_raises_fails_with_the_examples_name() -> None:
    def broken(output: str, example: Example) -> float:
        return 1 / (example.id != "e2")

    with pytest.raises(GradingError, match=r"e2.*ZeroDivisionError"):
        SingleTurn("broken", broken).evaluate(Scripted(echo(Path())), EXAMPLES, seed=0)


def test_an_error_that_says_whose_fault_it_is_stays_what_it_is() -> None:
    def lost(output: str, example: Example) -> float:
        raise UserError("no eval.py")

    with pytest.raises(UserError):
        SingleTurn("lost", lost).evaluate(Scripted(echo(Path())), EXAMPLES, seed=0)


def test_an_engine_that_loses_an_answer_is_noticed() -> None:
    class Forgetful(Scripted):
        def generate(self, chats: Sequence[Chat], sampling: Sampling) -> list[Completion]:
            return super().generate(chats[1:], sampling)

    with pytest.raises(GradingError, match="4 answers to 5"):
        SingleTurn("same-1", same).evaluate(Forgetful(echo(Path())), EXAMPLES, seed=0)


def test_it_works_with_an_engine_found_by_name(tmp_path: Path) -> None:
    with parse(f"{__name__}:echo")(tmp_path) as engine:
        assert all(result.score for result in SingleTurn("same-1", same).evaluate(engine, EXAMPLES, seed=0))
