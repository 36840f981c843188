"""An endpoint as a model: asked over real HTTP, and with a server that fails in every way we know."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent2rl import registry
from agent2rl.core.engine import Chat, ChatMessage, Completion, Engine, Sampling
from agent2rl.core.errors import Agent2RLError, ExternalServiceError, UserError
from agent2rl.core.grading_records import EvalSettings
from agent2rl.core.task import Example
from agent2rl.engines.openai_api import OpenAIApiEngine
from agent2rl.engines.openai_api.endpoint import EndpointRetryPolicy
from agent2rl.engines.scripted import ScriptedEngine
from agent2rl.evaluators.single_turn import QuestionPrompt
from agent2rl.grading.server import serve_on_socket as at_socket
from tests.helpers.openai_server import (
    FaultReply,
    OpenAIServer,
    cut_off_reply,
    drop_connection,
    make_fault_reply,
    serve_engine,
)

SECRET = "sk-very-secret-0123456789"
QUICK = EndpointRetryPolicy(
    attempts=4, first_seconds=0.01, longest_seconds=0.05, answer_seconds=5, total_seconds=10
)
SAMPLING = Sampling(max_tokens=20)


def chat(text: str) -> Chat:
    return (ChatMessage("user", text),)


def ask(engine: Engine, *texts: str) -> list[str]:
    replies = engine.generate([chat(text) for text in texts], SAMPLING)
    return [reply.text for reply in replies]


def said(text: object, finish_reason: str | None = "stop", **more: object) -> dict[str, object]:
    message = {"role": "assistant", "content": text, **more}
    return {"choices": [{"message": message, "finish_reason": finish_reason}]}


@pytest.fixture
def served() -> Iterator[OpenAIServer]:
    """A model that repeats what it is told."""
    with serve_engine(ScriptedEngine(lambda chat: chat[-1].content), "parrot") as server:
        yield server


@pytest.fixture
def engine(served: OpenAIServer) -> Iterator[OpenAIApiEngine]:
    with OpenAIApiEngine(served.url, "parrot", SECRET, QUICK) as opened:
        yield opened


def test_completions_keep_the_order_of_the_chats_whichever_is_ready_first(
    served: OpenAIServer, engine: OpenAIApiEngine
) -> None:
    served.faults.extend([make_fault_reply(500)] * 7)
    texts = [f"number {index}" for index in range(50)]
    assert ask(engine, *texts) == texts


def test_each_sample_of_an_evaluation_is_a_request_with_a_seed_of_its_own(
    served: OpenAIServer, engine: OpenAIApiEngine
) -> None:
    examples = [Example("a", "How many?", ""), Example("b", "How many?", "")]
    seeds = []
    for seed in (5, 5, 6):
        served.questions.clear()
        found = QuestionPrompt().sample_answers(engine, examples, EvalSettings(samples=3, seed=seed))
        assert found.texts == [["How many?"] * 3] * 2
        seeds.append({question.seed for question in served.questions})
    first, again, other = seeds
    assert len(first) == 6
    assert again == first
    assert not other & first


def test_many_requests_are_in_flight_at_once_and_never_more_than_the_limit(served: OpenAIServer) -> None:
    served.pause_seconds = 0.1
    with OpenAIApiEngine(served.url, "parrot", None, QUICK, in_flight=8) as engine:
        ask(engine, *map(str, range(40)))
    assert served.most_in_flight == 8


def test_the_server_is_told_how_to_sample_with_a_seed_for_each_chat(
    served: OpenAIServer, engine: OpenAIApiEngine
) -> None:
    sampling = Sampling(max_tokens=7, temperature=0.5, seed=3, stop=("END", ""))
    engine.generate([chat("a"), chat("b")], sampling)
    asked = sorted(served.questions, key=lambda question: str(question.messages))
    assert [(q.model, q.max_tokens, q.temperature, q.stop) for q in asked] == [
        ("parrot", 7, 0.5, ["END"])
    ] * 2
    assert [question.seed for question in asked] == [sampling.derive_seed(0), sampling.derive_seed(1)]
    assert asked[0].seed != asked[1].seed


def test_the_key_travels_in_its_header_and_no_key_sends_none(
    served: OpenAIServer, engine: OpenAIApiEngine
) -> None:
    ask(engine, "a")
    with OpenAIApiEngine(served.url, "parrot", None, QUICK) as without:
        ask(without, "a")
    assert served.keys == [f"Bearer {SECRET}", None]


@pytest.mark.parametrize(
    "fault",
    [
        make_fault_reply(408),
        make_fault_reply(409),
        make_fault_reply(429),
        make_fault_reply(500),
        make_fault_reply(503),
        drop_connection,
        cut_off_reply,
    ],
    ids=["408", "409", "429", "500", "503", "dropped", "cut off"],
)
def test_what_may_pass_is_tried_again(
    served: OpenAIServer, engine: OpenAIApiEngine, fault: FaultReply
) -> None:
    served.faults.extend([fault, fault])
    assert ask(engine, "hello") == ["hello"]
    assert not served.faults


def test_a_request_that_takes_too_long_is_given_up_and_tried_again(served: OpenAIServer) -> None:
    async def hang(_: object) -> None:
        await asyncio.sleep(2)

    served.faults.append(hang)
    with OpenAIApiEngine(
        served.url, "parrot", None, EndpointRetryPolicy(answer_seconds=0.3, first_seconds=0.01)
    ) as engine:
        assert ask(engine, "hello") == ["hello"]


def test_the_server_says_how_long_to_wait_and_is_obeyed(
    served: OpenAIServer, engine: OpenAIApiEngine
) -> None:
    served.faults.extend([make_fault_reply(429, "busy", retry_after="1")])
    begin = time.monotonic()
    assert ask(engine, "hello") == ["hello"]
    assert time.monotonic() - begin >= 1


def test_a_server_that_wants_too_long_a_pause_is_not_waited_for(
    served: OpenAIServer, engine: OpenAIApiEngine
) -> None:
    served.faults.append(make_fault_reply(429, "come back tomorrow", retry_after="86400"))
    with pytest.raises(ExternalServiceError, match=r"asked once.*come back tomorrow.*86400 s"):
        ask(engine, "hello")


def test_a_pause_may_be_given_as_a_date(served: OpenAIServer, engine: OpenAIApiEngine) -> None:
    served.faults.append(make_fault_reply(503, "later", retry_after="Fri, 01 Jan 2100 00:00:00 GMT"))
    with pytest.raises(ExternalServiceError, match="asked once"):
        ask(engine, "hello")


def test_it_gives_up_in_the_servers_words_after_so_many_attempts(
    served: OpenAIServer, engine: OpenAIApiEngine
) -> None:
    served.faults.extend([make_fault_reply(503, {"error": {"message": "the model is\n loading"}})] * 4)
    with pytest.raises(ExternalServiceError, match=r"asked 4 times .*: 503 the model is loading\."):
        ask(engine, "hello")


def test_a_server_that_is_not_there_is_an_error_of_the_world() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/v1"
        with (
            OpenAIApiEngine(url, "parrot", None, QUICK) as engine,
            pytest.raises(ExternalServiceError) as caught,
        ):
            ask(engine, "hello")
    assert url in caught.value.message
    assert "4 times" in caught.value.message


@pytest.mark.parametrize(
    ("status", "says"),
    [
        (400, "refuses the request: 400 no such luck"),
        (401, "refuses the key: 401 no such luck"),
        (403, "refuses the key: 403 no such luck"),
        (404, "does not find the model or the path: 404 no such luck"),
        (422, "refuses the request: 422 no such luck"),
    ],
)
def test_a_fault_of_the_callers_is_said_at_once_in_the_servers_words(
    served: OpenAIServer, engine: OpenAIApiEngine, status: int, says: str
) -> None:
    served.faults.extend([make_fault_reply(status, {"error": {"message": "no such luck"}})])
    with pytest.raises(UserError) as caught:
        ask(engine, "hello")
    assert says in caught.value.message
    assert served.most_in_flight == 1
    assert ask(engine, "and now?") == ["and now?"]


def test_a_long_error_is_cut_and_the_key_is_in_no_message(
    served: OpenAIServer, engine: OpenAIApiEngine
) -> None:
    echo = {"error": {"message": f"Incorrect key: {SECRET} " + "x" * 10_000}}
    for status in (401, 400, 500, 200):
        served.faults.extend([make_fault_reply(status, echo)] * (4 if status == 500 else 1))
        with pytest.raises(Agent2RLError) as caught:
            ask(engine, "hello")
        assert "Incorrect key: ***" in str(caught.value)
        assert SECRET not in str(caught.value) + repr(caught.value)
        assert len(str(caught.value)) < 600


def test_one_chat_that_fails_fails_the_call_and_the_rest_is_not_waited_for(
    served: OpenAIServer, engine: OpenAIApiEngine
) -> None:
    async def hang(_: object) -> None:
        await asyncio.sleep(3600)

    served.faults.extend([hang, hang, make_fault_reply(400, "wrong"), hang])
    with pytest.raises(UserError, match="wrong"):
        ask(engine, *"abcdefgh")


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("<html>welcome</html>", "not JSON: 200 <html>welcome</html>"),
        ('{"choices": [', "not JSON"),
        ("", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ([], "malformed"),
        ({}, "malformed: choices: Field required"),
        ({"choices": []}, "malformed: choices"),
        ({"choices": [{}]}, "malformed: choices.0.message"),
        ({"error": {"message": "out of credit"}}, "an error: 200 out of credit"),
        (said([{"type": "text", "text": "parts"}]), "is a list, not text"),
        (said(None, "content_filter"), "no text; it ended with 'content_filter'"),
        (said(None, "tool_calls"), "no text; it ended with 'tool_calls'"),
        (said(None), "no text; it ended with 'stop'"),
        (said(None, None), "no text; it ended with None"),
        ({**said("x"), "usage": {"completion_tokens": -1}}, "malformed: usage.completion_tokens"),
    ],
)
def test_an_answer_that_says_nothing_is_an_error_of_the_world(
    served: OpenAIServer, engine: OpenAIApiEngine, body: object, says: str
) -> None:
    served.faults.append(make_fault_reply(200, body))
    with pytest.raises(ExternalServiceError) as caught:
        ask(engine, "hello")
    assert says in caught.value.message
    assert len(caught.value.message) < 600


@pytest.mark.parametrize(
    ("body", "completion"),
    [
        (said(""), Completion("", 0)),
        (said(None, "length"), Completion("", 0)),
        (said(None, refusal="I will not."), Completion("I will not.", 3)),
        (
            {**said("four words are here"), "usage": {"completion_tokens": 9}},
            Completion("four words are here", 9),
        ),
        ({**said("four words are here"), "usage": None}, Completion("four words are here", 4)),
        (said("half a sign: \ud83d"), Completion("half a sign: ?", 4)),
    ],
)
def test_a_reply_is_read_with_the_servers_count_of_tokens_or_ours(
    served: OpenAIServer, engine: OpenAIApiEngine, body: object, completion: Completion
) -> None:
    served.faults.append(make_fault_reply(200, body))
    assert engine.generate([chat("hello")], SAMPLING) == [completion]


def test_an_answer_without_end_is_not_read_to_its_end(served: OpenAIServer, engine: OpenAIApiEngine) -> None:
    async def floods(send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(20):
            await send({"type": "http.response.body", "body": b" " * (1 << 20), "more_body": True})
        await asyncio.sleep(30)

    served.faults.append(floods)
    with pytest.raises(ExternalServiceError, match="longer than 16 MiB"):
        ask(engine, "hello")


def test_what_a_model_does_not_take_is_left_out_once_it_has_said_so(
    served: OpenAIServer, engine: OpenAIApiEngine
) -> None:
    for name, more in (("max_tokens", "Use 'max_completion_tokens' instead."), ("temperature", "Only 1.")):
        served.faults.append(
            make_fault_reply(400, {"error": {"message": f"Unsupported parameter: '{name}'. {more}"}})
        )
    with pytest.raises(UserError, match="422"):  # this server, in turn, takes no other
        engine.generate([chat("hi")], SAMPLING)
    assert engine.refused >= {"max_tokens", "temperature"}
    served.faults.append(
        make_fault_reply(400, {"error": {"message": "Your temperature is no matter: bad chat."}})
    )
    with pytest.raises(UserError):
        engine.generate([chat("hi")], SAMPLING)


def test_a_server_may_be_at_a_unix_socket(tmp_path: Path) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        body = b'{"choices": [{"message": {"content": "from the socket"}}]}'
        fields = [(b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": fields})
        await send({"type": "http.response.body", "body": body})

    with at_socket(app) as socket, registry.find_engine(f"openai-api:tiny@unix:{socket}")(tmp_path) as engine:
        assert engine.generate([chat("hi")], SAMPLING)[0].text == "from the socket"


def test_a_redirect_is_not_followed_with_the_key(served: OpenAIServer, engine: OpenAIApiEngine) -> None:
    served.faults.append(make_fault_reply(307, "", location="http://127.0.0.1:1/elsewhere"))
    with pytest.raises(ExternalServiceError, match="neither a reply nor an error: 307"):
        ask(engine, "hello")


def test_without_a_name_the_only_model_is_taken(served: OpenAIServer, tmp_path: Path) -> None:
    with registry.find_engine(f"openai-api:{served.url}")(tmp_path) as engine:
        assert ask(engine, "hello") == ["hello"]
    assert served.questions[0].model == "parrot"


def test_of_several_models_one_must_be_named(tmp_path: Path) -> None:
    says = r"serves 2 models: small, large\. Name one"
    with serve_engine(ScriptedEngine(str), "small", "large") as served, pytest.raises(UserError, match=says):
        registry.find_engine(f"openai-api:{served.url}")(tmp_path)


@pytest.mark.parametrize(
    ("argument", "says"),
    [
        ("gpt-9", "URL must start with"),
        ("gpt-9@example.org/v1", "URL must start with"),
        ("gpt-9@https://", "URL must start with"),
        ("gpt-9@https://:80/v1", "must have a host"),
        (f"gpt-9@https://me:{SECRET}@example.org/v1", "no user"),
        (f"gpt-9@https://example.org/v1?key={SECRET}", "query"),
        ("gpt-9@https://example.org:port/v1", "Invalid endpoint URL"),
    ],
)
def test_a_wrong_name_says_how_to_write_it_and_repeats_no_secret(argument: str, says: str) -> None:
    with pytest.raises(UserError) as caught:
        registry.find_engine(f"openai-api:{argument}")
    assert says in caught.value.message
    assert "openai-api:MODEL@URL" in caught.value.hint
    assert SECRET not in str(caught.value)


def test_a_models_name_may_have_the_sign_that_divides(served: OpenAIServer, tmp_path: Path) -> None:
    with registry.find_engine(f"openai-api:team/model@v2@{served.url}/")(tmp_path) as engine:
        ask(engine, "hello")
    assert served.questions[0].model == "team/model@v2"


@pytest.mark.parametrize(
    ("variables", "sent"),
    [
        ({"AGENT2RL_API_KEY": "ours", "OPENAI_API_KEY": "theirs"}, "Bearer ours"),
        ({"AGENT2RL_API_KEY": "", "OPENAI_API_KEY": "theirs\n"}, "Bearer theirs"),
        ({"AGENT2RL_API_KEY": "", "OPENAI_API_KEY": ""}, None),
    ],
)
def test_the_key_is_the_environments(
    served: OpenAIServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    sent: str | None,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with registry.find_engine(f"openai-api:parrot@{served.url}")(tmp_path) as engine:
        ask(engine, "hello")
    assert served.keys == [sent]


def test_a_key_that_no_header_can_carry_is_refused_and_not_shown(
    served: OpenAIServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENT2RL_API_KEY", f"{SECRET}\nand more")
    with pytest.raises(UserError, match="AGENT2RL_API_KEY has invalid characters") as caught:
        registry.find_engine(f"openai-api:parrot@{served.url}")(tmp_path)
    assert SECRET not in str(caught.value)


def test_it_works_inside_an_event_loop(engine: OpenAIApiEngine) -> None:
    async def inside() -> list[str]:
        return ask(engine, "hello")

    assert asyncio.run(inside()) == ["hello"]


PROGRAM = """
import sys
from pathlib import Path
from agent2rl import registry
from agent2rl.core.engine import ChatMessage, Sampling
with registry.find_engine(f"openai-api:parrot@{sys.argv[1]}")(Path()) as engine:
    print("asking", flush=True)
    engine.generate([(ChatMessage("user", "hello"),)] * 50, Sampling())
"""


def test_ctrl_c_ends_it_promptly_and_quietly(served: OpenAIServer) -> None:
    served.pause_seconds = 3600
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, served.url], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "asking\n"
    while served.most_in_flight < 10:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=120)  # no answer comes in this time
    assert process.returncode != 0
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert "never retrieved" not in errors
    assert "destroyed" not in errors
