"""DeepSearchQA under the paper's protocol: the published shuffle, and a text of thoughts and actions."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent2rl import registry
from agent2rl.core.engine import Chat, Completion, Sampling, render_plain_text
from agent2rl.core.grading_records import EvalResult, EvalSettings
from agent2rl.core.task import Example
from agent2rl.engines.scripted import ScriptedEngine
from agent2rl.environments.adapters import open_training_environment
from agent2rl.environments.search.backends import LocalCorpus, SearchDocument
from agent2rl.environments.search.environment import AnswerKeyExpert, SearchEnvironment
from agent2rl.evaluators.episodes import Episodes
from agent2rl.evaluators.published_prompts import extract_labelled_action
from agent2rl.evaluators.search_grading import build_comparison_question, parse_comparison
from agent2rl.grading.grading_proxy import JudgeProxy, ProxyServices, serve_grading_proxy
from agent2rl.net import grading_proxy_client
from agent2rl.tasks.deepsearchqa.mini import load_library
from agent2rl.tasks.deepsearchqa.paper import INSTRUCTIONS

PROFILE = "paper-deepsearchqa-1"
CORPUS = LocalCorpus(
    [SearchDocument(f"d{n}", f"Arlen {n}", f"Arlen page {n} tells of Tolm.") for n in range(5)], 5, 20
)
EXAMPLE = Example(
    "d",
    "What is the capital of Arlen?",
    "answer[Tolm]",
    {"answer_type": "Single Answer", "gold": "Tolm", "steps": 6, "results": "snippets"},
)
PAIR = replace(EXAMPLE, meta={**EXAMPLE.meta, "answer_type": "Set Answer", "gold": "Tolm, Ruvo"})
START = (
    f"{INSTRUCTIONS.strip()}\n\nQuestion: What is the capital of Arlen?\n"
    "Answer type: Single Answer\n\nThought:"
)


def find_evaluator(task: str = "deepsearchqa") -> Episodes:
    found = registry.find_task(task).apply_profile(PROFILE).evaluator
    assert isinstance(found, Episodes)
    return found


class RecordingModel(ScriptedEngine):
    """Gives the replies in order, and records what it continued and how."""

    def __init__(self, *replies: str) -> None:
        remaining = iter(replies)
        super().__init__(lambda _: next(remaining))
        object.__setattr__(self, "asked", [])

    asked: list[tuple[str, Sampling]]

    def generate(self, chats: Any, sampling: Sampling) -> list[Completion]:
        self.asked.extend((render_plain_text(chat), sampling) for chat in chats)
        return super().generate(chats, sampling)


def play(model: ScriptedEngine, example: Example = EXAMPLE) -> EvalResult:
    evaluator = replace(find_evaluator(), world=lambda: SearchEnvironment(lambda _: CORPUS), slow=False)
    return evaluator.evaluate(model, [example], EvalSettings())


def test_the_questions_are_those_of_the_published_shuffle(shared_data: Path) -> None:
    splits = registry.find_task("deepsearchqa").apply_profile(PROFILE).load(shared_data / "deepsearchqa")
    assert splits.test is not None
    assert (len(splits.train), len(splits.test)) == (100, 200)
    assert [one.id for one in splits.train[:2]] == ["deepsearchqa-0420", "deepsearchqa-0231"]
    assert [one.id for one in splits.test[:2]] == ["deepsearchqa-0538", "deepsearchqa-0879"]
    assert not {one.id for one in splits.train} & {one.id for one in splits.test}


def test_a_search_and_an_answer_in_the_published_form() -> None:
    search = " I look it up.\nAction: search[capital of Arlen]\nObservation: made up"
    model = RecordingModel(search, " It is Tolm.\nAction: answer[Tolm]")
    result = play(model)
    first, second = model.asked
    assert first[0] == START
    sampling = first[1]
    assert (sampling.max_tokens, sampling.temperature, sampling.plain) == (256, 0.0, True)
    assert sampling.stop == ("\nThought:", "\nObservation:")
    added = second[0].removeprefix(START)
    assert added.startswith(" I look it up.\nAction: search[capital of Arlen]\nObservation: Arlen page")
    assert added.count(" | ") == 2
    assert added.endswith("\nThought:")
    assert result.results[0].score == 1
    assert [turn.action for turn in result.results[0].trajectory] == [
        "",
        "search[capital of Arlen]",
        "answer[Tolm]",
    ]


def test_an_action_on_its_own_line_is_not_cut() -> None:
    """The published stop string cuts it, so that no search is ever made."""
    assert not any("Action" in stop for stop in find_evaluator().sampling.stop)


def test_a_reply_without_an_action_is_continued_to_an_answer() -> None:
    model = RecordingModel(" It is Tolm, I know search[x].", "Tolm] and more")
    result = play(model)
    (_, (text, sampling)) = model.asked
    assert text == START + " It is Tolm, I know search[x].\nAction: answer["
    assert (sampling.max_tokens, sampling.stop, sampling.plain) == (128, ("]",), True)
    assert result.results[0].score == 1
    assert result.results[0].trajectory[-1].action == "answer[Tolm]"


def test_an_episode_has_six_steps_and_needs_an_answer() -> None:
    model = RecordingModel(*[" More.\nAction: search[Arlen]"] * 9)
    assert play(model).results[0].score == 0
    assert len(model.asked) == 6


@pytest.mark.parametrize(
    ("reply", "action"),
    [
        ("Action: search[a]\nAction: answer[b]", "search[a]"),
        ("Action:answer[two\nlines]", "answer[two lines]"),
        ("Action: open[1]", ""),
        ("search[a]", ""),
        ("Action: search[]", ""),
        ("", ""),
    ],
)
def test_the_first_labelled_search_or_answer_counts(reply: str, action: str) -> None:
    assert extract_labelled_action(reply) == action


@pytest.mark.parametrize(
    ("answer", "right"), [("Ruvo, Tolm", 1), ("Tolm, Ruvo, Sel", 1), ("Tolm", 0), ("nothing", 0)]
)
def test_without_a_judge_an_answer_needs_all_items_and_may_have_more(answer: str, right: float) -> None:
    assert play(RecordingModel(f" Done.\nAction: answer[{answer}]"), PAIR).results[0].score == right


@contextmanager
def judged_by(judge: Callable[[Chat], str], kept: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with serve_grading_proxy(
        ProxyServices(judging=JudgeProxy("the judge", ScriptedEngine(judge), kept))
    ) as socket:
        assert socket
        monkeypatch.setenv(grading_proxy_client.PROXY_VARIABLE, str(socket.parent))
        yield


def test_a_judge_sees_the_right_answer_and_not_the_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def judge(chat: Chat) -> str:
        asked.append(chat[-1].content)
        return "Correct." if '"Tolmtown"' in chat[-1].content else "incorrect"

    with judged_by(judge, tmp_path, monkeypatch):
        right = play(RecordingModel(" Yes.\nAction: answer[Tolmtown]"))
        wrong = play(RecordingModel(" Yes.\nAction: answer[Tolm]"))
        empty = play(RecordingModel(" Yes.", "]"))
    assert [found.results[0].score for found in (right, wrong, empty)] == [1, 0, 0]
    assert asked[0].startswith(
        'Type of answer: Single Answer\nRight answer: "Tolm"\nGiven answer: "Tolmtown"\n'
    )
    assert len(asked) == 2, "an empty answer is not right, whatever the judge would say"
    assert not any("capital" in text for text in asked)
    assert right.how["judge"] == "the judge published-answers-1"


def test_a_judge_is_asked_for_one_word() -> None:
    assert build_comparison_question(EXAMPLE, "x")[-1][1].endswith(
        "Reply with one word, correct or incorrect."
    )
    assert [parse_comparison(text) for text in ("correct", "Incorrect!\nbecause", "**Correct**")] == [
        True,
        False,
        True,
    ]
    with pytest.raises(ValueError, match="neither"):
        parse_comparison("it is correct")


@pytest.mark.parametrize("task", ["deepsearchqa", "deepsearchqa-mini"])
def test_the_eval_file_of_a_workspace_holds_the_evaluator_itself(task: str) -> None:
    found = find_evaluator(task)
    namespace: dict[str, Any] = {"__name__": "eval"}
    exec(found.export_program(), namespace)
    own = namespace["EVALUATOR"]
    assert own == replace(found, world=open_training_environment, slow=own.slow)
    assert own.version == found.version


@pytest.mark.thorough
def test_the_miniatures_expert_still_knows_the_questions() -> None:
    mini = registry.find_task("deepsearchqa-mini").apply_profile(PROFILE).load(None)
    library = load_library("train").search
    for question in mini.train[:10]:
        environment = SearchEnvironment(lambda _: library)
        expert = AnswerKeyExpert({question.prompt: question.target})
        step = environment.reset(question)
        assert "\nAnswer type: " in step.observation
        while not step.done:
            step = environment.step(expert.act(step.observation))
        assert step.won
