"""A Python function as a model."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent2rl import registry
from agent2rl.core.engine import Chat, ChatMessage, Sampling
from agent2rl.core.errors import GradingError, UserError
from agent2rl.engines.scripted import ScriptedEngine, parse

CHAT = (ChatMessage("user", "one  two\nthree STOP four"),)
NUMBER = 7


def parrot(model_dir: Path) -> Callable[[Chat], str]:
    greeting = (model_dir / "greeting.txt").read_text(encoding="utf-8")
    return lambda chat: greeting + chat[-1].content


def test_the_function_opens_the_model_directory_and_answers_each_chat(tmp_path: Path) -> None:
    (tmp_path / "greeting.txt").write_text("hello ", encoding="utf-8")
    with registry.find_engine(f"scripted:{__name__}:parrot")(tmp_path) as engine:
        answers = engine.generate([(ChatMessage("user", "you"),), (ChatMessage("user", "all"),)], Sampling())
    assert [answer.text for answer in answers] == ["hello you", "hello all"]
    assert [answer.tokens for answer in answers] == [2, 2]


@pytest.mark.parametrize(
    ("sampling", "text", "tokens"),
    [
        (Sampling(), "one  two\nthree STOP four", 5),
        (Sampling(max_tokens=5), "one  two\nthree STOP four", 5),
        (Sampling(max_tokens=3), "one  two\nthree", 3),
        (Sampling(max_tokens=0), "", 0),
        (Sampling(stop=("STOP",)), "one  two\nthree ", 3),
        (Sampling(stop=("four", "two")), "one  ", 1),
        (Sampling(stop=("STOP",), max_tokens=1), "one", 1),
        (Sampling(stop=("", "absent")), "one  two\nthree STOP four", 5),
    ],
)
def test_an_answer_ends_at_the_token_limit_or_a_stop_string(
    sampling: Sampling, text: str, tokens: int
) -> None:
    (answer,) = ScriptedEngine(lambda chat: chat[-1].content).generate([CHAT], sampling)
    assert (answer.text, answer.tokens) == (text, tokens)


@given(st.text(), st.integers(0, 5), st.lists(st.text(), max_size=2))
def test_every_answer_keeps_to_its_limits_and_can_be_written_down(
    text: str, limit: int, stop: list[str]
) -> None:
    (answer,) = ScriptedEngine(lambda _: text).generate([CHAT], Sampling(max_tokens=limit, stop=tuple(stop)))
    assert len(answer.text.split()) == answer.tokens <= limit
    assert not any(end in answer.text for end in stop if end)
    answer.text.encode("utf-8")


def test_a_lone_surrogate_becomes_a_question_mark() -> None:
    (answer,) = ScriptedEngine(lambda _: "a\ud800b").generate([CHAT], Sampling())
    assert answer.text == "a?b"


def test_an_answer_that_is_no_text_is_a_failure() -> None:
    with pytest.raises(GradingError, match="int instead of text"):
        ScriptedEngine(lambda _: 42).generate([CHAT], Sampling())  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("", "does not name a function"),
        ("module", "does not name a function"),
        (":function", "does not name a function"),
        ("..up:function", "does not name a function"),
        ("a.b:c:d", "does not name a function"),
        ("no_such_package_at_all.x:function", "Cannot import"),
        (f"{__name__}:absent", "has no function 'absent'"),
        (f"{__name__}:NUMBER", "has no function 'NUMBER'"),
    ],
)
def test_a_bad_name_is_the_users_error(argument: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse(argument)


def test_without_a_function_the_engine_asks_for_one() -> None:
    with pytest.raises(UserError, match="needs an argument"):
        registry.find_engine("scripted")
