"""The proxy lets the policy's requests through, and records all of them. The rest of the file attacks it."""

import os
import socket
import socketserver
import threading
import time

import pytest

from agent2rl.core.network import (
    NetworkLine,
    NetworkRecord,
    NetworkRequest,
    join_network_lines,
    parse_network_policy,
)
from agent2rl.network_proxy import connections
from agent2rl.network_proxy.host_dialing import UpstreamProxy
from agent2rl.network_proxy.host_rules import HostRules, PackageMirror
from agent2rl.network_proxy.request_log import NetworkLimits, RequestLog
from agent2rl.network_proxy.server import NetworkProxy, serve_network_proxy
from tests.network_proxy.small_internet import (
    PUBLIC,
    SmallInternet,
    make_client_hello,
    open_internet,
    read_all,
)

METADATA = "169.254.169.254"


def wait_for_requests(internet: SmallInternet, count: int) -> list[NetworkRequest]:
    """A request is recorded when it has ended, which may be after the client has its answer."""
    deadline = time.monotonic() + 60
    while len(internet.requests) < count and time.monotonic() < deadline:
        time.sleep(0.01)
    return internet.requests


def wait_for_unrecorded(internet: SmallInternet, count: int) -> NetworkRecord:
    deadline = time.monotonic() + 60
    while (record := join_network_lines(internet.lines)).unrecorded < count and time.monotonic() < deadline:
        time.sleep(0.01)
    return record


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


@pytest.mark.parametrize(
    ("first", "reason"),
    [
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


def test_an_address_that_never_answers_leaves_time_for_the_next_one() -> None:
    other = "93.184.215.15"
    limits = NetworkLimits(connect_seconds=1)
    with open_internet("open", {"a.org": [[other, PUBLIC]]}, limits=limits) as internet:
        internet.black_holes = (other,)
        assert internet.get("http://a.org/").startswith(b"HTTP/1.1 200 ")
        assert internet.dialed == [other, PUBLIC]
        internet.black_holes = (other, PUBLIC)
        assert b"a.org cannot be reached: the connection timed out." in internet.get("http://a.org/")


def test_the_agent_is_not_told_the_address_of_a_mirror_or_of_the_users_own_proxy() -> None:
    with socket.create_server(("127.0.0.2", 0)) as closed:
        port = closed.getsockname()[1]
    mirror, upstream = PackageMirror("http", "127.0.0.2", port), UpstreamProxy("127.0.0.2", port)
    with open_internet("packages", mirrors=(mirror,), upstream=upstream) as internet:
        for url in (f"http://127.0.0.2:{port}/simple/", "http://pypi.org/simple/"):
            answer = internet.get(url)
            assert answer.startswith(b"HTTP/1.1 502 ")
            assert b"cannot be reached: Connection refused." in answer
            assert b"('127.0.0.2'" not in answer
        requests = wait_for_requests(internet, 2)
    assert all("('127.0.0.2'" in each.reason for each in requests)


def test_a_slow_name_server_does_not_hold_up_the_end_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, answered = threading.Event(), threading.Event()

    def look_up(*_: object, **__: object) -> list[object]:
        asked.set()
        answered.wait(60)
        return []

    rules, log = HostRules(parse_network_policy("allow:a.org")), RequestLog(lambda _: None)
    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    try:
        with serve_network_proxy(NetworkProxy(rules, log)) as path, socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
            client.sendall(b"GET http://a.org/ HTTP/1.1\r\nHost: a.org\r\n\r\n")
            assert asked.wait(60)
            began = time.monotonic()
        assert time.monotonic() - began < 30
    finally:
        answered.set()
    assert [each.outcome for each in log.requests] == ["cut"]


def test_the_target_of_a_redirect_is_checked_as_a_new_request() -> None:
    with open_internet("allow:a.org") as internet:
        assert b"ocation: http://inside.example.org/" in internet.get("http://a.org/redirect")
        assert internet.get("http://inside.example.org/").startswith(b"HTTP/1.1 403 ")
        first, second = wait_for_requests(internet, 2)
    assert (first.status, first.outcome, second.outcome) == (302, "done", "refused")


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


def test_a_request_is_in_the_record_before_anything_of_it_is_sent() -> None:
    with open_internet("allow:a.org") as internet:
        client = internet.open_tunnel("a.org:443")
        (line,) = internet.lines
        assert isinstance(line.root, NetworkRequest)
        assert (line.root.method, line.root.host, line.root.outcome) == ("CONNECT", "a.org", "open")
        assert internet.site.received == []
        client.close()
        wait_for_requests(internet, 1)
    assert [each.outcome for each in join_network_lines(internet.lines).requests] == ["refused"]


def test_bytes_of_an_open_request_are_recorded_while_they_pass_and_count_after_a_crash() -> None:
    limits = NetworkLimits(unrecorded_received_bytes=50_000, received_bytes=300_000)
    with open_internet("allow:a.org", limits=limits) as internet:
        internet.get("http://a.org/large")
        wait_for_requests(internet, 1)
    killed = join_network_lines(internet.lines[:-1])  # its last line was never written
    (request,) = killed.requests
    assert request.outcome == "open"
    assert 150_000 <= request.received_bytes <= 200_500
    with open_internet("allow:a.org", limits=limits, earlier=killed) as internet:
        (ended,) = internet.requests
        assert (ended.id, ended.outcome, ended.received_bytes) == (1, "cut", request.received_bytes)
        internet.get("http://a.org/large")
        assert wait_for_requests(internet, 2)[1].id == 2
        assert b"download limit" in internet.get("http://a.org/")


def test_the_number_of_unrecorded_requests_is_in_the_record_and_goes_on_after_a_crash() -> None:
    limits = NetworkLimits(requests=1)
    with open_internet("allow:a.org", limits=limits) as internet:
        for _ in range(4):
            internet.get("http://a.org/")
        killed = wait_for_unrecorded(internet, 3)
    assert killed.unrecorded == 3
    with open_internet("allow:a.org", limits=limits, earlier=killed) as internet:
        internet.get("http://a.org/")
    assert join_network_lines(internet.lines).unrecorded == 4


def test_after_a_line_that_cannot_be_written_nothing_is_let_out(caplog: pytest.LogCaptureFixture) -> None:
    lines: list[NetworkLine] = []

    def write_on_a_disk_that_fills_up(line: NetworkLine) -> None:
        lines.append(line)
        with open("/dev/full" if len(lines) > 2 else os.devnull, "wb", buffering=0) as file:
            file.write(b"x")

    with open_internet("allow:a.org,b.org", record=write_on_a_disk_that_fills_up) as internet:
        with internet.open_tunnel("a.org:443") as tunnel:
            tunnel.sendall(make_client_hello("a.org"))
            assert tunnel.recv(100) == b"FROM THE SITE"
            assert internet.get("http://b.org/1").startswith(b"HTTP/1.1 200 ")
            for _ in range(2):
                answer = internet.get("http://b.org/2")
                assert answer.startswith(b"HTTP/1.1 503 ")
                assert b"record of requests cannot be written" in answer
            tunnel.sendall(b"more")
            assert read_all(tunnel)  # an alert, and the end
        assert internet.log is not None
        assert internet.log.fault == (
            "A line of network.jsonl could not be written (No space left on device)."
        )
    assert len(internet.site.received) == 2
    assert len(lines) == 3
    assert [each.levelname for each in caplog.records] == ["WARNING"]


def test_requests_before_a_crash_count_towards_the_limits() -> None:
    with open_internet("allow:a.org") as internet:
        internet.get("http://a.org/")
        wait_for_requests(internet, 1)
        earlier = join_network_lines(internet.lines)
    with open_internet("allow:a.org", limits=NetworkLimits(requests=2), earlier=earlier) as internet:
        assert internet.get("http://a.org/").startswith(b"HTTP/1.1 200 ")
        assert internet.get("http://a.org/").startswith(b"HTTP/1.1 429 ")


def test_what_names_could_carry_out_is_in_the_record_and_a_refused_name_is_not_looked_up() -> None:
    secret = "the-answer-is-42"
    with open_internet("packages") as internet:
        internet.get(f"http://pypi.org/simple/{secret}/")
        internet.get(f"http://{secret}.evil.org/")
        first, second = wait_for_requests(internet, 2)
    assert first.path == f"/simple/{secret}/"
    assert (second.host, second.outcome) == (f"{secret}.evil.org", "refused")
    assert internet.resolved == ["pypi.org"]


def test_long_and_strange_texts_of_the_agent_are_cleaned_in_the_record() -> None:
    with open_internet("allow:a.org") as internet:
        internet.get(f"http://a.org/{'x' * 10_000}")
        (request,) = wait_for_requests(internet, 1)
    assert request.path is not None
    assert len(request.path) == 2000


def test_a_model_hub_is_marked_in_the_record_where_it_is_named() -> None:
    with open_internet("open:huggingface.co") as internet:
        assert internet.get("http://huggingface.co/x").startswith(b"HTTP/1.1 200 ")
        assert internet.get("http://cdn-lfs.hf.co/x").startswith(b"HTTP/1.1 403 ")
        first, second = wait_for_requests(internet, 2)
    assert first.model_hub
    assert second.model_hub


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


def test_a_mirror_may_have_a_private_address_and_any_port() -> None:
    with open_internet("packages") as far, open_internet("packages") as near:
        port = far.site.server_address[1]
        mirror = PackageMirror("http", "127.0.0.1", port)
        with open_internet("packages", mirrors=(mirror,)) as internet:
            assert internet.get(f"http://127.0.0.1:{port}/simple/x/").startswith(b"HTTP/1.1 200 ")
            other = near.site.server_address[1]
            assert internet.get(f"http://127.0.0.1:{other}/").startswith(b"HTTP/1.1 403 ")
            assert internet.ask(f"CONNECT 127.0.0.1:{port} HTTP/1.1\r\n\r\n".encode()).split()[1] in (
                b"400",
                b"403",
            )
        assert far.site.received[0].startswith(f"GET /simple/x/ HTTP/1.1\r\nHost: 127.0.0.1:{port}".encode())
        assert not near.site.received


def test_the_users_own_proxy_gets_the_name_and_its_login_and_private_names_are_still_refused() -> None:
    with open_internet("packages") as far:
        upstream = UpstreamProxy("127.0.0.1", far.site.server_address[1], "Basic c2VjcmV0")
        addresses = {"inside.org": [["10.0.0.1"]]}
        with open_internet("allow:a.org,inside.org", addresses, upstream=upstream) as internet:
            assert internet.get("http://a.org/x").endswith(b"ok")
            assert internet.get("http://inside.org/").startswith(b"HTTP/1.1 403 ")
            with internet.connect() as client:  # this "proxy" answers 200 to CONNECT, as to everything
                client.sendall(b"CONNECT a.org:443 HTTP/1.1\r\nHost: a.org:443\r\n\r\n")
                client.recv(100)
            wait_for_requests(internet, 3)
        plain, tunnel = far.site.received
    assert plain.startswith(b"GET http://a.org/x HTTP/1.1\r\nHost: a.org\r\n")
    assert tunnel.startswith(b"CONNECT a.org:443 HTTP/1.1\r\n")
    for received in (plain, tunnel):
        assert b"proxy-authorization: basic c2vjcmv0" in received.lower()
    assert all("c2VjcmV0" not in each.model_dump_json() for each in internet.requests)
    assert not internet.dialed


@pytest.mark.parametrize(
    ("host", "addresses", "no_proxy", "through_proxy"),
    [
        ("mirror.example.org", [PUBLIC], "", True),
        ("mirror.example.org", [], "", True),
        ("mirror.example.org", ["127.0.0.2"], "", False),
        ("127.0.0.2", [], "", False),
        ("mirror.example.org", ["127.0.0.2", PUBLIC], ".example.org", False),
    ],
)
def test_a_mirror_is_reached_through_the_users_own_proxy_unless_it_is_private_or_in_no_proxy(
    host: str, addresses: list[str], no_proxy: str, through_proxy: bool
) -> None:
    with open_internet("packages") as proxy:
        upstream = UpstreamProxy("127.0.0.1", proxy.site.server_address[1], no_proxy=no_proxy)
        with socketserver.TCPServer(("127.0.0.2", 0), _Answer) as near:
            thread = threading.Thread(target=near.serve_forever, kwargs={"poll_interval": 0.02})
            thread.start()
            mirror = PackageMirror("http", host, near.server_address[1])
            with open_internet(
                "packages", {host: [addresses]}, mirrors=(mirror,), upstream=upstream
            ) as internet:
                answer = internet.get(f"http://{host}:{mirror.port}/simple/")
            near.shutdown()
            thread.join()
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert answer.endswith(b"ok" if through_proxy else b"near")
    wanted = [f"GET http://{host}:{mirror.port}/simple/ HTTP/1.1".encode()] if through_proxy else []
    assert [received.partition(b"\r")[0] for received in proxy.site.received] == wanted


class _Answer(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        self.request.recv(65536)
        self.request.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nnear")


@pytest.mark.parametrize(
    ("no_proxy", "host", "expected"),
    [
        *(("", "a.org", True), ("*", "a.org", False), ("b.org", "a.org", True)),
        *(("a.org", "x.a.org", False), (".a.org", "a.org", False), ("*.a.org", "x.a.org", False)),
        *((" localhost, a.org ", "a.org", False), ("a.org", "xa.org", True)),
        *(("10.0.0.0/8", "10.1.2.3", False), ("10.0.0.1", "10.1.2.3", True), ("10.0.0.0/8", "a.org", True)),
    ],
)
def test_no_proxy_lists_hosts_as_usual(no_proxy: str, host: str, expected: bool) -> None:
    assert UpstreamProxy("proxy.org", 3128, no_proxy=no_proxy).serves(host) == expected
