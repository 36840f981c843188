"""GSM8K under the paper's protocol: four worked problems as turns, and the last number of the reply."""

from collections.abc import Callable

import pytest

from agent2rl import registry
from agent2rl.core.engine import Chat, render_plain_text
from agent2rl.core.grading_records import EvalResult, EvalSettings
from agent2rl.core.task import Example
from agent2rl.engines.scripted import ScriptedEngine
from agent2rl.evaluators.single_turn import SingleTurn

EXAMPLE = Example("g", "How many eggs are 9 * 2 eggs?", "9 * 2 = <<9*2=18>>18\n#### 18")
LARGE = Example("h", "How many grams are left?", "#### 1,234")


def find_evaluator() -> SingleTurn:
    found = registry.find_task("gsm8k").apply_profile("paper-gsm8k-2").evaluator
    assert isinstance(found, SingleTurn)
    return found


def evaluate(answer: Callable[[Chat], str], *examples: Example) -> EvalResult:
    return find_evaluator().evaluate(ScriptedEngine(answer), examples, EvalSettings())


def score(reply: str, example: Example = EXAMPLE) -> float:
    return evaluate(lambda _: reply, example).results[0].score


def test_the_model_is_asked_in_nine_turns_of_the_published_form() -> None:
    asked: list[Chat] = []

    def answer(chat: Chat) -> str:
        asked.append(chat)
        return "The answer is 18"

    result = evaluate(answer, EXAMPLE)
    (chat,) = asked
    assert [turn.role for turn in chat] == ["user", "assistant"] * 4 + ["user"]
    assert chat[-1].content == "Question: How many eggs are 9 * 2 eggs?\nLet's think step by step\nAnswer:"
    for user, assistant in zip(chat[:-1:2], chat[1::2], strict=True):
        assert user.content.startswith("Question: ")
        assert user.content.endswith("\nLet's think step by step\nAnswer:")
        assert assistant.content.splitlines()[-1].startswith("The answer is ")
        assert assistant.content.endswith("\n")
    assert result.how["max_tokens"] == 512
    assert result.how["shots"] == 4
    assert result.how["temperature"] == 0
    assert result.how["stop"] == []
    assert result.results[0].score == 1


def test_a_model_without_a_template_reads_the_same_as_one_text() -> None:
    text = render_plain_text(find_evaluator().chat(EXAMPLE, templated=False))
    assert text.count("Question: ") == 5
    assert "\nAnswer: On Monday the rolls bring 30 * 2 = 60 dollars." in text
    assert text.endswith(
        "The answer is 4\n\nQuestion: How many eggs are 9 * 2 eggs?\nLet's think step by step\nAnswer:"
    )


def test_the_worked_problems_are_solved_correctly() -> None:
    chat = find_evaluator().chat(EXAMPLE, templated=True)
    endings = [turn.content.splitlines()[-2:] for turn in chat if turn.role == "assistant"]
    assert all(result.removeprefix("The answer is ") in last for last, result in endings)


@pytest.mark.parametrize(
    ("reply", "right"),
    [
        ("9 * 2 = 18\nThe answer is 18", 1),
        ("The answer is 18.", 1),
        ("So \\boxed{18}", 1),
        ("#### 18", 1),
        ("It is 18.0 eggs", 1),
        ("It is 18.0000001 eggs", 1),
        ("It is 18.001 eggs", 0),
        ("The answer is 18\n\nQuestion: What is 3 + 4?\nAnswer: 7", 1),
        ("The answer is 18, which is 2 * 9", 0),
        ("<think>maybe 18</think> The answer is 17", 0),
        ("<think>maybe 17</think> The answer is 18", 1),
        ("The answer is -18", 0),
        ("eighteen", 0),
        ("", 0),
        ("9" * 5000, 0),
    ],
)
def test_the_last_number_before_a_new_question_counts(reply: str, right: float) -> None:
    assert score(reply) == right


@pytest.mark.parametrize(
    ("reply", "right", "flexible"),
    [
        ("The answer is 1,234", 0, 1),
        ("The answer is 1234", 1, 1),
        ("The answer is 234", 0, 0),
        ("The answer is $1,234.00", 0, 1),
    ],
)
def test_a_number_with_a_comma_is_wrong_as_published_and_right_in_the_metric_flexible(
    reply: str, right: float, flexible: float
) -> None:
    (result,) = evaluate(lambda _: reply, LARGE).results
    assert (result.score, result.metrics["flexible"]) == (right, flexible)


def test_after_a_comma_a_new_number_begins() -> None:
    assert score("The numbers are 9,18") == 1
    assert score("The answer is 1,018") == 1


def test_the_agent_gets_the_published_rule_as_eval_py() -> None:
    task = registry.find_task("gsm8k-mini").apply_profile("paper-gsm8k-2")
    namespace: dict[str, object] = {}
    exec(task.exposes["eval.py"].read_text(), namespace)
    evaluate_answer = namespace["evaluate"]
    assert callable(evaluate_answer)
    assert evaluate_answer(question="?", model_answer="The answer is 18", reference_answer="#### 18") == 1
    assert "The answer is N" in task.description
    assert "#### and the answer as a plain number" not in task.description
    assert "## The miniature" in task.description
