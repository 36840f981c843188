"""The harness's unix sockets answer nobody who does not have their key."""

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from agent2rl.grading.server import serve_on_socket
from agent2rl.net import key_gate
from agent2rl.net.keyed_transports import KeyedTransport
from agent2rl.net.socket_keys import KEY_BYTES, connect_to_socket, read_key

REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
MOST = 8


async def say_hello(scope: dict[str, object], receive: object, send: object) -> None:
    assert scope["type"] == "http"
    assert callable(send)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"5")]})
    await send({"type": "http.response.body", "body": b"hello"})


@pytest.fixture
def service() -> Iterator[Path]:
    with serve_on_socket(say_hello, MOST) as path:
        yield path


def ask(path: Path, *parts: bytes) -> bytes:
    """What comes back until the server closes the connection."""
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(20)
        link.connect(str(path))
        received = b""
        try:
            for part in parts:
                link.sendall(part)
                time.sleep(0.02)
            while chunk := link.recv(4096):
                received += chunk
        except (ConnectionResetError, BrokenPipeError):
            pass
        return received


def test_who_has_the_key_is_answered_on_one_connection_as_often_as_they_ask(service: Path) -> None:
    with httpx.Client(transport=KeyedTransport(service), base_url="http://service") as client:
        assert [client.get("/").text for _ in range(3)] == ["hello"] * 3
    with connect_to_socket(service) as link:
        link.sendall(REQUEST)
        assert link.recv(4096).startswith(b"HTTP/1.1 200")


def test_who_only_finds_the_path_gets_no_byte(service: Path) -> None:
    key = read_key(service)
    wrong = bytes([key[0] ^ 1]) + key[1:]
    for sent in (REQUEST, wrong + REQUEST, key.upper() + REQUEST, b"\0" * KEY_BYTES, b"\n" + key + REQUEST):
        assert ask(service, sent) == b""
    assert ask(service, key + REQUEST).endswith(b"hello")


def test_a_key_may_arrive_in_pieces(service: Path) -> None:
    key = read_key(service)
    assert ask(service, key[:5], key[5:] + REQUEST[:3], REQUEST[3:]).endswith(b"hello")


def test_every_socket_has_a_key_of_its_own_that_its_sandbox_can_read(service: Path) -> None:
    with serve_on_socket(say_hello) as other:
        assert read_key(other) != read_key(service)
        assert ask(other, read_key(service) + REQUEST) == b""
    # A grading child may be another user. The directory above keeps the others out.
    assert service.with_suffix(".key").stat().st_mode & 0o777 == 0o644
    assert service.parent.parent.stat().st_mode & 0o777 == 0o700


def test_connections_without_a_key_take_nobodys_place_and_end(
    service: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_gate, "SECONDS", 0.3)
    held = []
    try:
        for _ in range(key_gate.MOST_WAITING + MOST):
            link = socket.socket(socket.AF_UNIX)
            link.settimeout(20)
            link.connect(str(service))
            held.append(link)
            if len(held) % MOST == 0:
                assert ask(service, read_key(service) + REQUEST).endswith(b"hello")
        assert [link.recv(1) for link in held] == [b""] * len(held)
    finally:
        for link in held:
            link.close()


def test_a_server_ends_while_somebody_waits_at_its_gate() -> None:
    with serve_on_socket(say_hello) as path:
        link = socket.socket(socket.AF_UNIX)
        link.connect(str(path))
    with link:
        link.settimeout(20)
        assert link.recv(1) == b""
    assert not path.parent.parent.exists()
