"""Tokens are counted from what the provider tells, the same whatever way its bytes are cut."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent2rl.core.llm import TokenCounts, Wire
from agent2rl.gateway.keys import Key, Redactor
from agent2rl.gateway.token_counting import EventStreamParser, TokenCounter
from tests.gateway.fake_provider import (
    REAL_KEY,
    TOKEN_COUNTS,
    WIRES,
    format_event,
    format_usage,
    make_response_body,
    make_stream_events,
)

Cuts = st.lists(st.integers(1, 60), min_size=1, max_size=40)


def pieces(data: bytes, sizes: list[int]) -> list[bytes]:
    """The bytes cut into these sizes, over and over."""
    found: list[bytes] = []
    at = 0
    while at < len(data):
        size = sizes[len(found) % len(sizes)]
        found.append(data[at : at + size])
        at += size
    return found


def counted(wire: Wire, chunks: list[bytes], streams: bool = True) -> TokenCounter:
    count = TokenCounter(wire, streams)
    for chunk in chunks:
        count.feed(chunk)
    count.finish()
    return count


def dressed(wire: Wire, end: str) -> bytes:
    """A stream with all that the format allows: comments, other fields, data over several lines."""
    said = make_stream_events(wire, "Grüße\n\n", end=end)
    comment = f": keep-alive{end}{end}: {end}id: 1{end}retry: 5{end}data:{end}{end}".encode()
    spread = json.dumps({"type": "ping", "nothing": 1}, indent=1).replace("\n", f"{end}data: ")
    return b"\xef\xbb\xbf" + comment.join([*said[:-1], f"data: {spread}{end}{end}".encode(), said[-1]])


@pytest.mark.parametrize("wire", WIRES)
@given(sizes=Cuts, end=st.sampled_from(["\n", "\r\n", "\r"]))
def test_a_stream_counts_the_same_whatever_way_it_is_cut_and_its_lines_end(
    wire: Wire, sizes: list[int], end: str
) -> None:
    data = dressed(wire, end)
    count = counted(wire, pieces(data, sizes))
    assert count.tokens == TOKEN_COUNTS
    assert count.ended
    assert not count.error
    assert count.answer_characters == counted(wire, [data]).answer_characters > 0


@given(data=st.binary(max_size=200) | st.text("\r\n:da t{}", max_size=200).map(str.encode), sizes=Cuts)
def test_events_are_the_stream_however_it_is_cut(data: bytes, sizes: list[int]) -> None:
    def cut(chunks: list[bytes]) -> list[Any]:
        found = EventStreamParser(most=50)
        return [event for chunk in chunks for event in found.feed(chunk)] + found.finish()

    one, other = cut([data]), cut(pieces(data, sizes))
    assert b"".join(event.raw for event in other) == data
    assert [event.data for event in other if event.data] == [event.data for event in one if event.data]


@given(sizes=Cuts)
def test_an_event_that_is_too_long_is_passed_and_not_read(sizes: list[int]) -> None:
    data = b"data: 1\n\ndata: " + b"x" * 100 + b"\n\ndata: 2\n\n"
    found = EventStreamParser(most=50)
    seen = [event for chunk in pieces(data, sizes) for event in found.feed(chunk)] + found.finish()
    assert b"".join(event.raw for event in seen) == data
    assert [event.data for event in seen if event.data] == [b"1", b"2"]
    assert found.unread == 1


@given(sizes=Cuts, around=st.text("sk-real9", max_size=20), times=st.integers(1, 3))
def test_the_key_is_taken_out_however_it_is_cut(sizes: list[int], around: str, times: int) -> None:
    data = (around + REAL_KEY) * times + around
    redactor = Redactor(Key(REAL_KEY))
    clean = b"".join(map(redactor.feed, pieces(data.encode(), sizes))) + redactor.finish()
    assert clean == Key(REAL_KEY).redact(data.encode())
    assert len(clean) == len(data)
    assert REAL_KEY.encode() not in clean


def test_the_key_is_taken_out_in_its_other_forms_too() -> None:
    key = Key('ab"cd\\ef/gh+ij')
    for form in ('ab"cd\\ef/gh+ij', json.dumps('ab"cd\\ef/gh+ij')[1:-1], "ab%22cd%5Cef%2Fgh%2Bij"):
        assert key.redact(form.encode()) == b"*" * len(form)
    assert Key("EMPTY").redact(b"EMPTY") == b"EMPTY"  # no secret is so short


@pytest.mark.parametrize("wire", WIRES)
def test_an_answer_in_one_piece_is_counted(wire: Wire) -> None:
    assert counted(wire, pieces(make_response_body(wire), [9]), streams=False).tokens == TOKEN_COUNTS


def test_each_provider_counts_in_its_own_way_and_all_come_out_alike() -> None:
    anthropic = {
        "input_tokens": 10,
        "cache_read_input_tokens": 200,
        "cache_creation_input_tokens": 40,
        "cache_creation": {"ephemeral_5m_input_tokens": 30, "ephemeral_1h_input_tokens": 10},
        "output_tokens": 5,
    }
    expected = TokenCounts(input=250, cached=200, written=40, written_hour=10, output=5)
    assert _told("anthropic", anthropic) == expected
    shortened = {
        **anthropic,
        "iterations": [{**anthropic, "input_tokens": 1000, "output_tokens": 50}, anthropic],
    }
    assert _told("anthropic", shortened).total == 1240 + 50 + 250 + 5
    hidden = {
        "prompt_tokens": 10,
        "completion_tokens": 5,
        "total_tokens": 40,
    }  # thoughts are in the total alone
    assert _told("openai-chat", hidden) == TokenCounts(input=10, output=30, reasoning=25)
    responses = {"input_tokens": 100, "input_tokens_details": {"cached_tokens": 60, "cache_write_tokens": 40}}
    assert _told("openai-responses", responses) == TokenCounts(input=100, cached=60, written=40)
    gemini = {
        "promptTokenCount": 10,
        "toolUsePromptTokenCount": 3,
        "candidatesTokenCount": 2,
        "thoughtsTokenCount": 7,
    }
    assert _told("gemini", gemini) == TokenCounts(input=13, output=9, reasoning=7)


def _told(wire: Wire, said: dict[str, Any]) -> TokenCounts:
    body = json.dumps({"usageMetadata" if wire == "gemini" else "usage": said}).encode()
    tokens = counted(wire, [body], streams=False).tokens
    assert tokens is not None
    return tokens


def test_counts_that_are_none_are_nothing() -> None:
    odds: list[Any] = [-1, True, "7", 1.5, None, 10**30, [], {}]
    for odd in odds:
        told = {"input_tokens": odd, "output_tokens": 3, "cache_read_input_tokens": odd, "iterations": odd}
        assert _told("anthropic", told) == TokenCounts(output=3)
        assert _told("openai-chat", {"prompt_tokens": odd, "prompt_tokens_details": odd}).total == 0


def test_what_was_told_early_is_not_lost_to_zeros_that_are_told_later() -> None:
    said = [
        format_event({"type": "message_start", "message": {"usage": format_usage("anthropic")}}),
        format_event({"type": "message_delta", "usage": {"input_tokens": 0, "output_tokens": 60}}),
    ]
    tokens = counted("anthropic", said).tokens
    assert tokens is not None
    assert (tokens.input, tokens.cached, tokens.output) == (1500, 200, 60)


def test_an_answer_that_tells_nothing_is_not_zero() -> None:
    for wire in WIRES:
        assert counted(wire, [b"{}"], streams=False).tokens is None
        assert counted(wire, [b"data: {}\n\n"]).tokens is None
        assert counted(wire, [b"not json at all \xff"], streams=False).tokens is None
