"""Requests that two servers could read in two ways reach no host, or in one way alone."""

import pytest

from tests.network_proxy.small_internet import (
    open_internet,
    wait_for_requests,
)


@pytest.mark.parametrize(
    "headers",
    [
        ("Transfer-Encoding: chunked", "Transfer-Encoding: chunked"),
        ("Transfer-Encoding: chunked", "Transfer-Encoding: identity"),
        ("Transfer-Encoding: chunked, chunked",),
        ("Transfer-Encoding: gzip, chunked",),
        ("Transfer-Encoding: xchunked",),
        ("Transfer-Encoding: \x0bchunked",),
        ("Transfer-Encoding : chunked",),
        ("Content-Length: 5", "Content-Length: 6"),
        ("Content-Length: 5, 6",),
        ("Content-Length: +5",),
        ("Content-Length: 0x5",),
        ("Content-Length: -1",),
        ("Content-Length : 5",),
    ],
)
def test_a_body_whose_end_two_servers_could_see_in_two_places_is_refused(headers: tuple[str, ...]) -> None:
    head = "\r\n".join(["POST http://a.org/ HTTP/1.1", "Host: a.org", *headers, "", ""])
    with open_internet("allow:a.org") as internet:
        answer = internet.ask(head.encode(), b"0\r\n\r\nGET http://b.org/ HTTP/1.1\r\nHost: b.org\r\n\r\n")
        assert answer.split()[1] in (b"400", b"501")
        assert answer.count(b"HTTP/1.1") == 1
        (request,) = wait_for_requests(internet, 1)
    assert request.outcome == "refused"
    assert not internet.dialed


@pytest.mark.parametrize(
    "lengths",
    [
        b"Content-Length: 60\r\nTransfer-Encoding: chunked",
        b"transfer-encoding:\tCHUNKED\r\nContent-Length: 60",
        b"Transfer-Encoding:\r\n chunked\r\nContent-Length: 60",
    ],
)
def test_a_body_with_a_length_and_chunks_is_sent_in_chunks_alone(lengths: bytes) -> None:
    head = b"POST http://a.org/ HTTP/1.1\r\nHost: a.org\r\n" + lengths + b"\r\n\r\n"
    second = b"GET http://b.org/ HTTP/1.1\r\nHost: b.org\r\n\r\n"
    with open_internet("allow:a.org") as internet:
        assert internet.ask(head, b"0\r\n\r\n" + second).startswith(b"HTTP/1.1 200 ")
        wait_for_requests(internet, 1)
    (received,) = internet.site.received
    assert b"content-length" not in received.lower()
    assert received.lower().count(b"transfer-encoding: chunked") == 1
    assert received.endswith(b"\r\n\r\n0\r\n\r\n")
    assert b"b.org" not in received


@pytest.mark.parametrize(
    ("headers", "kept"),
    [
        (("Connection: Upgrade", "Upgrade: websocket", "X-Own: 1"), b"x-own"),
        (("Connection: X-Own, close", "X-Own: 1", "X-Other: 1"), b"x-other"),
        (("Connection: Host, X-Other", "X-Other: 1", "X-Own: 1"), b"x-own"),
        (("TE: trailers", "Trailer: X-Own", "Keep-Alive: 5", "X-Own: 1"), b"x-own"),
    ],
)
def test_headers_for_the_proxy_alone_are_not_passed_on(headers: tuple[str, ...], kept: bytes) -> None:
    with open_internet("allow:a.org") as internet:
        assert internet.get("http://a.org/", *headers).startswith(b"HTTP/1.1 200 ")
        wait_for_requests(internet, 1)
    (received,) = internet.site.received
    names = {line.partition(b":")[0].lower() for line in received.split(b"\r\n")[1:] if line}
    assert names == {b"host", b"connection", kept}
    assert b"Connection: close" in received


def test_a_request_of_http_1_0_is_served_once() -> None:
    first = b"GET http://a.org/1 HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"
    with open_internet("allow:a.org") as internet:
        answer = internet.ask(first + b"GET http://b.org/2 HTTP/1.0\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert answer.count(b"HTTP/1.1") == 1
        wait_for_requests(internet, 1)
    assert [received.partition(b"\r")[0] for received in internet.site.received] == [b"GET /1 HTTP/1.1"]


@pytest.mark.parametrize(
    "lines",
    [
        ("GET http://a.org/ HTTP/1.1", "Host: b.org"),
        ("GET http://a.org/ HTTP/1.1", "Host: a.org:8080"),
        ("GET http://a.org/ HTTP/1.1", "Host: a.org", "Host: b.org"),
        ("GET http://a.org/ HTTP/1.1", "Host: a.org", "Host: a.org"),
        ("GET http://a.org/ HTTP/1.1", "Host: a.org, b.org"),
        ("GET http://a.org/ HTTP/1.1", "Host : b.org"),
        ("GET http://a.org/ HTTP/1.1", "X: 1", " Host: b.org", "Host: b.org"),
        ("CONNECT a.org:443 HTTP/1.1", "Host: b.org:443"),
        ("CONNECT a.org:443 HTTP/1.1", "Host: a.org:80"),
    ],
)
def test_a_smuggled_host_is_refused(lines: tuple[str, ...]) -> None:
    with open_internet("allow:a.org") as internet:
        answer = internet.ask("\r\n".join([*lines, "", ""]).encode())
        assert answer.startswith(b"HTTP/1.1 400 ")
        (request,) = wait_for_requests(internet, 1)
    assert request.outcome == "refused"
    assert not internet.dialed


def test_a_request_after_the_first_one_on_a_connection_is_not_read() -> None:
    first = b"GET http://a.org/1 HTTP/1.1\r\nHost: a.org\r\n\r\n"
    second = b"GET http://b.org/2 HTTP/1.1\r\nHost: b.org\r\n\r\n"
    with open_internet("allow:a.org") as internet:
        answer = internet.ask(first + second)
        assert answer.count(b"HTTP/1.1") == 1
        assert b"onnection: close" in answer
        wait_for_requests(internet, 1)
    assert len(internet.requests) == 1
    assert [received.partition(b"\r")[0] for received in internet.site.received] == [b"GET /1 HTTP/1.1"]
