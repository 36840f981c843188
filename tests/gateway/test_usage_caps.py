"""Caps, prices, and drivers by name."""

import time
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from agent2rl.core.errors import UserError
from agent2rl.core.llm import TokenCounts
from agent2rl.gateway import drivers
from agent2rl.gateway.gateway import UsageCaps
from agent2rl.gateway.meter import IntervalUnion
from agent2rl.gateway.prices import load_prices
from tests.gateway.fake_provider import (
    MODEL,
    TOKEN_COUNTS,
    WIRES,
    FakeProvider,
    ProviderReply,
    make_plain_reply,
    make_stream_reply,
    serve_gateway,
    serve_provider,
)


@pytest.fixture
def provider() -> Iterator[FakeProvider]:
    with serve_provider() as provider:
        yield provider


@pytest.mark.parametrize(
    "caps", [UsageCaps(tokens=2 * TOKEN_COUNTS.total), UsageCaps(usd=0.0150)], ids=["tokens", "dollars"]
)
def test_the_answer_that_crosses_a_cap_is_delivered_and_nothing_after_it(
    provider: FakeProvider, caps: UsageCaps
) -> None:
    with serve_gateway(provider, caps=caps) as agent:
        assert agent.ask().status_code == 200
        agent.last(1)
        assert not agent.gateway.exhausted.is_set()
        provider.replies.append(make_stream_reply("anthropic", pause_seconds=0.05))
        with agent.client.stream("POST", "/v1/messages", json=_streaming()) as answer:
            for chunk in answer.iter_raw():
                assert not (b"message_start" in chunk and agent.gateway.exhausted.is_set())
        assert agent.gateway.exhausted.wait(60)
        for wire in WIRES:
            refused = agent.ask(wire)
            assert refused.status_code == 403
            assert "The run's budget is used up: " in refused.json()["error"]["message"]
        assert len(provider.heard) == 2
        assert agent.last(6).outcome == "refused"
        assert agent.gateway.usage().refused == 4


def _streaming() -> dict[str, object]:
    return {"model": MODEL, "stream": True, "max_tokens": 10, "messages": []}


def test_many_requests_at_once_cross_a_cap_by_one_answer(provider: FakeProvider) -> None:
    """Near a cap each waits until it is alone; far from it none waits."""
    provider.answer = lambda _: make_plain_reply(
        "anthropic", tokens=TokenCounts(input=900, output=100), pause_seconds=0.02
    )
    with serve_gateway(provider, caps=UsageCaps(tokens=10_000), connections=200) as agent:
        with ThreadPoolExecutor(60) as pool:
            statuses = list(pool.map(lambda _: agent.ask(max_tokens=1000).status_code, range(60)))
        assert agent.gateway.exhausted.is_set()
        used = agent.gateway.usage().tokens.total
    assert statuses.count(200) == len(provider.heard) == 10
    assert statuses.count(403) == 50
    assert used == 10_000
    assert 1 < provider.most_in_flight < 10


def test_no_more_are_under_way_than_a_provider_would_bear(provider: FakeProvider) -> None:
    provider.answering.clear()
    with serve_gateway(provider, connections=200) as agent, ThreadPoolExecutor(40) as pool:
        asked = [pool.submit(agent.ask) for _ in range(40)]
        while len(provider.heard) < 32:
            time.sleep(0.01)
        time.sleep(0.3)
        assert len(provider.heard) == 32
        provider.answering.set()
        assert {one.result().status_code for one in asked} == {200}
    assert len(provider.heard) == 40


def test_an_agent_that_hangs_up_before_the_last_words_pays_all_the_same(provider: FakeProvider) -> None:
    chunks = make_stream_reply("openai-chat", "word " * 2000).chunks[:1]
    provider.answer = lambda _: ProviderReply(chunks, end="falls silent",
                                      headers={"content-type": "text/event-stream"})  # fmt: skip
    with serve_gateway(provider, caps=UsageCaps(tokens=2000)) as agent:
        body = {**_streaming(), "messages": [{"role": "user", "content": "x"}]}
        with agent.client.stream("POST", "/v1/chat/completions", json=body) as answer:
            next(answer.iter_raw())
        assert agent.gateway.exhausted.wait(60)
        usage = agent.gateway.usage()
        assert usage.tokens.total == 0
        assert usage.guessed.output == pytest.approx(2500, abs=10)
        assert agent.ask("openai-chat").status_code == 403


def test_a_provider_that_tells_no_tokens_is_counted_as_uncounted(provider: FakeProvider) -> None:
    provider.answer = lambda _: ProviderReply((b'{"choices": [{"message": {"content": "Hello."}}]}',))
    with serve_gateway(provider) as agent:
        agent.ask("openai-chat")
        exchange = agent.last()
        usage = agent.gateway.usage()
    assert (exchange.outcome, exchange.tokens, exchange.usd) == ("answered", None, None)
    assert exchange.guessed is not None
    assert (usage.uncounted, usage.tokens.total) == (1, 0)
    assert usage.guessed == exchange.guessed


# Prices


def test_a_model_without_a_price_is_counted_and_cannot_be_capped_in_dollars(provider: FakeProvider) -> None:
    driver = f"some/model:7b@{provider.url}"
    with serve_gateway(provider, driver=driver) as agent:
        agent.ask(model="some/model:7b")
        assert agent.last().tokens == TOKEN_COUNTS
        assert agent.last().usd is None
        assert agent.gateway.usage().usd is None
    with pytest.raises(UserError, match=r"'some/model:7b' has no known price.*AGENT2RL_PRICES"):
        _ = serve_gateway(provider, driver=driver, caps=UsageCaps(usd=1)).__enter__()
    with pytest.raises(UserError, match="'other' has no known price"):
        _ = serve_gateway(provider, also=("other",), caps=UsageCaps(usd=1)).__enter__()


def test_prices_count_each_kind_of_token_apart() -> None:
    prices = load_prices()
    tokens = TokenCounts(input=1000, cached=500, written=300, written_hour=100, output=10, reasoning=10)
    expected = (200 * 5 + 500 * 0.5 + 200 * 6.25 + 100 * 10 + 10 * 25) / 1e6
    assert prices.usd("claude-opus-4-6", tokens) == pytest.approx(expected)
    assert prices.usd("claude-sonnet-4-5-20250929", TokenCounts(output=1_000_000)) == 15
    assert prices.usd("gpt-4o-2024-08-06", TokenCounts(input=1_000_000)) == 2.5
    assert prices.usd("gpt-4o-2024-05-13", TokenCounts(input=1_000_000)) == 5
    assert prices.usd("claude-opus-4-6-fast", tokens) is None


def test_a_long_input_makes_all_of_it_dearer() -> None:
    prices = load_prices()
    assert prices.usd("gpt-5.4", TokenCounts(input=272_000, output=1000)) == pytest.approx(0.68 + 0.015)
    assert prices.usd("gpt-5.4", TokenCounts(input=272_001, output=1000)) == pytest.approx(1.360005 + 0.0225)


def test_a_users_prices_go_first(tmp_path: Path) -> None:
    own = tmp_path / "prices.toml"
    own.write_text('["some/model"]\ninput = 1\noutput = 2\n[gpt-4o]\ninput = 0\noutput = 0\n')
    prices = load_prices(own)
    assert prices.usd("some/model", TokenCounts(input=1_000_000, output=1_000_000)) == 3
    assert prices.usd("gpt-4o", TokenCounts(input=1_000_000)) == 0
    assert prices.usd("gpt-5.2", TokenCounts(output=1_000_000)) == 14
    for wrong in ('["a"]\ninput = 1\n', '["a"]\ninput = -1\noutput = 1\n', "a = [", '["a"]\ncosts = 1\n'):
        own.write_text(wrong)
        with pytest.raises(UserError, match="is not a valid price table"):
            load_prices(own)


def test_the_papers_drivers_have_prices() -> None:
    for model in ("claude-opus-4-6", "claude-sonnet-4-5", "gpt-5.4", "gpt-5.2", "gpt-4o", "gemini-2.5-flash"):
        assert load_prices().find_price(model)
    assert load_prices().as_of.year >= 2026
    assert set(load_prices().source) == {"Anthropic", "OpenAI", "Google"}


# Drivers


def test_a_models_name_tells_whose_it_is() -> None:
    opus, gpt, flash = map(drivers.parse_driver, ("claude-opus-4-6", "gpt-5.4", "gemini-2.5-flash"))
    assert (opus.provider, gpt.provider, flash.provider) == ("Anthropic", "OpenAI", "Google")
    assert opus.key_names == ("ANTHROPIC_API_KEY",)
    assert flash.key_names == ("GEMINI_API_KEY", "GOOGLE_API_KEY")
    assert opus.choose_wire(["openai-responses", "anthropic", "openai-chat"]) == "anthropic"
    assert gpt.choose_wire(["anthropic", "openai-chat"]) == "openai-chat"
    assert flash.urls["openai-chat"] == "https://generativelanguage.googleapis.com/v1beta/openai"
    with pytest.raises(UserError, match=r"Anthropic does not speak OpenAI Responses.*LiteLLM proxy"):
        opus.choose_wire(["openai-responses"])


@pytest.mark.parametrize(
    ("url", "messages", "chat", "gemini"),
    [
        ("http://h:1", "http://h:1/v1", "http://h:1/v1", "http://h:1/v1beta"),
        ("http://h:1/v1/", "http://h:1/v1", "http://h:1/v1", "http://h:1/v1beta"),
        ("https://h/api/v1", "https://h/api/v1", "https://h/api/v1", "https://h/api/v1beta"),
        (
            "https://h/api/paas/v4",
            "https://h/api/paas/v1",
            "https://h/api/paas/v4",
            "https://h/api/paas/v1beta",
        ),
        (
            "https://h/anthropic",
            "https://h/anthropic/v1",
            "https://h/anthropic/v1",
            "https://h/anthropic/v1beta",
        ),
    ],
)
def test_a_compatible_server_is_named_with_or_without_its_version(
    url: str, messages: str, chat: str, gemini: str
) -> None:
    driver = drivers.parse_driver(f"Qwen/Qwen3-32B@{url}")
    assert driver.model == "Qwen/Qwen3-32B"
    assert driver.key_names == ("AGENT2RL_DRIVER_KEY",)
    assert not driver.needs_key
    assert [driver.urls[wire] for wire in ("anthropic", "openai-chat", "gemini")] == [messages, chat, gemini]
    assert driver.choose_wire(["gemini"]) == "gemini"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("", "is not a model name"),
        ("llama-3", "The provider of 'llama-3' is unknown"),
        ("openai/gpt-4o", "The provider of"),
        ("gpt 5", "is not a model name"),
        ("m@", "URL must start with"),
        ("m@ftp://h", "URL must start with"),
        ("m@http://", "URL must start with"),
        ("m@http://h:x", "Invalid driver URL"),
        ("m@http://me:pw@h", "must not contain a user"),
        ("m@http://h?key=1", "must not contain a user, a query"),
        ("m@http://h/a b", "URL must start with"),
    ],
)
def test_a_name_that_means_nothing_is_explained(name: str, said: str) -> None:
    with pytest.raises(UserError, match=said) as raised:
        drivers.parse_driver(name)
    assert "MODEL@URL" in str(raised.value)
    assert "pw" not in str(raised.value)


def test_time_that_several_requests_share_is_counted_once() -> None:
    spans = IntervalUnion()
    for begin, end in ((0, 2), (5, 6), (1, 3), (10, 11), (2.5, 5.5), (20, 20)):
        spans.add_interval(begin, end)
    assert spans.seconds == 7


def test_the_time_of_many_requests_takes_no_more_memory_than_that_of_some() -> None:
    spans = IntervalUnion()
    for number in range(50_000):
        spans.add_interval(number, number + 0.5)
    assert spans.seconds == 25_000
    tracemalloc.start()
    try:
        for number in range(50_000, 100_000):
            spans.add_interval(number, number + 0.5)
        assert tracemalloc.get_traced_memory()[0] < 1_000_000
    finally:
        tracemalloc.stop()
    assert spans.seconds == 50_000


def test_a_request_that_outlasts_thousands_of_others_does_not_count_their_time_twice() -> None:
    spans = IntervalUnion()
    for number in range(10_000):
        spans.add_interval(number, number + 0.5)
    spans.add_interval(0, 10_000)
    assert 5_000 < spans.seconds <= 10_000
