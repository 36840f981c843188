"""AlpacaEval under the paper's protocol: 512 tokens, and a judge that ranks the models m and M."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agent2rl import registry
from agent2rl.core.engine import Chat
from agent2rl.core.grading_records import EvalResult, EvalSettings
from agent2rl.core.task import Example
from agent2rl.engines.scripted import ScriptedEngine
from agent2rl.evaluators.judge import AnswerComparison, build_ranking_question, make_ranking_parser
from agent2rl.evaluators.pairwise import Pairwise
from agent2rl.grading.grading_proxy import JudgeProxy, ProxyServices, serve_grading_proxy
from agent2rl.net import grading_proxy_client
from agent2rl.net.grading_proxy_client import JudgeReply

EXAMPLES = [
    Example(f"a-{row}", f"Say {row}.", f"reference {row}", {"row": row, "dataset": "made up"})
    for row in range(60)
]


def find_evaluator(task: str = "alpacaeval") -> Pairwise:
    found = registry.find_task(task).apply_profile("paper-alpacaeval-1").evaluator
    assert isinstance(found, Pairwise)
    return found


def rank(*names: str) -> str:
    return json.dumps(
        {"ordered_models": [{"model": name, "rank": place} for place, name in enumerate(names, 1)]}
    )


@contextmanager
def judged_by(judge: Callable[[Chat], str], kept: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with serve_grading_proxy(
        ProxyServices(judging=JudgeProxy("the judge", ScriptedEngine(judge), kept))
    ) as socket:
        assert socket
        monkeypatch.setenv(grading_proxy_client.PROXY_VARIABLE, str(socket.parent))
        yield


def evaluate(reply: str) -> EvalResult:
    return find_evaluator().evaluate(ScriptedEngine(lambda _: reply), EXAMPLES, EvalSettings())


def test_the_model_gets_the_bare_instruction_and_512_tokens() -> None:
    evaluator = find_evaluator()
    for templated in (True, False):
        (message,) = evaluator.chat(EXAMPLES[3], templated)
        assert (message.role, message.content) == ("user", "Say 3.")
    assert evaluator.prompt.sampling.max_tokens == 512


def test_the_judge_ranks_two_models_in_the_order_of_the_answers() -> None:
    comparison = AnswerComparison(EXAMPLES[3], 'mine "quoted"', "reference 3")
    for before, first, second in (
        (True, '"mine \\"quoted\\""', '"reference 3"'),
        (False, '"reference 3"', '"mine \\"quoted\\""'),
    ):
        (_, (role, text)) = build_ranking_question(comparison, before)
        assert role == "user"
        assert text.startswith('Instruction, as a JSON string: "Say 3."\n\nAnswers:\n')
        assert f'{{"model": "m", "answer": {first}}}\n{{"model": "M", "answer": {second}}}\n' in text
        assert text.endswith('{"ordered_models": [{"model": "...", "rank": 1}, {"model": "...", "rank": 2}]}')


@pytest.mark.parametrize(
    ("reply", "share"),
    [
        (rank("m", "M"), 1),
        (rank("M", "m"), 0),
        ('{"ordered_models": [{"model": "M", "rank": 2}, {"model": "m", "rank": 1}]}', 1),
        (f"```json\n{rank('M', 'm')}\n```", 0),
    ],
)
def test_the_model_of_rank_one_wins(reply: str, share: float) -> None:
    assert make_ranking_parser(before=True)(JudgeReply(text=reply)).share == share
    assert make_ranking_parser(before=False)(JudgeReply(text=reply)).share == 1 - share


@pytest.mark.parametrize(
    "reply",
    [
        "m",
        rank("m"),
        rank("m", "m"),
        rank("m", "M", "x"),
        '{"ordered_models": [{"model": "m", "rank": 1}, {"model": "M", "rank": 1}]}',
        '{"ordered_models": [{"model": "m"}, {"model": "M", "rank": 1}]}',
        '{"ordered_models": "m"}',
        '{"ordered_models": []}',
        "[]",
    ],
)
def test_any_other_reply_cannot_be_read(reply: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011, the text is for the log
        make_ranking_parser(before=True)(JudgeReply(text=reply))


def test_a_judge_gets_100_tokens_and_is_named_in_the_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: set[int] = set()

    class Judge(ScriptedEngine):
        def generate(self, chats, sampling):  # type: ignore[no-untyped-def]
            limits.add(sampling.max_tokens)
            return super().generate(chats, sampling)

    def prefer_good(chat: Chat) -> str:
        lines = [json.loads(line) for line in chat[-1].content.splitlines() if line.startswith('{"model"')]
        return rank(
            *sorted(("m", "M"), key=lambda name: "good" not in lines[("m", "M").index(name)]["answer"])
        )

    proxy = ProxyServices(judging=JudgeProxy("the judge", Judge(prefer_good), tmp_path))
    with serve_grading_proxy(proxy) as socket:
        assert socket
        monkeypatch.setenv(grading_proxy_client.PROXY_VARIABLE, str(socket.parent))
        result = evaluate("a good answer")
    assert {one.score for one in result.results} == {1.0}
    assert result.how["judge"] == "the judge ranking-1"
    assert limits == {100}


def test_a_comparison_without_a_readable_ranking_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def judge(chat: Chat) -> str:
        return "?" if '"Say 7."' in chat[-1].content else rank("m", "M")

    with judged_by(judge, tmp_path, monkeypatch):
        result = evaluate("an answer")
    assert list(result.missing) == ["a-7"]
    assert len(result.results) == 59


def test_the_miniature_has_the_profile_with_its_own_rule_instead_of_a_judge() -> None:
    mini = find_evaluator("alpacaeval-mini")
    assert mini.referee is not None
    assert mini.prompt == find_evaluator().prompt
