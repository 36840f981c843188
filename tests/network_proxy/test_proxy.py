"""The proxy lets the policy's requests through, and records all of them. The rest of the file attacks it."""

import socket
import threading

import pytest

from agent2rl.network_proxy import connections
from agent2rl.network_proxy.request_log import NetworkLimits
from tests.network_proxy.small_internet import (
    PUBLIC,
    make_client_hello,
    open_internet,
    read_all,
    wait_for_requests,
)
from tests.network_proxy.test_client_hello import ENCRYPTED, build_hello, server_name, vector

METADATA = "169.254.169.254"


def test_a_plain_request_is_forwarded_and_recorded() -> None:
    with open_internet("allow:a.org") as internet:
        answer = internet.get("http://a.org/x?y=1", "Proxy-Authorization: Basic eA==", "X-Own: 1")
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert answer.endswith(b"\r\n\r\nok")
        (received,) = internet.site.received
        assert received.startswith(b"GET /x?y=1 HTTP/1.1\r\nHost: a.org\r\n")
        assert b"x-own: 1" in received.lower()
        assert b"proxy-authorization" not in received.lower()
        (request,) = wait_for_requests(internet, 1)
    assert (request.method, request.host, request.port, request.path) == ("GET", "a.org", 80, "/x?y=1")
    assert (request.status, request.outcome, request.reason) == (200, "done", "")
    assert request.received_bytes > 2
    assert request.sent_bytes == len(received)


def test_a_body_is_forwarded_with_its_length_or_in_chunks() -> None:
    with open_internet("allow:a.org") as internet:
        head = b"POST http://a.org/ HTTP/1.1\r\nHost: a.org\r\nContent-Length: 5\r\n\r\n"
        assert internet.ask(head, b"12345").endswith(b"ok")
        chunked = b"POST http://a.org/ HTTP/1.1\r\nHost: a.org\r\nTransfer-Encoding: chunked\r\n\r\n"
        assert internet.ask(chunked, b"3\r\nabc\r\n0\r\n\r\n").endswith(b"ok")
    first, second = internet.site.received
    assert first.endswith(b"\r\n\r\n12345")
    assert b"transfer-encoding: chunked" in second.lower()


def test_a_tunnel_carries_tls_to_the_host_that_it_names() -> None:
    hello = make_client_hello("a.org")
    with open_internet("allow:a.org") as internet:
        with internet.open_tunnel("a.org:443") as client:
            client.sendall(hello)
            assert client.recv(100) == b"FROM THE SITE"
        (request,) = wait_for_requests(internet, 1)
    assert internet.site.received == [hello]
    assert (request.method, request.host, request.port, request.path) == ("CONNECT", "a.org", 443, None)
    assert (request.outcome, request.sent_bytes, request.received_bytes) == ("done", len(hello), 13)


def test_bytes_that_come_with_connect_are_the_beginning_of_the_tunnel() -> None:
    hello = make_client_hello("a.org")
    with open_internet("allow:a.org") as internet, internet.connect() as client:
        client.sendall(b"CONNECT a.org:443 HTTP/1.1\r\nHost: a.org:443\r\n\r\n" + hello)
        client.shutdown(socket.SHUT_WR)
        assert read_all(client).endswith(b"FROM THE SITE")
        assert internet.site.received == [hello]


@pytest.mark.parametrize(
    "target",
    [
        *("169.254.169.254:443", "127.0.0.1:443", "2130706433:443", "0x7f000001:443", "0177.0.0.1:443"),
        *("0x7f.0.0.1:443", "127.1:443", "[::1]:443", "[::ffff:169.254.169.254]:443", "[fe80::1%25eth0]:443"),
        *("localhost:443", "metadata.google.internal:443", "b.org:443", "a.org.:443", "a.org.b.org:443"),
        *("a.org:22", "a.org:80", "a.org:8443", "a.org:0", "a.org:99999", "a.org", "a.org:", ":443"),
        *("user@a.org:443", "b.org:443@a.org:443", "http://a.org/", "a.org:443/x"),
    ],
)
def test_a_tunnel_to_another_target_is_refused_before_it_is_resolved(target: str) -> None:
    with open_internet("allow:a.org") as internet:
        answer = internet.ask(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode())
        assert answer.split()[1] in (b"400", b"403")
        (request,) = wait_for_requests(internet, 1)
    assert request.outcome == "refused"
    assert request.reason
    assert not internet.resolved
    assert not internet.dialed


@pytest.mark.parametrize(
    "url",
    [
        *("http://169.254.169.254/latest/meta-data/", "http://[::ffff:a9fe:a9fe]/", "http://0xa9fea9fe/"),
        *(
            "http://a.org:8080/",
            "http://a.org:443/",
            "http://b.org/",
            "http://a.org@b.org/",
            "https://a.org/",
        ),
        *(
            "http://a.org:80@b.org/",
            "http://a.org\\@b.org/",
            "http:///a.org/",
            "/a.org",
            "a.org/",
            "ftp://a.org/",
        ),
    ],
)
def test_a_plain_request_to_another_target_is_refused_before_it_is_resolved(url: str) -> None:
    with open_internet("allow:a.org") as internet:
        answer = internet.ask(f"GET {url} HTTP/1.1\r\nHost: a.org\r\n\r\n".encode())
        assert answer.split()[1] in (b"400", b"403")
        (request,) = wait_for_requests(internet, 1)
    assert request.outcome == "refused"
    assert not internet.resolved
    assert not internet.dialed


@pytest.mark.parametrize(
    ("first", "reason"),
    [
        (build_hello(server_name(b"a.org"), ENCRYPTED + vector(b"secret")), "hides its server name"),
        (build_hello(server_name(b"a.org", b"b.org")), "Only TLS"),
        (make_client_hello("b.org"), "names another host"),
        (make_client_hello("sub.a.org"), "names another host"),
        (make_client_hello(None), "no server name"),
        (b"GET / HTTP/1.1\r\nHost: b.org\r\n\r\n", "Only TLS"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "Only TLS"),
    ],
)
def test_a_tunnel_with_other_bytes_than_tls_to_its_host_ends_before_they_reach_it(
    first: bytes, reason: str
) -> None:
    with open_internet("allow:a.org") as internet:
        with internet.open_tunnel("a.org:443") as client:
            client.sendall(first)
            client.shutdown(socket.SHUT_WR)
            assert read_all(client) == bytes.fromhex("15030100020231")
        (request,) = wait_for_requests(internet, 1)
        assert request.outcome == "refused"
        assert reason in request.reason
    assert not any(internet.site.received)


def test_a_name_that_resolves_to_the_metadata_address_is_refused_without_saying_the_address() -> None:
    with open_internet("open", {"evil.org": [[METADATA]]}) as internet:
        answer = internet.get("http://evil.org/latest/meta-data/")
        assert answer.startswith(b"HTTP/1.1 403 ")
        assert METADATA.encode() not in answer
        (request,) = wait_for_requests(internet, 1)
    assert METADATA in request.reason
    assert not internet.dialed


def test_dns_rebinding_changes_nothing_because_a_name_is_resolved_once_for_each_connection() -> None:
    with open_internet("open", {"evil.org": [[PUBLIC], [METADATA]]}) as internet:
        assert internet.get("http://evil.org/").startswith(b"HTTP/1.1 200 ")
        assert (internet.resolved, internet.dialed) == (["evil.org"], [PUBLIC])
        assert internet.get("http://evil.org/").startswith(b"HTTP/1.1 403 ")
    assert internet.dialed == [PUBLIC]


def test_of_several_addresses_only_public_ones_are_used() -> None:
    with open_internet("open", {"evil.org": [["10.0.0.1", "::ffff:127.0.0.1", PUBLIC]]}) as internet:
        assert internet.get("http://evil.org/").startswith(b"HTTP/1.1 200 ")
    assert internet.dialed == [PUBLIC]


def test_the_target_of_a_redirect_is_checked_as_a_new_request() -> None:
    with open_internet("allow:a.org") as internet:
        assert b"ocation: http://inside.example.org/" in internet.get("http://a.org/redirect")
        assert internet.get("http://inside.example.org/").startswith(b"HTTP/1.1 403 ")
        first, second = wait_for_requests(internet, 2)
    assert (first.status, first.outcome, second.outcome) == (302, "done", "refused")


def test_headers_that_are_too_long_are_refused() -> None:
    with open_internet("allow:a.org") as internet:
        answer = internet.get("http://a.org/", f"X: {'x' * 200_000}")
        assert answer.startswith(b"HTTP/1.1 431 ")
        (request,) = wait_for_requests(internet, 1)
    assert request.outcome == "refused"
    assert not internet.dialed


def test_a_head_that_never_ends_is_given_up_although_bytes_keep_coming() -> None:
    with (
        open_internet("allow:a.org", limits=NetworkLimits(head_seconds=0.3)) as internet,
        internet.connect() as client,
    ):
        client.sendall(b"GET http://a.org/ HTTP/1.1\r\n")
        ended = threading.Event()

        def drip() -> None:
            while not ended.wait(0.02):
                try:
                    client.sendall(b"X: 1\r\n")
                except OSError:
                    return

        thread = threading.Thread(target=drip)
        thread.start()
        answer = read_all(client)
        ended.set()
        thread.join()
        assert answer.startswith(b"HTTP/1.1 408 ")
        (request,) = wait_for_requests(internet, 1)
    assert "not complete" in request.reason


def test_a_tunnel_without_a_handshake_is_given_up() -> None:
    with open_internet("allow:a.org", limits=NetworkLimits(head_seconds=0.3)) as internet:
        with internet.open_tunnel("a.org:443") as silent:
            assert read_all(silent)  # an alert, and the end
        (request,) = wait_for_requests(internet, 1)
    assert request.outcome == "refused"
    assert not any(internet.site.received)


def test_connections_on_which_nothing_happens_are_given_up() -> None:
    hello = make_client_hello("a.org")
    with open_internet("allow:a.org", limits=NetworkLimits(idle_seconds=0.3)) as internet:
        assert internet.get("http://a.org/silent").startswith(b"HTTP/1.1 504 ")
        with internet.open_tunnel("a.org:443") as client:
            client.sendall(hello)
            read_all(client)  # until the proxy ends it
        outcomes = [each.outcome for each in wait_for_requests(internet, 2)]
    assert outcomes == ["failed", "failed"]


def test_requests_are_limited_in_number_and_the_record_stays_short() -> None:
    with open_internet("allow:a.org", limits=NetworkLimits(requests=2)) as internet:
        answers = [internet.get("http://a.org/") for _ in range(4)]
        assert [answer.split()[1] for answer in answers] == [b"200", b"200", b"429", b"429"]
        assert b"limit of 2 requests" in answers[2]
        wait_for_requests(internet, 2)
    assert len(internet.requests) == 2
    assert internet.log is not None
    assert internet.log.unrecorded == 2


def test_malformed_requests_cannot_fill_the_record_so_that_others_are_missing_in_it() -> None:
    with open_internet("allow:a.org", limits=NetworkLimits(requests=2)) as internet:
        for _ in range(2):
            assert internet.ask(b"GET /nowhere HTTP/1.1\r\nHost: x\r\n\r\n").startswith(b"HTTP/1.1 400 ")
        wait_for_requests(internet, 2)
        assert internet.get("http://a.org/").startswith(b"HTTP/1.1 429 ")
    assert internet.site.received == []


def test_requests_are_limited_by_the_minute() -> None:
    with open_internet("allow:a.org", limits=NetworkLimits(requests_per_minute=2)) as internet:
        answers = [internet.get("http://a.org/") for _ in range(3)]
    assert [answer.split()[1] for answer in answers] == [b"200", b"200", b"429"]
    assert b"Wait and try again" in answers[2]


def test_connections_are_limited() -> None:
    with open_internet("allow:a.org", limits=NetworkLimits(connections=2)) as internet:
        with internet.open_tunnel("a.org:443"), internet.open_tunnel("a.org:443"):
            assert internet.get("http://a.org/").startswith(b"HTTP/1.1 429 ")
        wait_for_requests(internet, 3)
        assert internet.get("http://a.org/").startswith(b"HTTP/1.1 200 ")


def test_connections_far_over_the_limit_are_closed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes a file descriptor of the harness, also while it is being refused."""
    monkeypatch.setattr(connections, "LINGER_SECONDS", 60)
    with (
        open_internet("allow:a.org", limits=NetworkLimits(connections=1)) as internet,
        internet.open_tunnel("a.org:443"),
        internet.connect() as refused,
    ):
        assert refused.recv(100).startswith(b"HTTP/1.1 429 ")
        with internet.connect() as closed:
            assert read_all(closed) == b""


def test_a_download_over_the_limit_is_cut_and_nothing_follows() -> None:
    with open_internet("allow:a.org", limits=NetworkLimits(received_bytes=100_000)) as internet:
        answer = internet.get("http://a.org/large")
        assert len(answer) < 200_000
        (request,) = wait_for_requests(internet, 1)
        assert (request.outcome, "download limit" in request.reason) == ("cut", True)
        assert b"download limit of 0.0001 GB is used up" in internet.get("http://a.org/")


def test_an_upload_over_the_limit_is_cut_and_only_what_left_is_counted() -> None:
    with open_internet("allow:a.org", limits=NetworkLimits(sent_bytes=10_000)) as internet:
        head = b"POST http://a.org/ HTTP/1.1\r\nHost: a.org\r\nContent-Length: 50000\r\n\r\n"
        assert b"upload limit" in internet.ask(head, b"x" * 50_000)
        (request,) = wait_for_requests(internet, 1)
        assert (request.outcome, request.sent_bytes) == ("cut", 10_000)
        assert b"upload limit" in internet.get("http://a.org/")
    assert sum(map(len, internet.site.received)) <= 10_000


def test_an_upload_in_a_tunnel_over_the_limit_is_cut() -> None:
    hello = make_client_hello("a.org")
    with open_internet("allow:a.org", limits=NetworkLimits(sent_bytes=len(hello) + 10)) as internet:
        with internet.open_tunnel("a.org:443") as client:
            client.sendall(hello)
            assert client.recv(100) == b"FROM THE SITE"
            client.sendall(b"x" * 1000)
            assert read_all(client)  # an alert, and the end
        (request,) = wait_for_requests(internet, 1)
    assert (request.outcome, request.sent_bytes) == ("cut", len(hello) + 10)


def test_open_tunnels_end_with_the_proxy(caplog: pytest.LogCaptureFixture) -> None:
    with open_internet("allow:a.org") as internet:
        client = internet.open_tunnel("a.org:443")
        client.sendall(make_client_hello("a.org"))
        assert client.recv(100) == b"FROM THE SITE"
    with client:
        assert client.recv(100) == b""
    assert not internet.path.exists()
    (request,) = internet.requests
    assert (request.outcome, request.reason) == ("cut", "The run ended.")
    assert not caplog.records
