"""The scripted driver LLM over real HTTP: what it says in each wire format, when, and to whom."""

import json
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent2rl.core.llm import LlmExchange, TokenCounts, Wire
from agent2rl.fake_llm.response import RequestLogLine
from agent2rl.fake_llm.script_file import (
    DriverScript,
    list_shipped_scripts,
    load_script,
    parse_script,
)
from agent2rl.fake_llm.server import run_in_thread
from agent2rl.gateway import prices
from agent2rl.gateway.drivers import parse_driver as parse_driver
from agent2rl.gateway.gateway import Gateway, UsageCaps
from agent2rl.grading.server import serve_on_socket
from agent2rl.net.keyed_transports import KeyedTransport
from tests.fake_llm.llm_clients import BASH_TOOL, COMMAND_SCHEMA, WIRES, LlmClient, parse_stream
from tests.helpers.run_launcher import RunLauncher
from tests.helpers.waiting import wait_until

Open = Callable[..., httpx.Client]
USAGE = TokenCounts(input=1000, cached=400, written=100, written_hour=30, output=60, reasoning=20)
TOLD: dict[Wire, TokenCounts] = {
    "anthropic": USAGE.model_copy(update={"reasoning": 0}),
    "openai-chat": USAGE.model_copy(update={"written": 0, "written_hour": 0}),
    "openai-responses": USAGE.model_copy(update={"written": 0, "written_hour": 0}),
    "gemini": USAGE.model_copy(update={"written": 0, "written_hour": 0}),
}
"""What each wire format can tell of it."""
each_wire = pytest.mark.parametrize("wire", WIRES)
streamed = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Open]:
    """Serves a script, and gives an HTTP client of it."""
    with ExitStack() as stack:

        def opening(script: DriverScript | str, **options: Any) -> httpx.Client:
            found = parse_script(script) if isinstance(script, str) else script
            url = stack.enter_context(run_in_thread(found, record=tmp_path / "record.jsonl", **options))
            return stack.enter_context(http_client(url))

        yield opening


def http_client(url: str, socket: Path | None = None) -> httpx.Client:
    """Without certificates, which take longer to load than a test."""
    transport = KeyedTransport(socket) if socket else None
    return httpx.Client(base_url=url, transport=transport, timeout=120, verify=False)


def record(tmp_path: Path) -> list[RequestLogLine]:
    lines = (tmp_path / "record.jsonl").read_text().splitlines()
    return [RequestLogLine.model_validate_json(line) for line in lines]


def begun(wire: Wire, http: httpx.Client, text: str = "Begin.", **more: Any) -> LlmClient:
    client = LlmClient(wire, http, **more)
    client.tell(text)
    return client


FULL = """
[[step]]
think = "Hmm… 思"
say = "Grüße 漢字 😀\\n\\"quoted\\" \\\\ back"
calls = [{ shell = "echo 'a' \\\\ é" }, { tool = "weather", arguments = { at = [1, 2.5, { x = "Zürich" }] } }]
usage = { input = 1000, cached = 400, written = 100, written_hour = 30, output = 60, reasoning = 20 }
"""


@each_wire
@streamed
def test_all_that_a_step_says_is_heard_in_each_wire_format(
    wire: Wire, stream: bool, opened: Open, tmp_path: Path
) -> None:
    http = opened(FULL)
    heard = begun(wire, http, tools={**BASH_TOOL, "weather": {"type": "object"}}).ask(stream)
    assert heard.text == 'Grüße 漢字 😀\n"quoted" \\ back'
    assert heard.think == "Hmm… 思"
    assert [(call.name, call.arguments) for call in heard.calls] == [
        ("bash", {"command": "echo 'a' \\ é"}),
        ("weather", {"at": [1, 2.5, {"x": "Zürich"}]}),
    ]
    assert heard.tokens == TOLD[wire]
    (line,) = record(tmp_path)
    assert (line.wire, line.stream, line.status, line.outcome) == (wire, stream, 200, "answered")
    assert (line.tokens, line.text, line.think) == (TOLD[wire], heard.text, heard.think)
    assert (line.kind, line.conversation, line.step, line.attempt) == ("main", 1, 1, 1)
    assert line.tools == ("bash", "weather")


TEXTS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=60)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)
STEPS = st.builds(
    lambda say, think, calls: {"say": say, "think": think, "calls": calls},
    TEXTS,
    st.none() | TEXTS,
    st.lists(
        st.fixed_dictionaries(
            {"tool": st.just("tool"), "arguments": st.dictionaries(TEXTS, VALUES, max_size=3)}
        ),
        max_size=3,
    ),
)


@settings(max_examples=12)
@given(step=STEPS)
def test_any_step_survives_each_wire_format(step: dict[str, Any]) -> None:
    script = DriverScript.model_validate({"audience": "anyone", "step": [step]})
    with run_in_thread(script) as url, http_client(url) as http:
        for wire in WIRES:
            for stream in (False, True):
                heard = begun(wire, http, f"{wire} {stream}", tools={"tool": {}}).ask(stream)
                assert heard.text == step["say"]
                assert heard.think == (step["think"] or "")
                assert [call.arguments for call in heard.calls] == [one["arguments"] for one in step["calls"]]


# What the agent reports back

ROUNDS = """
[[step]]
shell = "echo one"

[[step]]
label = "second"
when = 'loss (?P<loss>\\d+)'
else = "lost"
say = "It is {{loss}}."
calls = [{ shell = "echo {{ loss }}" }, { tool = "note", arguments = { list = ["{{loss}}", 1] } }]

[[step]]
label = "wait"
shell = "tail log"
until = 'done'
most = 3

[[step]]
when = { user = 'again' }
goto = "second"

[[step]]
end = "Over with {{loss}}."

[[step]]
label = "lost"
end = "Lost."
"""
NOTES = {**BASH_TOOL, "note": {"type": "object"}}


@each_wire
def test_a_script_follows_what_the_agent_reports_back(wire: Wire, opened: Open) -> None:
    http = opened(ROUNDS)
    client = begun(wire, http, tools=NOTES)
    assert client.ask().commands == ["echo one"]
    client.report("epoch 1\nloss 42")
    heard = client.ask(stream=True)
    assert heard.text == "It is 42."
    assert [call.arguments for call in heard.calls] == [{"command": "echo 42"}, {"list": ["42", 1]}]
    client.report("42", "noted")
    for result in ("busy", "done"):
        assert client.ask().commands == ["tail log"]
        client.report(result)
    assert client.ask().text == "Over with 42."
    (state,) = http.get("/script").json()["conversations"]
    assert (state["step"], state["captured"], state["ended"]) == (5, {"loss": "42"}, True)


def test_a_step_that_does_not_match_leads_elsewhere(opened: Open) -> None:
    client = begun("anthropic", opened(ROUNDS), tools=NOTES)
    client.ask()
    client.report("nothing of the kind")
    assert client.ask().text == "Lost."


def test_a_repeated_step_ends_after_its_most(opened: Open) -> None:
    client = begun("gemini", opened(ROUNDS), tools=NOTES)
    client.ask()
    client.report("loss 1")
    client.ask()
    client.report("1", "noted")
    for _ in range(3):
        assert client.ask().commands == ["tail log"]
        client.report("busy")
    assert client.ask().text == "Over with 1."


def test_steps_can_be_gone_back_to_by_what_the_user_said(opened: Open) -> None:
    client = begun("openai-chat", opened(ROUNDS), "Do it again.", tools=NOTES)
    for result in (["loss 7"], ["7", "noted"], ["done, loss 8"]):
        client.ask()
        client.report(*result)
    assert client.ask().text == "It is 8."


def test_going_round_without_an_answer_is_an_error_and_not_a_hang(opened: Open) -> None:
    http = opened('[[step]]\nlabel = "a"\ngoto = "b"\n[[step]]\nlabel = "b"\ngoto = "a"\n')
    answer = begun("anthropic", http).send()
    assert answer.status_code == 400
    assert "Endless loop at step 1" in answer.json()["error"]["message"]


def test_a_script_that_is_over_ends_the_agent_again_and_again(opened: Open) -> None:
    client = begun("openai-responses", opened('[[step]]\nend = "Done."\n'))
    assert client.ask().text == "Done."
    for _ in range(2):
        client.tell("Go on.")
        assert (client.ask().text, client.last and client.last.calls) == ("The script is over.", ())


# The same again, and on

TWO = '[[step]]\nsay = "First, at some length."\nshell = "echo 1"\n[[step]]\nend = "Second."\n'


@each_wire
def test_asking_the_same_again_gets_the_same_step(wire: Wire, opened: Open, tmp_path: Path) -> None:
    client = begun(wire, opened(TWO))
    first = [client.send(), client.send()]
    stamps = ("created", "created_at")
    bodies = [{name: value for name, value in one.json().items() if name not in stamps} for one in first]
    assert bodies[0] == bodies[1]
    client.ask()
    client.report("1")
    client.send()
    assert client.ask().text == "Second."
    assert [(line.step, line.attempt) for line in record(tmp_path)] == [
        (1, 1),
        (1, 2),
        (1, 3),
        (2, 1),
        (2, 2),
    ]


@each_wire
def test_a_session_that_is_resumed_goes_on(wire: Wire, opened: Open) -> None:
    client = begun(wire, opened(TWO + '[[step]]\nwhen = { user = "GO" }\nend = "Third."\n'))
    client.ask()
    client.report("1")
    assert client.ask(stream=True).text == "Second."
    client.tell("GO ON")
    assert client.ask().text == "Third."


def test_words_that_the_agent_added_itself_do_not_lose_the_place(opened: Open) -> None:
    client = begun("anthropic", opened(TWO))
    client.ask()
    client.report("1")
    client.history.append({"role": "assistant", "content": "No response requested."})
    client.tell("Go on.")
    assert client.ask().text == "Second."


def test_half_an_answer_that_broke_off_was_not_heard(opened: Open) -> None:
    client = begun("gemini", opened(TWO))
    client.send()
    client.history.append({"role": "model", "parts": [{"text": "First, at"}]})
    client.tell("Go on.")
    assert client.ask().text == "First, at some length."


def test_conversations_are_apart_unless_the_script_joins_them(opened: Open) -> None:
    for head, expected in (("", "First, at some length."), ('sessions = "joined"\n', "Second.")):
        http = opened(head + TWO)
        one = begun("openai-chat", http, "One.")
        one.ask()
        assert begun("anthropic", http, "Another.").ask().text == expected


def test_a_response_can_be_gone_on_from_by_its_id(opened: Open) -> None:
    http = opened(TWO)
    client = begun("openai-responses", http)
    path, body = client.request()
    first = http.post(path, json=body).json()
    body |= {"input": "1", "previous_response_id": first["id"]}
    assert http.post(path, json=body).json()["output"][0]["content"][0]["text"] == "Second."
    body["previous_response_id"] = "resp_unknown"
    assert http.post(path, json=body).status_code == 400


# Requests beside the agent's work


@each_wire
def test_side_requests_are_answered_briefly_and_play_nothing_on(wire: Wire, opened: Open) -> None:
    http = opened(TWO)
    aside = begun(wire, http, "Write a title.", tools={})
    assert aside.ask(stream=True).text == "A scripted run"
    assert begun(wire, http).ask().text == "First, at some length."
    assert http.get("/script").json()["requests"] == {"side": 1, "main": 1}


def test_a_side_request_for_json_gets_what_its_schema_asks_for(opened: Open) -> None:
    choice = {"enum": ["user", "model"]}
    schema = {
        "type": "object",
        "properties": {"next": choice, "why": {"type": "string"}},
        "required": ["next"],
    }
    http = opened(TWO)
    config = {"responseMimeType": "application/json", "responseJsonSchema": schema}
    aside = begun("gemini", http, tools={}, more={"generationConfig": config})
    assert json.loads(aside.ask().text) == {"next": "user"}
    title = {"type": "object", "properties": {"title": {"type": "string"}}, "required": ["title"]}
    asked = {"output_config": {"format": {"type": "json_schema", "schema": title}}}
    assert json.loads(begun("anthropic", http, tools={}, more=asked).ask().text)["title"]


def test_probes_counts_and_lists_play_nothing_on(opened: Open) -> None:
    http = opened(TWO)
    assert begun("anthropic", http, more={"max_tokens": 1}).ask().text == "A scripted run"
    path, body = begun("anthropic", http).request()
    assert http.post(f"{path}/count_tokens", json=body).json()["input_tokens"] > 1
    gemini, content = begun("gemini", http).request()
    counted = gemini.replace(":generateContent", ":countTokens")
    assert http.post(counted, json=content).json()["totalTokens"] > 1
    assert http.get("/v1/models").json()["data"][0]["id"] == "scripted"
    assert http.get("/v1beta/models/any").json()["name"] == "models/any"
    assert http.head("/").status_code == 200
    assert http.get("/v1/files").status_code == 404
    found = http.get("/script").json()
    assert found["requests"] == {"side": 1, "count": 2, "models": 2, "unknown": 2}
    assert found["conversations"] == []


@each_wire
@pytest.mark.parametrize("body", [b"{", b"[]", b'{"model": "m"}', b"[" * 100_000])
def test_what_is_no_request_is_refused_in_the_wires_own_form(wire: Wire, body: bytes, opened: Open) -> None:
    http = opened(TWO)
    path, _ = begun(wire, http).request()
    answer = http.post(path, content=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"]


# Trouble

ERRORS: dict[Wire, Callable[[Any], Any]] = {
    "anthropic": lambda body: body["error"]["type"],
    "openai-chat": lambda body: body["error"]["code"] or body["error"]["type"],
    "openai-responses": lambda body: body["error"]["code"] or body["error"]["type"],
    "gemini": lambda body: body["error"]["status"],
}
SAID: dict[str, dict[Wire, tuple[int, str]]] = {
    "429": {
        "anthropic": (429, "rate_limit_error"),
        "openai-chat": (429, "rate_limit_exceeded"),
        "openai-responses": (429, "rate_limit_exceeded"),
        "gemini": (429, "RESOURCE_EXHAUSTED"),
    },
    "500": {
        "anthropic": (500, "api_error"),
        "openai-chat": (500, "server_error"),
        "openai-responses": (500, "server_error"),
        "gemini": (500, "INTERNAL"),
    },
    "401": {
        "anthropic": (401, "authentication_error"),
        "openai-chat": (401, "invalid_api_key"),
        "openai-responses": (401, "invalid_api_key"),
        "gemini": (401, "UNAUTHENTICATED"),
    },
    '"overloaded"': {
        "anthropic": (529, "overloaded_error"),
        "openai-chat": (503, "server_is_overloaded"),
        "openai-responses": (503, "server_is_overloaded"),
        "gemini": (503, "UNAVAILABLE"),
    },
    '"context-too-long"': {
        "anthropic": (400, "invalid_request_error"),
        "openai-chat": (400, "context_length_exceeded"),
        "openai-responses": (400, "context_length_exceeded"),
        "gemini": (400, "INVALID_ARGUMENT"),
    },
}


@each_wire
@pytest.mark.parametrize("status", SAID)
def test_an_error_is_the_providers_own_and_then_the_script_goes_on(
    wire: Wire, status: str, opened: Open, tmp_path: Path
) -> None:
    fail = f"fail = {{ status = {status}, times = 2, retry_after = 3 }}\n"
    client = begun(wire, opened(f'[[step]]\n{fail}say = "At last."\nshell = "ls"\n'))
    for stream in (False, True):
        answer = client.send(stream)
        assert (answer.status_code, ERRORS[wire](answer.json())) == SAID[status][wire]
        assert answer.headers["retry-after"] == "3"
        assert answer.headers["content-type"] == "application/json"
    assert client.ask(stream=True).text == "At last."
    lines = record(tmp_path)
    assert [(line.outcome, line.attempt, line.tokens is None) for line in lines] == [
        ("failed", 1, True),
        ("failed", 2, True),
        ("answered", 3, False),
    ]


def test_a_step_that_only_fails_gives_way_to_the_next(opened: Open) -> None:
    client = begun(
        "openai-chat", opened("[[step]]\nfail = 503\n[[step]]\nfail = 500\n[[step]]\nend = 'Up.'\n")
    )
    assert [client.send().status_code for _ in range(3)] == [503, 500, 200]


CUT = '[[step]]\nsay = "This text is long enough to be cut."\nshell = "ls"\n'
BEGUN: dict[Wire, TokenCounts | None] = {
    "anthropic": TokenCounts(input=100, output=1),
    "openai-chat": None,
    "openai-responses": None,
    "gemini": TokenCounts(input=100),
}
"""What is told by the middle of a stream."""


@each_wire
@streamed
def test_an_answer_that_is_cut_breaks_off_and_is_whole_the_next_time(
    wire: Wire, stream: bool, opened: Open, tmp_path: Path
) -> None:
    client = begun(wire, opened(CUT + "cut = 1\n"))
    path, body = client.request(stream)
    heard = b""
    with client.http.stream("POST", path, json=body) as answer, suppress(httpx.RemoteProtocolError):
        for chunk in answer.iter_raw():
            heard += chunk
        pytest.fail("it ended as if it were whole")
    assert answer.status_code == 200
    assert heard
    assert client.ask(stream).text == "This text is long enough to be cut."
    cut, whole = record(tmp_path)
    assert (cut.outcome, cut.tokens) == ("cut", BEGUN[wire] if stream else None)
    assert (whole.outcome, whole.tokens) == ("answered", TokenCounts(input=100, output=10))


@each_wire
def test_an_error_can_come_midway_in_a_stream(wire: Wire, opened: Open, tmp_path: Path) -> None:
    client = begun(wire, opened(CUT + 'fail = { status = "overloaded", midway = true }\n'))
    answer = client.send(stream=True)
    assert answer.status_code == 200
    assert "Overloaded" in answer.text.split("\n\n")[-2]
    with pytest.raises((AssertionError, ValueError, KeyError)):
        parse_stream(wire, answer)
    assert client.ask(stream=True).text == "This text is long enough to be cut."
    assert [line.outcome for line in record(tmp_path)] == ["failed", "answered"]


def test_silence_lasts_until_the_client_goes_away(opened: Open, tmp_path: Path) -> None:
    client = begun("openai-chat", opened(CUT + "hang = 1\n"))
    with pytest.raises(httpx.ReadTimeout):
        client.http.post(client.request()[0], json=client.request()[1], timeout=0.2)
    assert client.ask().text == "This text is long enough to be cut."
    assert {(line.outcome, line.status) for line in record(tmp_path)} == {("silent", None), ("answered", 200)}


@each_wire
def test_a_step_can_wait_before_its_first_byte_and_in_its_middle(wire: Wire, opened: Open) -> None:
    client = begun(wire, opened(CUT + "wait = 0.2\npause = 0.3\n"))
    path, body = client.request(stream=True)
    begin = time.monotonic()
    with client.http.stream("POST", path, json=body) as answer:
        first = time.monotonic()
        answer.read()
    assert first - begin >= 0.2
    assert time.monotonic() - begin >= 0.2 + 0.3


def test_a_client_that_leaves_in_the_middle_is_on_record(opened: Open, tmp_path: Path) -> None:
    client = begun("anthropic", opened(CUT + "pause = 20\n"))
    path, body = client.request(stream=True)
    with client.http.stream("POST", path, json=body) as answer:
        next(answer.iter_raw())
    wait_until(lambda: record(tmp_path))
    (line,) = record(tmp_path)
    assert (line.outcome, line.status, line.tokens) == ("abandoned", 200, BEGUN["anthropic"])


@each_wire
def test_with_a_key_only_requests_that_have_it_are_answered(wire: Wire, opened: Open) -> None:
    http = opened(TWO, key="test-key")
    client = begun(wire, http)
    assert client.send().status_code == 401
    headers = {"anthropic": "x-api-key", "gemini": "x-goog-api-key"}
    http.headers[headers.get(wire, "authorization")] = "test-key" if wire in headers else "Bearer test-key"
    assert client.ask().text == "First, at some length."


# How each agent runs a command, and ends


def shell_call(opened: Open, wire: Wire, tool: dict[str, Any], command: str = "ls") -> dict[str, Any]:
    """The call that a request with this one tool gets."""
    script = DriverScript.model_validate({"step": [{"shell": command, "timeout": 900}]})
    http = opened(script)
    body: dict[str, Any] = {"model": "m", "input": "Begin.", "tools": [tool]}
    if wire != "openai-responses":
        schema = tool.get("parameters", {})
        ((call,),) = [begun(wire, http, tools={tool["name"]: schema}).ask().calls]
        return {"name": call.name, "arguments": call.arguments}
    (item,) = http.post("/v1/responses", json=body).json()["output"]
    return dict(item)


def test_a_command_goes_into_whatever_tool_the_request_offers(opened: Open) -> None:
    text, milliseconds = {"type": "string"}, {"type": "number", "description": "Timeout in milliseconds"}

    def schema(required: list[str], **properties: Any) -> dict[str, Any]:
        return {"type": "object", "properties": properties, "required": required}

    claude = {"name": "Bash", "parameters": schema(["command"], command=text, timeout=milliseconds)}
    assert shell_call(opened, "anthropic", claude)["arguments"] == {"command": "ls", "timeout": 900_000}
    described = schema(["command", "description"], command=text, description=text)
    opencode = shell_call(opened, "openai-chat", {"name": "bash", "parameters": described})
    assert opencode["arguments"]["command"] == "ls"
    assert opencode["arguments"]["description"]
    risk = {"type": "string", "enum": ["UNKNOWN", "LOW", "HIGH"]}
    terminal = schema(
        ["command", "security_risk"], command=text, security_risk=risk, timeout={"type": "number"}
    )
    openhands = shell_call(opened, "openai-chat", {"name": "terminal", "parameters": terminal})
    assert openhands["arguments"] == {"command": "ls", "security_risk": "LOW", "timeout": 900}
    gemini = shell_call(opened, "gemini", {"name": "run_shell_command", "parameters": COMMAND_SCHEMA})
    assert gemini == {"name": "run_shell_command", "arguments": {"command": "ls"}}
    other = shell_call(opened, "anthropic", {"name": "do_it", "parameters": schema(["cmd"], cmd=text)})
    assert other == {"name": "do_it", "arguments": {"cmd": "ls"}}


def test_codex_is_served_whichever_of_its_shells_it_offers(opened: Open) -> None:
    def call(**tool: Any) -> dict[str, Any]:
        return shell_call(opened, "openai-responses", tool)

    fields = {"cmd": {"type": "string"}, "login": {"type": "boolean"}, "yield_time_ms": {"type": "number"}}
    function = call(
        type="function", name="exec_command", parameters={"properties": fields, "required": ["cmd"]}
    )
    assert json.loads(function["arguments"]) == {"cmd": "ls", "login": False, "yield_time_ms": 900_000}
    listed = {"command": {"type": "array", "items": {"type": "string"}}, "timeout_ms": {"type": "number"}}
    array = call(type="function", name="shell", parameters={"properties": listed, "required": ["command"]})
    assert json.loads(array["arguments"]) == {"command": ["bash", "-c", "ls"], "timeout_ms": 900_000}
    local = call(type="local_shell")
    assert (local["type"], local["action"]["command"]) == ("local_shell_call", ["bash", "-c", "ls"])
    custom = call(type="custom", name="shell")
    assert (custom["type"], custom["name"], custom["input"]) == ("custom_tool_call", "shell", "ls")


def test_a_command_that_still_runs_is_waited_for_at_no_step(opened: Open) -> None:
    tools = {
        "exec_command": {"properties": {"cmd": {"type": "string"}}, "required": ["cmd"]},
        "write_stdin": {"properties": {"session_id": {}, "yield_time_ms": {}}, "required": ["session_id"]},
    }
    script = '[[step]]\nshell = "train"\n[[step]]\nwhen = "epoch 1[^$]*epoch 2"\nend = "Both."\n'
    client = begun("openai-responses", opened(script), tools=tools)
    client.ask()
    client.report("Process running with session ID 77\nOutput:\nepoch 1")
    (call,) = client.ask().calls
    assert (call.name, call.arguments) == ("write_stdin", {"session_id": 77, "yield_time_ms": 300_000})
    client.report("Process exited with code 0\nOutput:\nepoch 2")
    assert client.ask().text == "Both."


@settings(max_examples=10)
@given(
    text=st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=80)
    | st.just("END_OF_FILE\n")
)
def test_a_file_is_written_by_a_shell_command_whatever_is_in_it(
    text: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("work")
    step = {"write_file": {"path": "a b/it's.txt", "text": f"$(x) `y` {text}"}}
    with run_in_thread(DriverScript.model_validate({"step": [step]})) as url, http_client(url) as http:
        for name in ("bash", "run_shell_command"):
            (command,) = begun("gemini", http, name, tools={name: COMMAND_SCHEMA}).ask().commands
            subprocess.run(["bash", "-c", command], cwd=folder, check=True)
            written = (folder / "a b/it's.txt").read_bytes().decode()
            assert written == f"$(x) `y` {text}" + ("" if text.endswith("\n") else "\n")
            assert name == "bash" or not {"$(", "`"} & {command[at : at + 2] for at in range(len(command))}


def test_each_agent_is_ended_in_its_own_way(opened: Open) -> None:
    http = opened('[[step]]\nend = "Done."\n')
    plain = begun("anthropic", http, "Plain.").ask()
    assert (plain.text, plain.calls) == ("Done.", ())
    finish = {"properties": {"message": {"type": "string"}}, "required": ["message"]}
    (last,) = begun("openai-chat", http, "OpenHands.", tools={**BASH_TOOL, "finish": finish}).ask().calls
    assert (last.name, last.arguments) == ("finish", {"message": "Done."})
    marker = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
    assert begun("openai-chat", http, f"To end, run {marker}.").ask().commands == [marker]


def test_an_agent_that_reads_commands_from_text_gets_them_there(opened: Open) -> None:
    http = opened('[[step]]\nsay = "Look."\nshell = "ls"\n[[step]]\nwhen = "code"\nend = "Done."\n')
    prompt = "Answer with one ```mswea_bash_command block. End by echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT."
    client = begun("openai-chat", http, prompt, tools={})
    assert client.ask().text == "Look.\n\n```mswea_bash_command\nls\n```"
    client.tell("code data output")
    assert client.ask().text.endswith(
        "```mswea_bash_command\necho COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT\n```"
    )


# With the gateway, and as a command


@each_wire
def test_the_gateway_counts_what_the_driver_told(wire: Wire, opened: Open, tmp_path: Path) -> None:
    http = opened(FULL + '[[step]]\nfail = 429\ncut = 1\nend = "Long enough to be cut in two."\n')
    seen: list[LlmExchange] = []
    driver = parse_driver(f"scripted@{http.base_url}")
    gateway = Gateway(driver, None, UsageCaps(None, None), prices.load_prices(None), seen.append)
    with (
        serve_on_socket(gateway.application) as socket,
        closing(gateway),
        http_client("http://gateway", socket) as through,
    ):
        client = begun(wire, through, tools={**BASH_TOOL, "weather": {"type": "object"}})
        client.ask(stream=True)
        client.report("a", "b")
        assert client.send(stream=True).status_code == 429
        with pytest.raises((httpx.RemoteProtocolError, AssertionError, ValueError)):
            parse_stream(wire, client.send(stream=True))
        client.ask(stream=False)
    told = [line.tokens for line in record(tmp_path)]
    assert [exchange.tokens for exchange in seen] == told
    assert gateway.usage().tokens == sum((tokens for tokens in told if tokens), TokenCounts())


SUBMIT = """
import json, os, sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from agent2rl.models.abacus import Abacus
from agent2rl.tasks.gsm8k.mini import TASK
from agent2rl.evaluators.scorers import final_answer

class Desk(BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer({"remaining": 60})
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        model = Abacus.load(asked["model_path"])
        right = [final_answer(model.answer(one.prompt)) == final_answer(one.target) for one in EXAMPLES]
        self.answer({"verdict": "scored", "score": 100 * sum(right) / len(right)})
    def answer(self, value):
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_):
        pass

splits = TASK.load(None)
EXAMPLES = splits.feedback[:40]
Abacus.base().save("models/abacus")
with open("data/train.jsonl", "w") as file:
    for one in splits.train[:400]:
        file.write(json.dumps({"question": one.prompt, "answer": one.target}) + "\\n")
server = HTTPServer(("127.0.0.1", 0), Desk)
print(server.server_port, flush=True)
server.serve_forever()
"""


@pytest.mark.thorough
def test_train_and_submit_trains_twice_and_reads_the_scores(opened: Open, launcher: RunLauncher) -> None:
    home = launcher.home
    for name in ("code", "data", "models", "output"):
        (home / name).mkdir()
    (home / "description.md").write_text("Word problems.\n")
    python = launcher.command()[0]
    with subprocess.Popen([python, "-c", SUBMIT], cwd=home, stdout=subprocess.PIPE, text=True) as desk:
        assert desk.stdout
        try:
            url = f"http://127.0.0.1:{desk.stdout.readline().strip()}"
            environment = launcher.environment(
                PATH=f"{Path(python).parent}:{launcher.environment()['PATH']}",
                DATA_PATH="data",
                MODEL_PATH="models/abacus",
                OUTPUT_DIR="output",
                GRADING_SERVER_URL=url,
            )
            http = opened(load_script("train-and-submit"))
            client = begun("openai-responses", http, "Read instructions.md and begin.")
            heard = client.ask(stream=True)
            while heard.calls:
                client.report(*(_run(command, home, environment) for command in heard.commands))
                heard = client.ask(stream=True)
        finally:
            desk.kill()
    (state,) = http.get("/script").json()["conversations"]
    assert state["label"] == "done", heard.text
    assert float(state["captured"]["second"]) > float(state["captured"]["first"])


def _run(command: str, folder: Path, environment: dict[str, str]) -> str:
    argv = ["bash", "-c", command]
    done = subprocess.run(argv, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def test_the_other_shipped_scripts_do_as_they_say(opened: Open) -> None:
    assert set(list_shipped_scripts()) == {"failing", "nothing", "train-and-submit"}
    assert not begun("gemini", opened(load_script("nothing"))).ask().calls
    client = begun("anthropic", opened(load_script("failing")))
    assert client.ask().commands == ["ls"]
    client.report("code")
    assert {client.send(stream=True).status_code for _ in range(5)} == {429}


def test_the_command_serves_until_it_is_interrupted(launcher: RunLauncher) -> None:
    (launcher.home / "script.toml").write_text(TWO)
    socket = launcher.home / "s"
    with subprocess.Popen(
        launcher.command(
            "driver", "scripted", "script.toml", "--socket", str(socket), "--record", "said.jsonl"
        ),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=launcher.home,
        env=launcher.environment(),
    ) as serving:
        assert serving.stdout
        try:
            address, how = serving.stdout.readline(), serving.stdout.readline()
            with http_client("http://driver", socket) as http:
                assert begun("gemini", http).ask(stream=True).commands == ["echo 1"]
            serving.send_signal(signal.SIGINT)
            rest, errors = serving.communicate(timeout=120)
        finally:
            serving.kill()
    assert (address, how) == (f"unix:{socket}\n", "(Ctrl-C to stop)\n")
    assert (serving.returncode, rest, errors) == (0, "", "")
    assert not socket.exists()
    (line,) = (launcher.home / "said.jsonl").read_text().splitlines()
    assert RequestLogLine.model_validate_json(line).outcome == "answered"
