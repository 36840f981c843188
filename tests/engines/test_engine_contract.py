"""What every engine promises, tried on each that can run here.

A new engine joins by a line in ENGINES: its name, and a function that opens it, given an empty directory.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from agent2rl import registry
from agent2rl.core.engine import Chat, ChatMessage, Engine, Sampling, open_conversations
from agent2rl.engines.transformers import ForkedEngine, open_engine
from agent2rl.models.seedling import FILES as SEEDLING
from tests.helpers.openai_server import serve_engine
from tests.helpers.tiny_models import write_tiny_llama


def last_words(model_dir: Path) -> Callable[[Chat], str]:
    """A scripted model whose answers depend on the whole chat."""

    def answer(chat: Chat) -> str:
        said = " ".join(message.content for message in chat)
        return f"{len(chat)} messages of {len(said)} letters: " + " ".join(reversed(said.split()))

    return answer


def scripted(directory: Path) -> Engine:
    return registry.find_engine(f"scripted:{__name__}:last_words")(directory)


def transformers(directory: Path) -> Engine:
    return registry.find_engine("transformers")(write_tiny_llama(directory))


@contextmanager
def forked(directory: Path) -> Iterator[Engine]:
    """The tiny llama again, in several processes."""
    with (
        open_engine(write_tiny_llama(directory)) as loaded,
        ForkedEngine(loaded, 3) as engine,
    ):
        yield engine


@contextmanager
def openai_api(directory: Path) -> Iterator[Engine]:
    """The tiny llama again, behind HTTP."""
    with (
        transformers(directory) as model,
        serve_engine(model) as served,
        registry.find_engine(f"openai-api:tiny@{served.url}")(directory) as engine,
    ):
        yield engine


def vllm(_: Path) -> Engine:
    """The seedling: vLLM on a CPU does not support the tiny llama's head size."""
    return registry.find_engine("vllm")(SEEDLING)


ENGINES: dict[str, Callable[[Path], AbstractContextManager[Engine]]] = {
    "scripted": scripted,
    "transformers": transformers,
    "transformers in three processes": forked,
    "openai-api": openai_api,
    "vllm": vllm,
}
MARKS = {"vllm": pytest.mark.vllm}
"""Engines that are tried only by a make target of their own."""
GREEDY = Sampling(max_tokens=12)
CHATS: list[Chat] = [
    (ChatMessage("user", "Ada has 12 apples."),),
    (ChatMessage("user", "?"),),
    (ChatMessage("system", "Be brief."), ChatMessage("user", "How many pens are left? " * 9)),
    (
        ChatMessage("user", "Take the mug"),
        ChatMessage("assistant", "from the table"),
        ChatMessage("user", "and look"),
    ),
    (ChatMessage("user", "Größe: 3 €, 数字, \U0001f600"),),
]


@pytest.fixture(scope="module", params=[pytest.param(name, marks=MARKS.get(name, ())) for name in ENGINES])
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    with ENGINES[request.param](tmp_path_factory.mktemp(request.param)) as opened:
        yield opened


def texts(engine: Engine, chats: list[Chat], sampling: Sampling = GREEDY) -> list[str]:
    return [completion.text for completion in engine.generate(chats, sampling)]


def test_every_chat_gets_its_own_answer_in_the_order_asked(engine: Engine) -> None:
    answers = texts(engine, CHATS)
    assert len(set(answers)) == len(CHATS)
    assert texts(engine, CHATS[::-1]) == answers[::-1]


def test_a_greedy_answer_depends_neither_on_the_company_nor_on_the_seed(engine: Engine) -> None:
    alone = [texts(engine, [chat], Sampling(max_tokens=12, seed=7))[0] for chat in CHATS]
    assert texts(engine, CHATS) == alone


def test_equal_chats_get_equal_greedy_answers(engine: Engine) -> None:
    assert len(set(texts(engine, [CHATS[0]] * 5))) == 1


def test_sampling_again_with_the_same_seed_gives_the_same(engine: Engine) -> None:
    sampling = Sampling(max_tokens=12, temperature=1.0, seed=3)
    assert texts(engine, CHATS, sampling) == texts(engine, CHATS, sampling)


def test_no_chats_get_no_answers(engine: Engine) -> None:
    assert engine.generate([], GREEDY) == []


@pytest.mark.parametrize("limit", [0, 1, 5])
def test_no_answer_has_more_tokens_than_asked_for(engine: Engine, limit: int) -> None:
    answers = engine.generate(CHATS, Sampling(max_tokens=limit))
    assert all(answer.tokens <= limit for answer in answers)
    assert all(answer.text == "" for answer in answers if answer.tokens == 0)


def test_an_answer_ends_before_the_first_stop_string(engine: Engine) -> None:
    for whole, chat in zip(texts(engine, CHATS), CHATS, strict=True):
        stops = (whole[4:6], whole[2:4], "never said", "")
        (answer,) = texts(engine, [chat], Sampling(max_tokens=12, stop=stops))
        assert whole.startswith(answer)
        assert not any(stop in answer for stop in stops if stop)
        assert len(answer) <= 2


def test_every_answer_can_be_written_down(engine: Engine) -> None:
    for answer in texts(engine, CHATS, Sampling(max_tokens=40, temperature=2.0)):
        answer.encode("utf-8")


def test_a_conversation_answers_as_if_it_were_told_as_a_whole(engine: Engine) -> None:
    talks = open_conversations(engine)
    whole: dict[str, Chat] = {"a": (), "b": (), "c": ()}
    for turn, names in enumerate(["ab", "abc", "c", "cba", "a"]):
        new: dict[str, Chat] = {
            name: (ChatMessage("user", f"{name}: turn {turn} " * (turn + 1)),) for name in names
        }
        replies = talks.extend(new, GREEDY)
        assert list(replies) == list(names)
        for name in names:
            whole[name] += new[name]
            assert replies[name] == engine.generate([whole[name]], GREEDY)[0]
            whole[name] += (ChatMessage("assistant", replies[name].text),)


def test_a_dropped_conversation_begins_anew(engine: Engine) -> None:
    talks = open_conversations(engine)
    question: Chat = (ChatMessage("user", "What is on the table?"),)
    first = talks.extend({"a": question, "b": question}, GREEDY)
    talks.drop(["a", "nobody"])
    second = talks.extend({"a": question, "b": question}, GREEDY)
    assert second["a"] == first["a"]
    whole: Chat = (*question, ChatMessage("assistant", first["b"].text), *question)
    assert second["b"] == engine.generate([whole], GREEDY)[0]
