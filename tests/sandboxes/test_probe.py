"""What the self-test takes for a connection to the host, what it says of holes, and which roles it tries."""

import re
import socket
import threading
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import pytest

from agent2rl import registry
from agent2rl.core.errors import MachineError
from agent2rl.core.records import Isolation, Promise
from agent2rl.core.sandbox import Command, Enclosure, Exit, Role
from agent2rl.sandboxes import probe, selftest, start_failures

LOCAL = registry.find_sandbox("local")


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
    assert probe._find_network(port) == ""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", port))
        listener.listen()
        assert probe._find_network(port) == f"127.0.0.1:{port} answers"


def test_a_connection_that_meets_itself_is_none(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "socket", FromTheSamePort)
    assert probe._find_network(port) == ""


def test_the_sandboxs_own_service_at_the_same_port_is_not_the_hosts(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERVICE_URL", f"http://127.0.0.1:{port}")
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", port))
        listener.listen()
        assert probe._find_network(port) == ""


@pytest.fixture(scope="module")
def leaky() -> dict[str, Promise]:
    """What the self-test finds in `local`, which isolates nothing, by the keys of the promises."""
    found = selftest.run_self_test("leaky", registry.find_sandbox("local"), (), selftest.WRITABLE_DEVICES)
    keys = {text: key for key, text in selftest.NAMES.items()}
    return {keys[promise.name]: promise for promise in found.promises}


def test_a_sandbox_with_a_writable_dev_must_keep_the_rest_read_only(leaky: dict[str, Promise]) -> None:
    promise = leaky["read-only"]
    assert promise.promised
    assert not promise.holds
    assert promise.hint.endswith(selftest.BROKEN)


def test_a_broken_promise_says_what_was_found(leaky: dict[str, Promise]) -> None:
    assert re.match(r"Found: read-only\b.* can be written to\. ", leaky["read-only"].hint)
    assert re.match(r"Found: /.*/secret exists\. ", leaky["files"].hint)
    assert re.match(r"Found: process \d+.* can be seen\. ", leaky["processes"].hint)
    assert re.search(r"\d+\.\d+\.\d+\.\d+:\d+", leaky["network"].hint)
    assert leaky["service"].hint == ""


@dataclass(frozen=True)
class ClosedToOneRole:
    """A sandbox that needs a program which one of the roles does not see."""

    role: Role

    def workspace(self, workspace: Path) -> PurePosixPath:
        return LOCAL.workspace(workspace)

    def check(self, hidden: tuple[Path, ...] = ()) -> Isolation:
        return selftest.run_self_test("closed", self, hidden)

    def run(self, command: Command, enclosure: Enclosure, stop: threading.Event) -> Exit:
        if enclosure.role == self.role:
            missing = "The sandbox did not start: umount: not found"
            raise MachineError(missing, start_failures.CHECK_HINT)
        return LOCAL.run(command, enclosure, stop)


@pytest.mark.parametrize("role", ["grader", "program"])
def test_a_sandbox_in_which_one_role_does_not_start_is_broken(role: Role) -> None:
    (promise,) = ClosedToOneRole(role).check().promises
    assert (promise.name, promise.holds) == ("the sandbox starts", False)
    assert promise.hint.startswith(f"The sandbox did not start as {role}: umount: not found. ")
    assert "agent2rl check" not in promise.hint
