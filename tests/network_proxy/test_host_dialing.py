"""Connections to hosts: one address after the other, and through the user's own proxy where it is needed."""

import socket
import socketserver
import threading
import time

import pytest

from agent2rl.core.network import (
    parse_network_policy,
)
from agent2rl.net.socket_keys import connect_to_socket
from agent2rl.network_proxy.host_dialing import UpstreamProxy
from agent2rl.network_proxy.host_rules import HostRules, PackageMirror
from agent2rl.network_proxy.request_log import NetworkLimits, NetworkRequestLog
from agent2rl.network_proxy.server import NetworkProxy, serve_network_proxy
from tests.network_proxy.small_internet import (
    PUBLIC,
    open_internet,
    wait_for_requests,
)


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

    rules, log = HostRules(parse_network_policy("allow:a.org")), NetworkRequestLog(lambda _: None)
    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    try:
        with serve_network_proxy(NetworkProxy(rules, log)) as path, connect_to_socket(path) as client:
            client.sendall(b"GET http://a.org/ HTTP/1.1\r\nHost: a.org\r\n\r\n")
            assert asked.wait(60)
            began = time.monotonic()
        assert time.monotonic() - began < 30
    finally:
        answered.set()
    assert [each.outcome for each in log.requests] == ["cut"]


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
