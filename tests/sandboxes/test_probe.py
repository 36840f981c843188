"""What the self-test takes for a connection to the host, in a sandbox with its own loopback."""

import socket

import pytest

from agent2rl import registry
from agent2rl.sandboxes import probe, selftest


class FromTheSamePort(socket.socket):
    """A socket that the kernel gives the port that it connects to, as it does at times."""

    def connect(self, address: tuple[str, int]) -> None:  # type: ignore[override]
        self.bind(address)
        super().connect(address)


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> int:
    """A port at which nothing listens."""
    monkeypatch.setattr(probe, "_interfaces_up", lambda: {"lo"})
    monkeypatch.setattr(probe, "SOMEWHERE", ("127.0.0.1", 1))
    monkeypatch.setenv("SERVICE_URL", "http://127.0.0.1:2")
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def test_a_service_that_answers_is_noticed(port: int) -> None:
    assert probe._is_offline(port)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", port))
        listener.listen()
        assert not probe._is_offline(port)


def test_a_connection_that_meets_itself_is_none(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "socket", FromTheSamePort)
    assert probe._is_offline(port)


def test_the_sandboxs_own_service_at_the_same_port_is_not_the_hosts(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERVICE_URL", f"http://127.0.0.1:{port}")
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", port))
        listener.listen()
        assert probe._is_offline(port)


def test_a_sandbox_with_a_writable_dev_must_keep_the_rest_read_only() -> None:
    """`local` isolates nothing, so more than /dev can be written to."""
    found = selftest.run_self_test("leaky", registry.find_sandbox("local"), (), selftest.WRITABLE_DEVICES)
    promise = next(each for each in found.promises if each.name == selftest.NAMES["read-only"])
    assert promise.promised
    assert not promise.holds
    assert promise.hint == selftest.BROKEN
