"""A run's exchanges are recorded, and played again without a key and without anybody to ask."""

import json
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from agent2rl.core.errors import UserError
from agent2rl.core.llm import Wire
from agent2rl.gateway.gateway import UsageCaps
from agent2rl.gateway.tape import TapeRecording, TapeReplay, read_tape
from tests.gateway.fake_provider import (
    MODEL,
    REAL_KEY,
    SSE_HEADERS,
    TOKEN_COUNTS,
    WIRES,
    FakeProvider,
    GatewayClient,
    ProviderReply,
    get_request_path,
    make_error_reply,
    make_plain_reply,
    make_request,
    make_stream_events,
    make_stream_reply,
    serve_gateway,
    serve_provider,
)

NOBODY = f"{MODEL}@http://127.0.0.1:1"


@pytest.fixture(scope="module")
def shared() -> Iterator[FakeProvider]:
    with serve_provider() as provider:
        yield provider


@pytest.fixture
def provider(shared: FakeProvider) -> FakeProvider:
    shared.replies.clear()
    return shared


def replayed(provider: FakeProvider, tape: Path, pace: float = 0.0, **more: Any) -> Any:
    """A gateway that has neither a key nor anybody to ask."""
    return serve_gateway(provider, key=None, driver=NOBODY, tape=TapeReplay(tape, pace), **more)


def post(agent: GatewayClient, wire: Wire, body: dict[str, Any], stream: bool = False) -> httpx.Response:
    return agent.client.post(get_request_path(wire, stream), json=body)


def turn(
    wire: Wire, said: list[str], now: str = "", stream: bool = False, tool: str = "sh"
) -> dict[str, Any]:
    """A conversation in which the driver has said this so far, and the agent's world looks so now."""
    body = make_request(wire, stream)
    prompt = f"Today is {now}. Work in /tmp/work-{now}/x."
    match wire:
        case "gemini":
            contents = [{"role": "user", "parts": [{"text": prompt}]}]
            for text in said:
                contents.append({"role": "model", "parts": [{"text": text}]})
                contents.append({"role": "user", "parts": [{"text": f"Took {now} s."}]})
            return {"contents": contents, "tools": [{"functionDeclarations": [{"name": tool}]}]}
        case "openai-responses":
            items = [{"type": "message", "role": "user", "content": prompt}]
            for text in said:
                items.append({"type": "message", "role": "assistant", "content": text})
                items.append({"type": "function_call_output", "role": "", "content": f"Took {now} s."})
            return {**body, "input": items, "tools": [{"type": "function", "name": tool}]}
    messages = [{"role": "user", "content": prompt}]
    for text in said:
        messages += [{"role": "assistant", "content": text}, {"role": "user", "content": f"Took {now} s."}]
    named: dict[str, Any] = {"type": "function", "function": {"name": tool}}
    tools = [{"name": tool}] if wire == "anthropic" else [named]
    return {**body, "messages": messages, "tools": tools}


def test_what_was_recorded_is_played_again_to_the_byte(provider: FakeProvider, tmp_path: Path) -> None:
    tape = tmp_path / "deep" / "tape.jsonl"
    asked = [(wire, stream) for wire in WIRES for stream in (False, True)]
    with serve_gateway(provider, tape=TapeRecording(tape)) as agent:
        first = [agent.ask(wire, stream).content for wire, stream in asked]
        agent.client.post("/v1/messages/count_tokens", json=make_request("anthropic"))
        assert agent.ask(model="gpt-4o").status_code == 403
        agent.last(10)
        paid = agent.gateway.usage()
    assert len(read_tape(tape)) == 9  # what was refused would be refused again
    with replayed(provider, tape) as agent:
        assert [agent.ask(wire, stream).content for wire, stream in asked] == first
        count = agent.client.post("/v1/messages/count_tokens", json=make_request("anthropic"))
        assert count.json() == {"input_tokens": 12}
        agent.last(9)
        free = agent.gateway.usage()
    assert all(exchange.replayed and not exchange.message for exchange in agent.exchanges)
    assert free.replayed == 9
    assert (free.tokens, free.usd, free.answered) == (paid.tokens, paid.usd, paid.answered)


@pytest.mark.parametrize("wire", WIRES)
def test_a_run_that_differs_in_dates_paths_and_times_is_played_all_the_same(
    provider: FakeProvider, tmp_path: Path, wire: Wire
) -> None:
    with serve_gateway(provider, tape=TapeRecording(tmp_path / "tape")) as agent:
        said: list[str] = []
        for number in range(3):
            provider.replies.append(make_plain_reply(wire, f"answer {number}"))
            post(agent, wire, turn(wire, said, "2026-01-02"))
            said.append(f"answer {number}")
    with replayed(provider, tmp_path / "tape") as agent:
        for number in range(3):
            answer = post(agent, wire, turn(wire, said[:number], "2027-11-30"))
            assert f"answer {number}" in answer.text
        agent.last(3)
    assert [exchange.message for exchange in agent.exchanges] == [""] * 3


def test_what_differs_besides_is_told(provider: FakeProvider, tmp_path: Path) -> None:
    with serve_gateway(provider, tape=TapeRecording(tmp_path / "tape")) as agent:
        agent.ask("anthropic", system="You are an agent with many rules, and this is one.", top_p=1)
    with replayed(provider, tmp_path / "tape") as agent:
        answer = agent.ask("anthropic", system="You are an agent with many rules, and that is one.", top_k=2)
        assert answer.status_code == 200
        told = agent.last().message
    assert told.startswith("differs from exchange 1 of the tape: system is …")
    assert "that is one" in told
    assert "top_k is 2, not null" in told


def test_conversations_side_by_side_are_kept_apart_in_any_order(
    provider: FakeProvider, tmp_path: Path
) -> None:
    """A title for the session, and three helpers that are told different things."""
    tasks = [
        turn("anthropic", [], tool="helper") | {"system": f"Look at {word}."} for word in ("a", "b", "c")
    ]
    title = make_request("anthropic") | {"system": "Give it a title."}
    with serve_gateway(provider, tape=TapeRecording(tmp_path / "tape")) as agent:
        for body in (title, *tasks):
            provider.replies.append(make_plain_reply("anthropic", f"told: {body['system']}"))
            post(agent, "anthropic", body)
    with replayed(provider, tmp_path / "tape") as agent:
        for body in (*reversed(tasks), title):
            assert f"told: {body['system']}" in post(agent, "anthropic", body).text


@pytest.mark.parametrize("wire", WIRES)
def test_a_request_that_is_not_on_the_tape_is_refused_and_the_nearest_named(
    provider: FakeProvider, tmp_path: Path, wire: Wire
) -> None:
    with serve_gateway(provider, tape=TapeRecording(tmp_path / "tape")) as agent:
        post(agent, wire, turn(wire, []))
        post(agent, wire, turn(wire, ["first"]))
    with replayed(provider, tmp_path / "tape") as agent:
        for body, why in [
            (turn(wire, ["another"]), "exchange 2: the driver's turns so far differ"),
            (
                turn(wire, ["first", "second"]),
                "exchange 2: it has 1 turns of the driver, not 2",
            ),
            (turn(wire, ["first"], tool="rm"), "exchange 2: the tools differ (rm, sh)"),
        ]:
            answer = post(agent, wire, body)
            assert answer.status_code == 400
            assert (
                f"The tape has no matching answer. The nearest is {why}" in answer.json()["error"]["message"]
            )
        assert post(agent, wire, turn(wire, [])).status_code == 200
        assert post(agent, wire, turn(wire, ["first"])).status_code == 200
        told = post(agent, wire, turn(wire, [])).json()["error"]["message"]
        assert "All its 2 exchanges have been played" in told
        assert agent.last(6).outcome == "refused"


def test_failures_are_played_too(provider: FakeProvider, tmp_path: Path) -> None:
    provider.replies.extend(
        [
            make_error_reply(429, "busy", retry_after="2"),
            ProviderReply(end="hangs up"),
            ProviderReply(tuple(make_stream_events("anthropic")[:2]), headers=SSE_HEADERS, end="breaks off"),
        ]
    )

    def run(agent: GatewayClient) -> list[Any]:
        first = agent.ask(stream=True)
        second = agent.ask(stream=True)
        with pytest.raises(httpx.RemoteProtocolError):
            agent.ask(stream=True)
        last = agent.ask(stream=True)
        agent.last(4)
        outcomes = [(exchange.outcome, exchange.retries) for exchange in agent.exchanges]
        return [first.status_code, first.headers["retry-after"], second.text, last.content, *outcomes]

    with serve_gateway(provider, tape=TapeRecording(tmp_path / "tape")) as agent:
        recorded = run(agent)
    assert recorded[4:] == [("provider-error", 0), ("unreachable", 1), ("cut", 2), ("answered", 3)]
    with replayed(provider, tmp_path / "tape") as agent:
        assert run(agent) == recorded


def test_a_cap_is_crossed_in_the_same_place(provider: FakeProvider, tmp_path: Path) -> None:
    with serve_gateway(provider, tape=TapeRecording(tmp_path / "tape")) as agent:
        for _ in range(3):
            agent.ask()
    with replayed(provider, tmp_path / "tape", caps=UsageCaps(tokens=2 * TOKEN_COUNTS.total)) as agent:
        assert [agent.ask().status_code for _ in range(3)] == [200, 200, 403]
        assert agent.gateway.exhausted.is_set()


def test_the_time_of_each_chunk_is_kept_and_can_be_waited_for(provider: FakeProvider, tmp_path: Path) -> None:
    provider.replies.append(make_stream_reply("gemini", pause_seconds=0.1))
    with serve_gateway(provider, tape=TapeRecording(tmp_path / "tape")) as agent:
        agent.ask("gemini", stream=True)
    (taped,) = read_tape(tmp_path / "tape")
    assert [size for _, size in taped.chunks] == [len(one) for one in make_stream_events("gemini")]
    times = [seconds for seconds, _ in taped.chunks]
    assert times == sorted(times)
    assert all(seconds >= 0.1 * number for number, seconds in enumerate(times, 1))

    with replayed(provider, tmp_path / "tape", pace=1.0) as agent:
        begin = time.monotonic()
        agent.ask("gemini", stream=True)
        assert time.monotonic() - begin >= times[-1]


def test_a_replay_without_a_pace_does_not_wait_at_all(provider: FakeProvider, tmp_path: Path) -> None:
    """The chunks came an hour apart: a client whose requests time out after two minutes gets them all."""
    with serve_gateway(provider, tape=TapeRecording(tmp_path / "tape")) as agent:
        recorded = agent.ask("gemini", stream=True).content
    (taped,) = read_tape(tmp_path / "tape")
    late = tuple((3600.0 * number, size) for number, (_, size) in enumerate(taped.chunks, 1))
    with closing(TapeRecording(tmp_path / "slow")) as slow:
        slow.write(taped.model_copy(update={"chunks": late}))
    with replayed(provider, tmp_path / "slow", pace=0.0) as agent:
        assert agent.ask("gemini", stream=True).content == recorded


def test_the_key_is_nowhere_on_a_tape(provider: FakeProvider, tmp_path: Path) -> None:
    repeating = f"your key is {REAL_KEY}"
    provider.replies.extend(
        [
            make_stream_reply("anthropic", repeating),
            make_error_reply(401, repeating),
            make_plain_reply("gemini", repeating),
        ]
    )
    provider.replies.append(
        ProviderReply((b"\xff\xfe" + REAL_KEY.encode(),), headers={"content-type": REAL_KEY})
    )
    with serve_gateway(provider, tape=TapeRecording(tmp_path / "tape")) as agent:
        agent.ask(stream=True, system=f"the user's key is {REAL_KEY}")
        agent.client.post(
            f"/v1/messages?key={REAL_KEY}", json=make_request("anthropic"), headers={"x-api-key": REAL_KEY}
        )
        agent.ask("gemini")
        agent.ask("openai-chat")
        agent.last(4)
    written = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    assert REAL_KEY.encode() not in written
    assert written.count(b"*" * len(REAL_KEY)) >= 4
    with replayed(provider, tmp_path / "tape") as agent:
        assert "*" * len(REAL_KEY) in agent.ask(stream=True, system="x").text


def test_a_tape_that_is_none_is_said(provider: FakeProvider, tmp_path: Path) -> None:
    tape = tmp_path / "tape"
    with pytest.raises(UserError, match="cannot be read"):
        TapeReplay(tape)
    recording = TapeRecording(tape)
    with pytest.raises(UserError, match=r"There is a tape at .* already"):
        TapeRecording(tape)
    recording.close()
    with serve_gateway(
        provider, tape=TapeRecording(tape)
    ) as agent:  # a run that was refused has left an empty one
        agent.ask()
    with pytest.raises(UserError, match=r"There is a tape at .* already"):
        TapeRecording(tape)
    with (
        pytest.raises(UserError, match=f"was recorded with {MODEL}, not gpt-4o"),
        serve_gateway(provider, key=None, driver="gpt-4o", tape=TapeReplay(tape)),
    ):
        pass
    whole = tape.read_bytes()
    tape.write_bytes(whole + whole[:50])  # a run that was killed while it wrote
    assert len(read_tape(tape)) == 1
    tape.write_bytes(b"{}\n")
    with pytest.raises(UserError, match="is not a valid tape"):
        TapeReplay(tape)
    tape.write_bytes(b"")
    with pytest.raises(UserError, match="is empty"):
        TapeReplay(tape)
    assert json.loads(whole)["number"] == 1
