"""One question, one answer, one score, and nothing that is not a score."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agent2rl.core.engine import Chat, ChatMessage, Completion, Engine, Sampling
from agent2rl.core.errors import GradingError, UserError
from agent2rl.core.grading_records import EvalSettings, ExampleResult
from agent2rl.core.task import Evaluator, Example
from agent2rl.engines.scripted import ScriptedEngine, parse
from agent2rl.evaluators.single_turn import QuestionPrompt, SingleTurn

EXAMPLES = tuple(Example(f"e{n}", f"question {n}", f"answer {n}") for n in range(5))


def echo(_: Path) -> Callable[[Chat], str]:
    return lambda chat: chat[-1].content.replace("question", "answer")


def same(output: str, example: Example) -> float:
    return float(output == example.target)


@dataclass(frozen=True)
class Listening(ScriptedEngine):
    """A scripted engine that remembers what it was asked."""

    asked: list[tuple[Sequence[Chat], Sampling]] = field(default_factory=list)

    def generate(self, chats: Sequence[Chat], sampling: Sampling) -> list[Completion]:
        self.asked.append((chats, sampling))
        return super().generate(chats, sampling)


def evaluated(evaluator: Evaluator, engine: Engine | None = None) -> tuple[ExampleResult, ...]:
    return evaluator.evaluate(engine or ScriptedEngine(echo(Path())), EXAMPLES, EvalSettings()).results


def test_examples_are_asked_in_one_batch_and_scored_in_order() -> None:
    engine = Listening(echo(Path()))
    evaluator: Evaluator = SingleTurn("same-1", same, QuestionPrompt(sampling=Sampling(max_tokens=7)))
    found = evaluator.evaluate(engine, EXAMPLES, EvalSettings(seed=3))
    assert [(result.id, result.output, result.score) for result in found.results] == [
        (example.id, example.target, 1.0) for example in EXAMPLES
    ]
    assert engine.asked == [
        ([(ChatMessage("user", example.prompt),) for example in EXAMPLES], Sampling(max_tokens=7, seed=3))
    ]


def test_the_question_is_put_where_the_prompt_says_and_is_not_read_as_a_prompt_itself() -> None:
    evaluator = SingleTurn("same-1", same, QuestionPrompt("Be {brief}: {question}!"))
    (message,) = evaluator.chat(Example("e", "What is {question} in {braces}?", ""), templated=True)
    assert message == ChatMessage("user", "Be {brief}: What is {question} in {braces}?!")


def test_the_version_tells_every_setting_apart() -> None:
    evaluators = [
        SingleTurn("same-1", same),
        SingleTurn("same-2", same),
        SingleTurn("same-1", same, QuestionPrompt("{question} Be brief.")),
        SingleTurn("same-1", same, QuestionPrompt(plain="{question} Be brief.")),
        SingleTurn("same-1", same, QuestionPrompt(stop=("Q:",))),
        SingleTurn("same-1", same, QuestionPrompt(temperature=0.5)),
        SingleTurn("same-1", same, QuestionPrompt(sampling=Sampling(max_tokens=7))),
    ]
    assert len({evaluator.version for evaluator in evaluators}) == len(evaluators)
    assert SingleTurn("same-1", same).version == evaluators[0].version


@pytest.mark.parametrize("value", [True, 1, 0.5, np.float32(0.5), np.int64(1)])
def test_any_kind_of_number_from_0_to_1_is_a_score(value: Any) -> None:
    assert {result.score for result in evaluated(SingleTurn("any", lambda *_: value))} == {float(value)}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -0.1, 1.1, 100, None, "1.0", [1.0], 1j])
def test_what_is_no_score_fails_with_the_examples_name(value: Any) -> None:
    evaluator = SingleTurn("odd", lambda _, example: value if example.id == "e3" else 1.0)
    with pytest.raises(GradingError, match="e3"):
        evaluated(evaluator)


def test_a_scorer_that_raises_fails_with_the_examples_name() -> None:
    def broken(output: str, example: Example) -> float:
        return 1 / (example.id != "e2")

    with pytest.raises(GradingError, match=r"e2.*ZeroDivisionError"):
        evaluated(SingleTurn("broken", broken))


def test_an_error_that_says_whose_fault_it_is_stays_what_it_is() -> None:
    def lost(output: str, example: Example) -> float:
        raise UserError("no eval.py")

    with pytest.raises(UserError):
        evaluated(SingleTurn("lost", lost))


def test_an_engine_that_loses_an_answer_is_noticed() -> None:
    class Forgetful(ScriptedEngine):
        def generate(self, chats: Sequence[Chat], sampling: Sampling) -> list[Completion]:
            return super().generate(chats[1:], sampling)

    with pytest.raises(GradingError, match="4 answers to 5"):
        evaluated(SingleTurn("same-1", same), Forgetful(echo(Path())))


def test_it_works_with_an_engine_found_by_name(tmp_path: Path) -> None:
    with parse(f"{__name__}:echo")(tmp_path) as engine:
        assert all(result.score for result in evaluated(SingleTurn("same-1", same), engine))


def test_other_ways_to_score_are_metrics_and_do_not_change_the_score() -> None:
    evaluator = SingleTurn(
        rule="strict-1",
        score=lambda output, _: float(output == "#### 5"),
        metrics={"flexible": lambda output, _: float("5" in output)},
    )
    replies = iter(["#### 5", "It is 5.", "It is 5.", "none"])
    examples = tuple(Example(str(number), "How many?", "5") for number in range(2))
    settings = EvalSettings(samples=2)
    found = evaluator.evaluate(ScriptedEngine(lambda _: next(replies)), examples, settings).results
    assert [result.score for result in found] == [0.5, 0.0]
    assert [result.metrics["flexible"] for result in found] == [1.0, 0.5]
    assert {*found[0].metrics} == {"flexible", "pass@1", "pass@2"}
